//! Put-backs: whatever is cut, a job has one message afterwards, and other messages do not wait for it.

use std::time::Duration;

use jobqueue::storage::{GetMessages, PutMessage, UpdateMessage};
use jobqueue_test_support::servicebus::is_excluded;
use serde_json::json;
use tokio::time::timeout;

use super::{Bench, MINUTE};

const SOON: Duration = Duration::from_secs(10);

fn put_back() -> UpdateMessage {
    UpdateMessage::new(MINUTE).with_text("second".to_owned()).ending_lease()
}

/// D1. The link of the message may have ended before, and any step of the put-back may be cut off.
#[tokio::test]
async fn a_put_back_that_is_cut_off_anywhere_leaves_one_message() {
    for is_detached in [false, true] {
        for (step, performed) in [
            ("declare", true),
            ("send", true),
            ("send", false),
            ("update-disposition", true),
            ("update-disposition", false),
            ("discharge", true),
            ("discharge", false),
        ] {
            let bench = Bench::new();
            let leased = bench.leased("first").await;
            if is_detached {
                assert!(bench.emulator.strike("detach", Some("work")) > 0);
            }
            let fault = bench.emulator.plant_with(step, "abort", json!({ "performed": performed }));
            let last = loop {
                match bench.update(&leased.message, put_back()).await {
                    Err(error) if error.is_retryable() => {}
                    last => break last,
                }
            };
            let case = format!("{step}, performed: {performed}, detached: {is_detached}");
            assert_eq!(fault.hits(), 1, "{case}");
            assert!(last.is_ok() || last.is_err_and(|error| error.is_lease_lost()), "{case}");
            assert_eq!(bench.count("scheduled"), 1, "{case}");
            assert_eq!(bench.count("active"), 0, "{case}");
        }
    }
}

/// The lock may be lost together with the link: then the message is delivered again, and there is no copy.
#[tokio::test]
async fn a_put_back_whose_lock_was_lost_with_the_link_copies_nothing() {
    if is_excluded("put_backs::a_put_back_whose_lock_was_lost_with_the_link_copies_nothing") {
        return;
    }
    let bench = Bench::with(json!({}), &["--locks-end-with-links", "true"]);
    let leased = bench.leased("first").await;
    bench.emulator.plant_with("update-disposition", "abort", json!({ "performed": false }));
    let error = loop {
        match bench.update(&leased.message, put_back()).await {
            Err(error) if error.is_retryable() => {}
            last => break last.unwrap_err(),
        }
    };
    assert!(error.is_lease_lost() && !error.is_ambiguous(), "{error:?}");
    assert_eq!(bench.count("scheduled"), 0);
    assert_eq!(bench.get().await.unwrap().dequeue_count, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_without_an_answer_holds_up_no_completion() {
    let bench = Bench::new();
    for text in ["first", "second"] {
        bench.put(PutMessage::new(text)).await.unwrap();
    }
    let mut leased = Vec::new();
    while leased.len() < 2 {
        leased.extend(bench.store().get(&bench.queue, GetMessages::new(2, MINUTE)).await.unwrap().messages);
    }
    let fault = bench.emulator.plant("discharge", "hold");
    let (storage, queue, message) = (bench.storage.clone(), bench.queue.clone(), leased[0].message.clone());
    let putting = tokio::spawn(async move { storage.queues().update(&queue, &message, put_back()).await });
    tokio::task::block_in_place(|| assert_eq!(fault.wait(1), 1));
    timeout(SOON, bench.delete(&leased[1].message)).await.expect("waits for the transaction").unwrap();
    fault.release();
    putting.await.unwrap().unwrap();
    assert_eq!(bench.count("scheduled"), 1);
    assert_eq!(bench.count("active"), 0);
}
