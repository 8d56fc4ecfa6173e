//! Messages that are held for longer than the ten minutes after which the service detaches an idle link.

use std::time::Duration;

use jobqueue::Storage;
use jobqueue::storage::{LeasedMessage, PutMessage, UpdateMessage};
use jobqueue_test_support::servicebus::is_excluded;
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::sessions::text;
use super::{Bench, MINUTE, options};

/// The time after which the service detaches an idle link.
const IDLE: Duration = Duration::from_secs(600);
const AS_THE_SERVICE: [&str; 2] = ["--link-idle-timeout", "600000"];
/// Shorter than a lock, and than the time of an idle link.
const STEP: Duration = Duration::from_secs(240);

fn settings(requires_session: bool, lock: &str) -> serde_json::Value {
    json!({ "LockDuration": lock, "MaxDeliveryCount": 2000, "RequiresSession": requires_session })
}

impl Bench {
    /// Waits until the links of the queue have shown that they are in use.
    async fn shows_use(&self) {
        let flows = || self.emulator.frames()["flows"].as_u64().unwrap();
        let before = flows();
        let shown = async {
            while flows() < before + 2 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(MINUTE, shown).await.expect("no link shows that it is in use");
    }

    /// Renews a lock while forty minutes pass; before each step calls `wait`.
    async fn hold(&self, leased: &LeasedMessage, wait: impl AsyncFn()) {
        for _ in 0..10 {
            wait().await;
            self.emulator.advance(STEP);
            self.update(&leased.message, UpdateMessage::new(MINUTE)).await.unwrap();
        }
    }
}

// The link is detached, and the message is completed by a request.
#[tokio::test]
async fn a_message_outlives_the_link_by_which_it_came() {
    let bench = Bench::with(settings(false, "PT5M"), &AS_THE_SERVICE);
    let leased = bench.leased("long").await;
    bench.hold(&leased, async || {}).await;
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
    let mut bench = Bench::with(settings(true, "PT5M"), &AS_THE_SERVICE);
    bench.storage = Storage::from(
        options(&bench.emulator).keep_alive(Duration::from_millis(50)).with_blobs_of(&bench.blobs),
    );
    bench.put_in("a", "long").await;
    let leased = bench.next().await;
    bench.hold(&leased, async || bench.shows_use().await).await;
    assert!(10 * STEP > 3 * IDLE);
    bench.delete(&leased.message).await.unwrap();
    assert_eq!(bench.count("active"), 0);
}

// The same while the session is held until a delay is over. Nobody renews its lock in the time of the emulator, so the longest lock outlasts a
// shorter idle time.
#[tokio::test]
async fn the_link_of_a_delayed_session_is_not_idle() {
    if is_excluded("long_held::the_link_of_a_delayed_session_is_not_idle") {
        return;
    }
    let mut bench = Bench::with(settings(true, "PT5M"), &["--link-idle-timeout", "60000"]);
    bench.storage = Storage::from(
        options(&bench.emulator).keep_alive(Duration::from_millis(50)).with_blobs_of(&bench.blobs),
    );
    for text in ["first", "second"] {
        bench.put_in("a", text).await;
    }
    let leased = bench.next().await;
    bench.update(&leased.message, UpdateMessage::new(2 * MINUTE * 60).ending_lease()).await.unwrap();
    for _ in 0..4 {
        bench.shows_use().await;
        bench.emulator.advance(MINUTE / 2);
    }
    let messages = bench.emulator.queue("work")["messages"].clone();
    assert!(messages[0]["lockedUntil"].is_number(), "the session was lost: {messages}");
}
