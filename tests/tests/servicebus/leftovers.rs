//! Texts in blobs that crashes have left behind, and the sweep that removes them.

use std::time::{Duration, SystemTime};

use jobqueue::QueueName;
use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::storage::{
    ContainerName, DeadLetterCause, DeadLetterMessage, GetMessages, PutMessage, SweepLeftovers, UpdateMessage,
};
use jobqueue_test_support::servicebus::is_excluded;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{Bench, MINUTE, later};

const DAYS: Duration = Duration::from_secs(3 * 86_400);

impl Bench {
    pub(super) async fn texts(&self) -> Vec<String> {
        let container = ContainerName::new("jobqueue-servicebus").unwrap();
        let page = self.blobs.blobs().list_blobs(&container, "texts/", None).await.unwrap();
        page.blobs.into_iter().map(|(name, _)| name).collect()
    }

    /// Returns the storage as if it were days later.
    pub(super) fn storage_later(&self) -> jobqueue::Storage {
        later(&self.storage, DAYS)
    }

    /// Sweeps as if it were days later; returns how many blobs were removed.
    async fn sweep(&self, dry: bool) -> u64 {
        sweep(&self.storage_later(), SweepOptions::new().dry_run(dry)).await.unwrap().removed
    }
}

/// Returns a letter for whose text a property has no room.
fn letter() -> DeadLetterMessage {
    DeadLetterMessage::new("x".repeat(30_000), DeadLetterCause::new("rejected"))
}

#[tokio::test]
async fn texts_that_a_message_or_a_dead_letter_needs_stay() {
    let bench = Bench::new();
    let waiting = bench.leased("waiting").await;
    let save = || UpdateMessage::new(MINUTE).with_text("step 1".to_owned());
    bench.update(&waiting.message, save()).await.unwrap();
    let dead = bench.leased("dead").await;
    bench.store().dead_letter(&bench.queue, &dead.message, letter()).await.unwrap();
    assert_eq!(bench.texts().await.len(), 2);
    assert_eq!(bench.sweep(false).await, 0);
    bench.emulator.advance(MINUTE);
    assert_eq!(bench.sweep(false).await, 0);
    assert_eq!(bench.get().await.unwrap().text.as_deref(), Ok("step 1"));
}

// A peek at a partitioned queue shows one partition, and its messages say that there are others.
#[tokio::test]
async fn texts_of_a_partitioned_queue_stay() {
    let bench = Bench::with(json!({ "EnablePartitioning": true }), &[]);
    for number in 0..4 {
        let leased = bench.leased(&number.to_string()).await;
        let save = UpdateMessage::new(MINUTE).with_text("step 1".to_owned());
        bench.update(&leased.message, save).await.unwrap();
        let dead = bench.leased(&number.to_string()).await;
        bench.store().dead_letter(&bench.queue, &dead.message, letter()).await.unwrap();
    }
    bench.emulator.advance(MINUTE);
    assert_eq!(bench.sweep(false).await, 0);
    for status in [401, 500] {
        let fault =
            bench.emulator.plant_with("http-get", "error", json!({ "status": status, "times": null }));
        assert_eq!(bench.sweep(false).await, 0, "{status}");
        assert!(fault.hits() > 0);
        fault.remove();
    }
    assert_eq!(bench.texts().await.len(), 8);
}

// A message that cannot be decoded does not say which text it has.
#[tokio::test]
async fn texts_stay_while_a_message_cannot_be_decoded() {
    if is_excluded("leftovers::texts_stay_while_a_message_cannot_be_decoded") {
        return;
    }
    let bench = Bench::new();
    let leased = bench.leased("a").await;
    bench.update(&leased.message, UpdateMessage::new(MINUTE).with_text("step 1".to_owned())).await.unwrap();
    bench.emulator.plant("send", "garble");
    bench.put(PutMessage::new("garbled")).await.unwrap();
    assert_eq!(bench.sweep(false).await, 0);
    assert_eq!(bench.texts().await.len(), 1);
}

#[tokio::test]
async fn texts_of_messages_that_are_gone_are_removed_after_the_grace() {
    let bench = Bench::new();
    let leased = bench.leased("a").await;
    bench.update(&leased.message, UpdateMessage::new(MINUTE).with_text("step 1".to_owned())).await.unwrap();
    // Another program completes the message, and knows nothing of the text.
    bench.emulator.advance(MINUTE);
    bench.store().clear(&bench.queue).await.unwrap();
    assert_eq!(bench.texts().await.len(), 1);
    let early = sweep(&bench.storage, SweepOptions::new()).await.unwrap();
    assert_eq!(early.removed, 0, "before the grace, and in a dry run");
    assert_eq!(bench.sweep(true).await, 1, "before the grace, and in a dry run");
    assert_eq!(bench.sweep(false).await, 1);
    assert_eq!(bench.texts().await.len(), 0);
}

// round 29, core 1: the texts of every queue were still removed.
#[tokio::test]
async fn sweep_that_is_stopped_removes_no_text() {
    let bench = Bench::new();
    let leased = bench.leased("a").await;
    bench.update(&leased.message, UpdateMessage::new(MINUTE).with_text("step 1".to_owned())).await.unwrap();
    bench.emulator.advance(MINUTE);
    bench.store().clear(&bench.queue).await.unwrap();
    let (old, stop) = (SystemTime::now() + DAYS, CancellationToken::new());
    stop.cancel();
    let swept = bench.store().sweep(SweepLeftovers::new(old).with_stop(stop)).await.unwrap();
    assert_eq!(swept.removed, 0);
    assert_eq!(bench.texts().await.len(), 1);
    let swept = bench.store().sweep(SweepLeftovers::new(old)).await.unwrap();
    assert_eq!(swept.removed, 1);
}

#[tokio::test]
async fn texts_of_a_deleted_queue_are_removed() {
    let bench = Bench::new();
    let leased = bench.leased("a").await;
    bench.update(&leased.message, UpdateMessage::new(MINUTE).with_text("step 1".to_owned())).await.unwrap();
    bench.store().delete_queue(&bench.queue).await.unwrap();
    assert_eq!(bench.sweep(false).await, 1);
    assert_eq!(bench.texts().await.len(), 0);
}

#[tokio::test]
async fn a_sweep_removes_nothing_while_the_queue_cannot_be_read() {
    let bench = Bench::new();
    let leased = bench.leased("a").await;
    bench.update(&leased.message, UpdateMessage::new(MINUTE).with_text("step 1".to_owned())).await.unwrap();
    bench.emulator.plant_with("peek-message", "error", json!({ "times": null }));
    let swept = sweep(&bench.storage_later(), SweepOptions::new()).await.unwrap();
    assert_eq!((swept.removed, swept.failed), (0, 1));
    assert_eq!(bench.texts().await.len(), 1);
}

// A busy service ended the sweep, and with it that of all queues behind.
#[tokio::test]
async fn sweep_waits_for_a_busy_service_and_goes_on_behind_a_queue_that_cannot_be_read() {
    let bench = Bench::new();
    let orphan = async |name: &str| {
        bench.emulator.create_queue(name, json!({}));
        let queue = QueueName::new(name).unwrap();
        let put = bench.store().put(&queue, PutMessage::new("a")).await.unwrap();
        let leased =
            bench.store().get(&queue, GetMessages::new(1, MINUTE)).await.unwrap().messages.pop().unwrap();
        assert_eq!(leased.message.id, put.message.id);
        let save = UpdateMessage::new(MINUTE).with_text("step 1".to_owned());
        bench.store().update(&queue, &leased.message, save).await.unwrap();
        // By another process, which has not saved the text.
        bench.emulator.advance(2 * MINUTE);
        bench.another().queues().clear(&queue).await.unwrap();
    };
    for name in ["busy", "broken", "idle"] {
        orphan(name).await;
    }
    assert_eq!(bench.texts().await.len(), 3);
    let broken = bench.emulator.plant_with("http-get", "error", json!({ "entity": "broken", "times": null }));
    let busy = bench.emulator.plant_with("peek-message", "busy", json!({ "entity": "busy", "times": 1 }));
    let swept = sweep(&bench.storage_later(), SweepOptions::new()).await.unwrap();
    assert_eq!((broken.hits() > 0, busy.hits()), (true, 1));
    assert_eq!((swept.removed, swept.failed), (2, 1));
    let left = bench.texts().await;
    assert!(left.len() == 1 && left[0].contains("broken"), "{left:?}");
}
