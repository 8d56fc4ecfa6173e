//! Links, connections and answers that are lost.

use std::time::Duration;

use jobqueue::storage::{GetMessages, PutMessage, StoreErrorKind, UpdateMessage};
use jobqueue::{QueueName, Storage};
use serde_json::json;

use super::{Bench, ENDS, MINUTE, options};

#[tokio::test]
async fn links_that_were_ended_while_idle_are_opened_again() {
    for end in ENDS {
        let bench = Bench::new();
        let leased = bench.leased("first").await;
        assert!(bench.emulator.strike(end, None) > 0);
        // By management, because the link by which the message came has gone.
        while let Err(error) = bench.update(&leased.message, UpdateMessage::new(MINUTE)).await {
            assert!(error.is_retryable(), "{end}: {error:?}");
        }
        assert!(bench.emulator.strike(end, None) > 0);
        while let Err(error) = bench.delete(&leased.message).await {
            assert!(error.is_retryable(), "{end}: {error:?}");
        }
        assert!(bench.emulator.strike(end, None) > 0);
        while let Err(error) = bench.put(PutMessage::new("second")).await {
            assert!(error.is_retryable(), "{end}: {error:?}");
        }
        assert_eq!(bench.get().await.unwrap().text.as_deref(), Ok("second"), "{end}");
    }
}

#[tokio::test]
async fn a_message_is_given_back_with_a_delay_after_its_link_has_gone() {
    for end in ENDS {
        let bench = Bench::new();
        let leased = bench.leased("first").await;
        assert!(bench.emulator.strike(end, None) > 0);
        let change = || UpdateMessage::new(MINUTE).with_text("second".to_owned()).ending_lease();
        while let Err(error) = bench.update(&leased.message, change()).await {
            assert!(error.is_retryable() && !error.is_ambiguous(), "{end}: {error:?}");
        }
        assert_eq!(bench.count("active"), 0, "{end}");
        assert_eq!(bench.count("scheduled"), 1, "{end}");
    }
}

// B2
#[tokio::test]
async fn a_lost_answer_to_a_deletion_is_ambiguous_and_the_next_try_decides() {
    for end in ENDS {
        let bench = Bench::new();
        let leased = bench.leased("job").await;
        let fault = bench.emulator.plant("complete", end);
        let error = bench.delete(&leased.message).await.unwrap_err();
        assert!(error.is_ambiguous() && error.is_retryable(), "{end}: {error:?}");
        assert_eq!(fault.hits(), 1);
        let kind = loop {
            match bench.delete(&leased.message).await {
                Err(error) if error.is_retryable() => {}
                Err(error) => break error.kind(),
                Ok(()) => panic!("{end}: deleted twice"),
            }
        };
        // The service drops locks with links, too: that the lock is lost does not say that the message is gone.
        assert_eq!(kind, StoreErrorKind::LeaseExpired, "{end}");
        assert_eq!(bench.count("active"), 0, "{end}");
    }
}

#[tokio::test]
async fn a_lost_answer_to_a_send_is_ambiguous_and_a_repetition_is_one_job() {
    for end in ENDS {
        let bench = Bench::with(json!({ "RequiresDuplicateDetection": true }), &[]);
        bench.emulator.plant("send", end);
        let send = || bench.put(PutMessage::new("job").with_job("/test", "job-1"));
        let error = send().await.unwrap_err();
        assert!(error.is_ambiguous() && error.is_retryable(), "{end}: {error:?}");
        while let Err(error) = send().await {
            assert!(error.is_retryable(), "{end}: {error:?}");
        }
        assert_eq!(bench.count("active"), 1, "{end}");
    }
}

#[tokio::test]
async fn a_lost_answer_to_a_renewal_is_ambiguous_and_the_lock_goes_on() {
    let bench = Bench::new();
    let leased = bench.leased("job").await;
    bench.emulator.plant("renew-lock", "abort");
    let error = bench.update(&leased.message, UpdateMessage::new(MINUTE)).await.unwrap_err();
    assert!(error.is_ambiguous(), "{error:?}");
    bench.update(&leased.message, UpdateMessage::new(MINUTE)).await.unwrap();
    bench.delete(&leased.message).await.unwrap();
}

/// D1: on the tier Basic, and after a lost link, the copy goes first. Another try sent another copy.
#[tokio::test]
async fn a_put_back_whose_completion_failed_is_not_copied_again() {
    for performed in [true, false] {
        let bench = Bench::with(json!({}), &["--sku", "Basic"]);
        let leased = bench.leased("first").await;
        bench.emulator.plant_with("complete", "abort", json!({ "performed": performed }));
        let change = || UpdateMessage::new(MINUTE).with_text("second".to_owned()).ending_lease();
        let error = bench.update(&leased.message, change()).await.unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
        let again = loop {
            match bench.update(&leased.message, change()).await {
                Err(error) if error.is_retryable() => {}
                other => break other,
            }
        };
        // The lock may be lost with the link: then the original is delivered again, beside one copy.
        assert!(again.is_ok() || again.is_err_and(|error| error.is_lease_lost()));
        assert_eq!(bench.count("scheduled"), 1, "performed: {performed}");
    }
}

#[tokio::test]
async fn a_lost_answer_to_a_commit_leaves_one_message() {
    for performed in [true, false] {
        let bench = Bench::new();
        let leased = bench.leased("first").await;
        bench.emulator.plant_with("discharge", "abort", json!({ "performed": performed }));
        let change = || UpdateMessage::new(MINUTE).with_text("second".to_owned()).ending_lease();
        let error = bench.update(&leased.message, change()).await.unwrap_err();
        assert!(error.is_ambiguous(), "{error:?}");
        let again = loop {
            match bench.update(&leased.message, change()).await {
                Err(error) if error.is_retryable() => {}
                other => break other,
            }
        };
        // After a commit the lock is gone; otherwise the second try replaces the message.
        assert_eq!(again.is_err(), performed, "{again:?}");
        assert_eq!(bench.count("active"), 0, "performed: {performed}");
        assert_eq!(bench.count("scheduled"), 1, "performed: {performed}");
    }
}

#[tokio::test]
async fn a_busy_service_is_told_as_throttling() {
    let bench = Bench::new();
    bench.emulator.plant("send", "busy");
    let error = bench.put(PutMessage::new("job")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Throttled, "{error:?}");
    assert!(!error.is_ambiguous(), "{error:?}");
    let leased = bench.leased("job").await;
    for (operation, change) in
        [("renew-lock", UpdateMessage::new(MINUTE)), ("abandon", UpdateMessage::new(Duration::ZERO))]
    {
        bench.emulator.plant(operation, "busy");
        let error = bench.update(&leased.message, change).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Throttled, "{error:?}");
        assert!(!error.is_ambiguous(), "{error:?}");
    }
    // By management, because the link has given the delivery up with the abandonment.
    bench.emulator.plant("update-disposition", "busy");
    assert_eq!(bench.delete(&leased.message).await.unwrap_err().kind(), StoreErrorKind::Throttled);
    bench.delete(&leased.message).await.unwrap();
}

// The emulator is asked by a call that blocks.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_renewed_before_they_run_out() {
    let bench = Bench::new();
    let options = options(&bench.emulator).token_validity(Duration::from_secs(6));
    let storage = Storage::from(options.with_blobs_of(&bench.blobs).unwrap());
    storage.queues().put(&bench.queue, PutMessage::new("a")).await.unwrap();
    let link = |links: &serde_json::Value| {
        let links = links.as_array().unwrap().iter();
        links
            .filter(|link| link["entity"] == "work")
            .map(|link| link["connection"].clone())
            .collect::<Vec<_>>()
    };
    let before = link(&bench.emulator.links());
    // The third token is sent when the first has run out.
    let calls = tokio::task::block_in_place(|| bench.emulator.calls("put-token", "$cbs", 3));
    assert!(calls >= 3, "{calls} tokens");
    assert_eq!(link(&bench.emulator.links()), before);
    storage.queues().put(&bench.queue, PutMessage::new("b")).await.unwrap();
}

// From three quarters of its life on it counted as none, and each operation sent one of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_used_until_it_ends_while_another_is_awaited() {
    let bench = Bench::new();
    let options = options(&bench.emulator).token_validity(Duration::from_secs(8));
    let storage = Storage::from(options.with_blobs_of(&bench.blobs).unwrap());
    storage.queues().put(&bench.queue, PutMessage::new("a")).await.unwrap();
    let fault = bench.emulator.plant_with("put-token", "hold", json!({ "times": null }));
    tokio::task::block_in_place(|| assert_eq!(fault.wait(1), 1));
    storage.queues().put(&bench.queue, PutMessage::new("b")).await.unwrap();
    assert_eq!(fault.hits(), 1, "the put sent a token");
}

// Each operation opened a connection, and closed the one before under its deliveries.
#[tokio::test]
async fn a_busy_service_at_the_link_for_tokens_costs_no_connection() {
    let bench = Bench::with(json!({}), &["--locks-end-with-links", "true"]);
    let leased = bench.leased("job").await;
    bench.detach("$cbs").await;
    bench.emulator.create_queue("other", json!({}));
    let other = QueueName::new("other").unwrap();
    let put = || bench.store().put(&other, PutMessage::new("next"));
    let fault = bench.emulator.plant_with("attach", "busy", json!({ "entity": "$cbs", "times": null }));
    for _ in 0..3 {
        assert_eq!(put().await.unwrap_err().kind(), StoreErrorKind::Throttled);
    }
    fault.remove();
    put().await.unwrap();
    assert_eq!(bench.emulator.calls("open", "", 0), 1, "connections");
    bench.delete(&leased.message).await.unwrap();
}

#[tokio::test]
async fn messages_of_a_get_that_is_cut_off_come_again() {
    let bench = Bench::new();
    bench.put(PutMessage::new("job")).await.unwrap();
    bench.emulator.plant("deliver", "abort");
    let options = GetMessages::new(1, MINUTE);
    let error = bench.store().get(&bench.queue, options).await.unwrap_err();
    assert!(error.is_ambiguous() && error.is_retryable(), "{error:?}");
    bench.emulator.advance(MINUTE);
    assert_eq!(bench.get().await.unwrap().dequeue_count, 2);
}
