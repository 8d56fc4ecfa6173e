//! Partitioned queues: the adapter works on them as far as they allow, and names what they cannot do.

use jobqueue::storage::{PutMessage, StoreErrorKind, UpdateMessage};
use jobqueue_admin::Admin;
use serde_json::json;

use super::{Bench, MINUTE};

fn partitioned() -> Bench {
    Bench::with(json!({ "EnablePartitioning": true, "MaxDeliveryCount": 2000 }), &[])
}

#[tokio::test]
async fn a_put_back_on_a_partitioned_queue_tries_no_transaction() {
    let bench = partitioned();
    let leased = bench.leased("first").await;
    let change = UpdateMessage::new(MINUTE).with_text("second".to_owned()).ending_lease();
    bench.update(&leased.message, change).await.unwrap();
    assert_eq!(bench.emulator.calls("declare", "", 0), 0);
    assert_eq!(bench.count("scheduled"), 1);
    assert_eq!(bench.count("active"), 0);
    bench.emulator.advance(MINUTE);
    assert_eq!(bench.get().await.unwrap().text.as_deref(), Ok("second"));
}

// Each try sent one more.
#[tokio::test]
async fn copy_whose_answer_is_lost_is_one_message_where_duplicates_are_detected() {
    let settings = json!({ "EnablePartitioning": true, "RequiresDuplicateDetection": true });
    let bench = Bench::with(settings, &[]);
    let leased = bench.leased("first").await;
    let fault = bench.emulator.plant_with("send", "abort", json!({ "performed": true }));
    let change = UpdateMessage::new(MINUTE).with_text("second".to_owned()).ending_lease();
    while let Err(error) = bench.update(&leased.message, change.clone()).await {
        assert!(error.is_retryable(), "{error:?}");
    }
    assert_eq!(fault.hits(), 1);
    assert_eq!(bench.count("scheduled"), 1);
    assert_eq!(bench.count("active"), 0);
}

// Its absence from the peek counted as its deletion.
#[tokio::test]
async fn a_message_of_a_partition_that_a_peek_does_not_show_is_not_called_gone() {
    for is_partitioned in [false, true] {
        let bench = Bench::with(json!({ "EnablePartitioning": is_partitioned }), &[]);
        let mut delayed = Vec::new();
        for number in 0..3 {
            let put = PutMessage::new(number.to_string()).with_visibility_delay(MINUTE);
            delayed.push(bench.put(put).await.unwrap());
        }
        let first = bench.delete(&delayed[0]).await;
        assert_eq!(first.is_ok(), !is_partitioned, "{first:?}");
        let again = bench.delete(&delayed[0]).await.unwrap_err();
        assert_eq!(again.kind(), StoreErrorKind::MessageNotFound);
        assert_eq!(again.is_ambiguous(), is_partitioned);
    }
}

// It was the number of messages in one partition.
#[tokio::test]
async fn a_length_that_peeks_cannot_show_is_not_guessed() {
    let bench = partitioned();
    let all = (0..8).map(|number| PutMessage::new(number.to_string())).collect();
    for put in bench.store().put_all(&bench.queue, all).await {
        put.unwrap();
    }
    assert_eq!(bench.store().queue_properties(&bench.queue).await.unwrap().approximate_count, 8);
    bench.emulator.plant_with("http-get", "error", json!({ "status": 401, "times": null }));
    let error = bench.store().queue_properties(&bench.queue).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error:?}");
    // All else was lost with it.
    let shown = Admin::builder(bench.storage.clone()).build().queue("work").await.unwrap();
    assert_eq!((shown.length, shown.paused), (None, Some(false)));
    assert!(
        shown.visible.is_some_and(|visible| visible > 0) && !shown.visible_is_exact && shown.oldest.is_some(),
        "{shown:?}"
    );
    assert!(shown.error.is_some_and(|error| error.contains("only the claim Manage shows")));
}
