//! Messages that are held for longer than the ten minutes after which the service detaches an idle link.

use std::time::Duration;

use jobqueue::storage::{LeasedMessage, PutMessage, UpdateMessage};
use jobqueue_test_support::servicebus::is_excluded;
use serde_json::json;

use super::late_answers::pass;
use super::sessions::text;
use super::{Bench, MINUTE};

/// The time after which the service detaches an idle link.
const IDLE: Duration = Duration::from_secs(600);
const AS_THE_SERVICE: [&str; 2] = ["--link-idle-timeout", "600000"];
/// Shorter than a lock, and than the time of an idle link.
const STEP: Duration = Duration::from_secs(240);

fn settings(requires_session: bool, lock: &str) -> serde_json::Value {
    json!({ "LockDuration": lock, "MaxDeliveryCount": 2000, "RequiresSession": requires_session })
}

impl Bench {
    /// Renews a lock while forty minutes pass.
    async fn hold(&self, leased: &LeasedMessage) {
        for _ in 0..10 {
            self.emulator.advance(STEP);
            self.update(&leased.message, UpdateMessage::new(MINUTE)).await.unwrap();
        }
    }

    /// Lets four minutes pass for this process, and then for the emulator; `in_between` makes a request.
    async fn pass(&self, in_between: impl AsyncFn()) {
        // Longer, and the connection would be given up, on which nothing has come.
        for _ in 0..10 {
            pass(STEP / 10).await;
            in_between().await;
        }
        self.emulator.advance(STEP);
    }
}

// The link is detached, and the message is completed by a request.
#[tokio::test]
async fn a_message_outlives_the_link_by_which_it_came() {
    let bench = Bench::with(settings(false, "PT5M"), &AS_THE_SERVICE);
    let leased = bench.leased("long").await;
    bench.hold(&leased).await;
    bench.delete(&leased.message).await.unwrap();
    assert_eq!(bench.emulator.calls("update-disposition", "work", 1), 1);
    assert_eq!(bench.count("active"), 0);
    // The next one comes over a new link.
    bench.put(PutMessage::new("next")).await.unwrap();
    assert_eq!(text(&bench.get().await.unwrap()), "next");
}

// The session would end with its link.
#[tokio::test]
async fn the_link_of_a_held_session_is_not_idle() {
    let bench = Bench::with(settings(true, "PT5M"), &AS_THE_SERVICE);
    bench.put_in("a", "long").await;
    let leased = bench.next().await;
    bench.hold(&leased).await;
    assert!(10 * STEP > 3 * IDLE);
    bench.delete(&leased.message).await.unwrap();
    assert_eq!(bench.count("active"), 0);
}

// The same while the session is held until a delay is over.
#[tokio::test]
async fn the_link_of_a_delayed_session_is_not_idle() {
    if is_excluded("long_held::the_link_of_a_delayed_session_is_not_idle") {
        return;
    }
    let bench = Bench::with(settings(true, "PT5M"), &AS_THE_SERVICE);
    for text in ["first", "second"] {
        bench.put_in("a", text).await;
    }
    let leased = bench.next().await;
    bench.update(&leased.message, UpdateMessage::new(2 * MINUTE * 60).ending_lease()).await.unwrap();
    for round in 0..4 {
        let look = async || {
            // Requests that wait for the emulator's time are given up by that of this process.
            while let Err(error) = bench.store().peek(&bench.queue, 1).await {
                assert!(error.is_retryable(), "{error:?}");
            }
        };
        bench.pass(look).await;
        bench.emulator.calls("renew-session-lock", "work", round + 1);
    }
    let messages = bench.emulator.queue("work")["messages"].clone();
    // A gateway shows what a peek of the namespace shows, which has no locks.
    let is_locked = bench.emulator.is_gateway() || messages[0]["lockedUntil"].is_number();
    assert!(is_locked, "the session was lost: {messages}");
}

// The service may drop its lock with the link. Locks are renewed over another connection.
#[tokio::test]
async fn the_link_of_a_message_in_hand_is_not_idle() {
    if is_excluded("long_held::the_link_of_a_message_in_hand_is_not_idle") {
        return;
    }
    let arguments = [&AS_THE_SERVICE[..], &["--locks-end-with-links", "true"]].concat();
    let bench = Bench::with(settings(false, "PT5M"), &arguments);
    let leased = bench.leased("long").await;
    let apart = bench.storage.detached();
    let renew = async || {
        let change = UpdateMessage::new(MINUTE);
        apart.queues().update(&bench.queue, &leased.message, change).await.unwrap();
        // Something passes on the connection, and not on the link.
        drop(bench.store().peek(&bench.queue, 1).await.unwrap());
    };
    let peeks = |in_hand| in_hand + bench.emulator.calls("peek-message", "work", 0);
    for _ in 0..4 {
        let before = peeks(10);
        bench.pass(&renew).await;
        bench.emulator.calls("peek-message", "work", before + 1);
    }
    bench.delete(&leased.message).await.unwrap();
    assert_eq!(bench.emulator.calls("complete", "work", 0), 1);
    assert_eq!(bench.count("active"), 0);
}
