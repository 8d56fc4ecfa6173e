//! Put-backs: whatever is cut, a job has one message afterwards, and other messages do not wait for it.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::Storage;
use jobqueue::storage::{GetMessages, LeasedMessage, Metadata, Operation, PutMessage, UpdateMessage};
use jobqueue_test_support::servicebus::is_excluded;
use jobqueue_testing::faults::Faulty;
use serde_json::json;
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::timeout;

use super::forged::SEND;
use super::late_answers::until;
use super::{Bench, MINUTE, options, python};

const SOON: Duration = Duration::from_secs(10);

fn put_back() -> UpdateMessage {
    UpdateMessage::new(MINUTE).with_text("second".to_owned()).ending_lease()
}

impl Bench {
    async fn leased_many(&self, count: usize) -> Vec<LeasedMessage> {
        for number in 0..count {
            self.put(PutMessage::new(number.to_string())).await.unwrap();
        }
        let mut leased = Vec::new();
        while leased.len() < count {
            let get = GetMessages::new(32, MINUTE);
            leased.extend(self.store().get(&self.queue, get).await.unwrap().messages);
        }
        leased
    }

    fn putting_back(&self, leased: &LeasedMessage) -> JoinHandle<()> {
        let (storage, queue, message) = (self.storage.clone(), self.queue.clone(), leased.message.clone());
        tokio::spawn(async move {
            storage.queues().update(&queue, &message, put_back()).await.unwrap();
        })
    }
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
    let leased = bench.leased_many(2).await;
    let fault = bench.emulator.plant("discharge", "hold");
    let putting = bench.putting_back(&leased[0]);
    block_in_place(|| assert_eq!(fault.wait(1), 1));
    timeout(SOON, bench.delete(&leased[1].message)).await.expect("waits for the transaction").unwrap();
    fault.release();
    putting.await.unwrap();
    assert_eq!(bench.count("scheduled"), 1);
    assert_eq!(bench.count("active"), 0);
}

// Each waited for the answers to all before it: of 64 jobs that failed together, the last came back without
// their delay.
#[tokio::test(flavor = "multi_thread")]
async fn put_backs_do_not_wait_in_one_line() {
    let bench = Bench::new();
    let leased = bench.leased_many(64).await;
    let fault = bench.emulator.plant_with("discharge", "hold", json!({ "times": null }));
    let putting: Vec<_> = leased.iter().map(|leased| bench.putting_back(leased)).collect();
    block_in_place(|| assert_eq!(fault.wait(16), 16));
    fault.remove();
    for put in putting {
        put.await.unwrap();
    }
    assert_eq!((bench.count("scheduled"), bench.count("active")), (64, 0));
}

// It was made nevertheless, before those that came later.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_back_that_is_given_up_before_its_turn_is_not_made() {
    let bench = Bench::new();
    let leased = bench.leased_many(65).await;
    let fault = bench.emulator.plant_with("discharge", "hold", json!({ "times": null }));
    let putting: Vec<_> = leased[..64].iter().map(|leased| bench.putting_back(leased)).collect();
    block_in_place(|| assert_eq!(fault.wait(16), 16));
    for put in putting {
        put.abort();
        assert!(put.await.unwrap_err().is_cancelled());
    }
    fault.remove();
    bench.putting_back(&leased[64]).await.unwrap();
    assert_eq!(bench.emulator.calls("declare", "", 0), 17);
    assert_eq!((bench.count("scheduled"), bench.count("active")), (17, 48));
}

// One refusal, of whatever step, switched transactions off for the life of the process.
#[tokio::test]
async fn transactions_come_back_after_a_refusal() {
    for step in ["update-disposition", "attach-coordinator"] {
        let bench = Bench::new();
        let refused = json!({ "condition": "amqp:not-allowed" });
        let fault = bench.emulator.plant_with(step, "error", refused);
        let first = bench.leased("first").await;
        bench.update(&first.message, put_back()).await.unwrap();
        assert_eq!(fault.hits(), 1, "{step}");
        let before = bench.emulator.calls("discharge", "", 0);
        if step == "attach-coordinator" {
            let another = bench.another();
            another.queues().delete_queue(&bench.queue).await.unwrap();
            another.queues().create_queue(&bench.queue, &Metadata::new()).await.unwrap();
        }
        // Links to the queue before are gone only when their ends have come.
        let again = async {
            while bench.put(PutMessage::new("second")).await.is_err() {}
            let second = loop {
                let got = bench.store().get(&bench.queue, GetMessages::new(1, MINUTE)).await;
                if let Some(second) = got.ok().and_then(|received| received.messages.into_iter().next()) {
                    break second;
                }
            };
            while bench.update(&second.message, put_back()).await.is_err() {}
        };
        timeout(SOON, again).await.unwrap();
        assert!(bench.emulator.calls("discharge", "", 0) > before, "{step}");
    }
}

// A timeout of the service was taken for a rollback, and the next try for a lost lock.
#[tokio::test]
async fn only_a_rollback_says_that_nothing_was_done() {
    for (condition, performed) in [
        ("com.microsoft:timeout", true),
        ("amqp:internal-error", true),
        ("amqp:transaction:rollback", false),
        ("amqp:transaction:unknown-id", false),
    ] {
        let bench = Bench::new();
        let leased = bench.leased("first").await;
        let fields = json!({ "condition": condition, "performed": performed });
        let fault = bench.emulator.plant_with("discharge", "error", fields);
        // After a rollback it is put back all the same.
        let put_back = bench.update(&leased.message, put_back()).await;
        assert_eq!(fault.hits(), 1, "{condition}");
        assert_eq!(put_back.is_err_and(|error| error.is_ambiguous()), performed, "{condition}");
        assert_eq!(bench.count("scheduled"), 1, "{condition}");
        assert_eq!(bench.count("active"), 0, "{condition}");
    }
}

// round 38, d B1: a copy was sent first, and where the completion failed after it, the job had two messages.
#[tokio::test]
async fn put_back_whose_transactions_are_rolled_back_leaves_one_message() {
    let bench = Bench::new();
    let leased = bench.leased("first").await;
    let rollback = json!({ "condition": "amqp:transaction:rollback", "performed": false, "times": null });
    let rolled_back = bench.emulator.plant_with("discharge", "error", rollback);
    let lost = json!({ "condition": "com.microsoft:message-lock-lost", "performed": false });
    let completion = bench.emulator.plant_with("complete", "error", lost);
    let at_once = UpdateMessage::new(Duration::ZERO).with_text("second".to_owned()).ending_lease();
    bench.update(&leased.message, at_once).await.unwrap();
    assert!(rolled_back.hits() >= 2);
    assert_eq!(completion.hits(), 0);
    assert_eq!((bench.count("active"), bench.count("scheduled")), (1, 0));
    let again = bench.get().await.unwrap();
    assert_eq!(again.message.id, leased.message.id);
    assert_eq!(again.text.as_deref(), Ok("second"));
    assert_eq!(again.dequeue_count, 2);
    assert!(bench.get().await.is_none(), "there are two messages");
}

// The client rolls a transaction back whose discharge was refused, and the answer was taken for that to the
// next request.
#[tokio::test]
async fn coordinator_that_has_refused_a_discharge_is_not_used_again() {
    let bench = Bench::new();
    let leased = bench.leased_many(3).await;
    bench.update(&leased[0].message, put_back()).await.unwrap();
    let attached = bench.emulator.calls("attach", "", 0);
    let fields = json!({ "condition": "amqp:transaction:rollback", "performed": false });
    let fault = bench.emulator.plant_with("discharge", "error", fields);
    // By another transaction, of another coordinator.
    bench.update(&leased[1].message, put_back()).await.unwrap();
    assert_eq!(fault.hits(), 1);
    assert_eq!(bench.emulator.calls("attach", "", 0), attached + 1);
    bench.update(&leased[2].message, put_back()).await.unwrap();
    assert_eq!(bench.emulator.calls("attach", "", 0), attached + 1);
}

// The service has detached all of them.
#[tokio::test(flavor = "multi_thread")]
async fn put_backs_go_on_after_an_idle_time() {
    if is_excluded("put_backs::put_backs_go_on_after_an_idle_time") {
        return;
    }
    let bench = Bench::with(json!({ "LockDuration": "PT5M" }), &["--link-idle-timeout", "600000"]);
    let leased = bench.leased_many(16).await;
    let fault = bench.emulator.plant_with("discharge", "hold", json!({ "times": null }));
    let putting: Vec<_> = leased.iter().map(|leased| bench.putting_back(leased)).collect();
    block_in_place(|| assert_eq!(fault.wait(16), 16));
    fault.remove();
    for put in putting {
        put.await.unwrap();
    }
    let attached = bench.emulator.calls("attach", "", 0);
    for _ in 0..3 {
        bench.emulator.advance(5 * MINUTE);
    }
    timeout(SOON, async { while bench.put(PutMessage::new("again")).await.is_err() {} }).await.unwrap();
    let again = bench.get().await.unwrap();
    while let Err(error) = bench.update(&again.message, put_back()).await {
        assert!(error.is_retryable() && !error.is_ambiguous(), "{error:?}");
    }
    assert!(bench.emulator.calls("attach", "", 0) > attached);
    assert_eq!(bench.emulator.frames()["unattached"], 0);
}

// It was given back at once whatever the delay was: messages of another program went round at full speed.
#[tokio::test]
async fn message_that_is_no_text_waits_for_its_delay() {
    let bench = Bench::new();
    python::run(bench.emulator.connection_string(), SEND, &["{}", "", "binary", "", "ff00"]);
    let leased = bench.get().await.unwrap();
    assert!(leased.text.is_err());
    bench.update(&leased.message, UpdateMessage::new(MINUTE).ending_lease()).await.unwrap();
    assert!(bench.get().await.is_none());
    bench.emulator.advance(MINUTE);
    let again = bench.get().await.unwrap();
    assert_eq!(again.text, leased.text);
    assert_eq!(again.dequeue_count, 2);
}

// Its text did not fit into the blob, which no delivery could read from then on: it blocked its key.
#[tokio::test]
async fn long_message_of_another_program_is_put_back_in_its_session() {
    let bench = Bench::with(json!({ "RequiresSession": true }), &[]);
    let text = "x".repeat(100_000);
    let message: &[&str] = &["{}", &text, "long", "a"];
    python::run(bench.emulator.connection_string(), SEND, message);
    for delivery in 1..=3 {
        let getting = async {
            loop {
                if let Some(leased) = bench.get().await {
                    return leased;
                }
            }
        };
        let leased = timeout(SOON, getting).await.expect("it does not come again");
        assert_eq!(leased.dequeue_count, delivery);
        assert_eq!(leased.text.as_ref().map(String::len), Ok(text.len()));
        assert_eq!(bench.store().peek(&bench.queue, 1).await.unwrap().len(), 1);
        let back = UpdateMessage::new(Duration::from_secs(1)).ending_lease();
        bench.update(&leased.message, back).await.unwrap();
    }
}

// The last step alone was reported: a lost lock said that nothing was changed, and the payload to which the
// new text referred was deleted.
#[tokio::test]
async fn put_back_that_fails_after_its_text_was_stored_is_in_doubt() {
    let lost = json!({ "condition": "com.microsoft:message-lock-lost", "performed": false });
    for (kind, step) in [("partitioned", "complete"), ("without sends", "abandon")] {
        let bench = Bench::with(json!({ "EnablePartitioning": kind == "partitioned" }), &[]);
        let leased = bench.leased("first").await;
        if kind == "without sends" {
            bench.emulator.create_queue("work", json!({ "Status": "SendDisabled" }));
        }
        let fault = bench.emulator.plant_with(step, "error", lost.clone());
        let error = bench.update(&leased.message, put_back()).await.unwrap_err();
        assert_eq!(fault.hits(), 1, "{kind}: {error:?}");
        assert!(error.is_ambiguous() && !error.is_lease_lost(), "{kind}: {error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn put_back_whose_session_ends_after_its_text_was_stored_is_in_doubt() {
    let bench = Arc::new(Bench::of_sessions());
    // Quiet: the emulator is asked in real time.
    let blobs = Faulty::quiet(&bench.blobs);
    let storage = Storage::from(options(&bench.emulator).with_blobs_of(blobs.storage()).unwrap());
    bench.put_in("a", "first").await;
    let leased = bench.get_all(&storage, 1).await.remove(0);
    let revoked = storage.queues().lease_revoked(&bench.queue, &leased.message).unwrap();
    let (cut, handle) = (Arc::clone(&bench), tokio::runtime::Handle::current());
    let mut revoked = Some(revoked);
    blobs.on(Operation::PutBlob, move |_| {
        if let Some(revoked) = revoked.take() {
            cut.emulator.strike("close-connection", None);
            block_in_place(|| handle.block_on(revoked));
        }
        None
    });
    let error = storage.queues().update(&bench.queue, &leased.message, put_back()).await.unwrap_err();
    assert!(error.is_ambiguous() && !error.is_lease_lost(), "{error:?}");
}

// audit 33, core C1: each try without an answer stored a further copy, until the lock ended.
#[tokio::test]
async fn copies_whose_sends_get_no_answer_are_two_at_most() {
    if is_excluded("locks::a_copy_comes_first_where_there_are_no_transactions") {
        return;
    }
    let bench = Bench::with(json!({}), &["--sku", "Basic"]);
    let leased = bench.leased("first").await;
    let fault = bench.emulator.plant_with("send", "hold", json!({ "times": null }));
    for copies in 1..=2 {
        let putting = bench.putting_back(&leased);
        until(|| fault.hits() == copies).await;
        putting.abort();
        assert!(putting.await.unwrap_err().is_cancelled());
    }
    let third = timeout(SOON, bench.update(&leased.message, put_back())).await.expect("nothing is sent");
    let error = third.unwrap_err();
    assert!(error.is_lease_lost(), "{error:?}");
    assert_eq!(fault.hits(), 2);
    assert_eq!(bench.count("scheduled"), 2);
}
