//! Answers of the management API that are wrong: a count of 0 is no proof that a queue is empty, and 404 none
//! that it is missing.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::clock::ManualClock;
use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::sharded::Sharded;
use jobqueue::storage::{ContainerName, GetMessages, Metadata, PutMessage, StoreErrorKind};
use jobqueue::{Runtime, SendOptions, Storage, memory};
use jobqueue_test_support::servicebus::{Fault, is_excluded};
use serde_json::json;

use super::jobs::{Work, kill, work};
use super::{Bench, MINUTE, later};

/// Wrong answers to each question for a queue: that it has no messages; that there is none, by the service
/// and by a gateway on the way.
const LIES: [(&str, u16); 3] = [("miscount", 200), ("error", 404), ("page", 404)];

impl Bench {
    fn lie(&self, operation: &str, (action, status): (&str, u16)) -> Fault<'_> {
        self.emulator.plant_with(operation, action, json!({ "times": null, "status": status }))
    }
}

// The payload of a job that waited, and of a dead letter, was deleted.
#[tokio::test]
async fn payloads_stay_while_a_queue_that_counts_as_empty_has_a_message() {
    if is_excluded("miscounts::payloads_stay_while_a_queue_that_counts_as_empty_has_a_message") {
        return;
    }
    for (lie, is_dead) in LIES.into_iter().flat_map(|lie| [(lie, false), (lie, true)]) {
        let clock = Arc::new(ManualClock::new());
        let bench = Bench::with_blobs(memory::open_on(Runtime::new().with_clock(clock.clone())));
        let queue = bench.storage.queue::<Work>().await.unwrap();
        let delay = if is_dead { Duration::ZERO } else { MINUTE };
        queue.send(&work(&"x".repeat(100_000))).with(SendOptions::new().delay(delay)).await.unwrap();
        if is_dead {
            kill(&queue, "no").await;
        }
        let fault = bench.lie("http-get", lie);
        let options = SweepOptions::new().drained_queues(true);
        clock.advance(Duration::from_secs(30 * 86_400));
        let swept = sweep(&bench.storage, options).await;
        assert!(swept.is_ok() || lie.0 != "miscount", "{swept:?}");
        let container = ContainerName::new("jobqueue-payloads").unwrap();
        let left = bench.blobs.blobs().list_blobs(&container, "", None).await.unwrap().blobs;
        assert_eq!(left.len(), 1, "{lie:?}, a dead letter: {is_dead}");
        assert!(fault.hits() > 0);
        fault.remove();
    }
}

// The count, which was too low, proved that no letter was missing: the payloads of those that another process
// held were deleted.
#[tokio::test]
async fn payloads_stay_while_another_process_holds_a_dead_letter() {
    if is_excluded("miscounts::payloads_stay_while_another_process_holds_a_dead_letter") {
        return;
    }
    let clock = Arc::new(ManualClock::new());
    let bench = Bench::with_blobs(memory::open_on(Runtime::new().with_clock(clock.clone())));
    let queue = bench.storage.queue::<Work>().await.unwrap();
    for _ in 0..3 {
        queue.send(&work(&"x".repeat(100_000))).await.unwrap();
        kill(&queue, "no").await;
    }
    let dead = bench.queue.dead_letter().unwrap();
    let another = bench.another();
    let held = another.queues().get(&dead, GetMessages::new(1, MINUTE)).await.unwrap();
    assert_eq!(held.messages.len(), 1);
    let fault = bench.lie("http-get", LIES[0]);
    clock.advance(Duration::from_secs(30 * 86_400));
    let swept = sweep(&bench.storage, SweepOptions::new().drained_queues(true)).await.unwrap();
    assert_eq!(swept.removed, 0);
    let container = ContainerName::new("jobqueue-payloads").unwrap();
    let left = bench.blobs.blobs().list_blobs(&container, "", None).await.unwrap().blobs;
    assert_eq!(left.len(), 3);
    assert!(fault.hits() > 0);
}

// It was deleted with the shard in which it waited for the end of its delay, which no look at visible
// messages shows.
#[tokio::test]
async fn a_former_shard_that_counts_as_empty_keeps_its_delayed_message() {
    if is_excluded("miscounts::a_former_shard_that_counts_as_empty_keeps_its_delayed_message") {
        return;
    }
    for lie in LIES {
        let bench = Bench::new();
        let open = |storage: &Storage| {
            Sharded::builder().account("a", storage.clone()).shards("work", 2).build().unwrap()
        };
        let sharded = open(&bench.storage);
        let storage = Storage::from(sharded.stores());
        storage.queues().create_queue(&bench.queue, &Default::default()).await.unwrap();
        for number in 0..2 {
            let delayed = PutMessage::new(number.to_string()).with_visibility_delay(60 * MINUTE);
            storage.queues().put(&bench.queue, delayed).await.unwrap();
        }
        sharded.reshard(&bench.queue, 3).await.unwrap();
        let fault = bench.lie("http-get", lie);
        if let Ok(left) = open(&later(&bench.storage, 60 * MINUTE)).retire(&bench.queue).await {
            assert_eq!(left, 2);
        }
        assert!(fault.hits() > 0);
        fault.remove();
        let properties = storage.queues().queue_properties(&bench.queue).await.unwrap();
        assert_eq!(properties.approximate_count, 2, "{lie:?}");
    }
}

// Its settings were emptied, or a former shard with messages was forgotten.
#[tokio::test]
async fn queue_whose_deletion_a_gateway_answers_is_not_taken_for_deleted() {
    let bench = Bench::new();
    let settings = Metadata::new().with("maxattempts", "3");
    bench.store().set_queue_metadata(&bench.queue, &settings).await.unwrap();
    for answer in [("error", 404), ("page", 404), ("page", 200)] {
        let fault = bench.lie("http-delete", answer);
        let error = bench.store().delete_queue(&bench.queue).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{answer:?}: {error:?}");
        assert!(error.is_ambiguous(), "{answer:?}");
        fault.remove();
        let properties = bench.store().queue_properties(&bench.queue).await.unwrap();
        assert_eq!(properties.metadata, settings, "{answer:?}");
    }
}

// It was taken for a queue without sessions.
#[tokio::test]
async fn queue_with_sessions_is_received_from_while_a_gateway_denies_it() {
    for lie in [("error", 404), ("page", 404)] {
        let bench = Bench::with(json!({ "RequiresSession": true }), &[]);
        bench.put(PutMessage::new("a")).await.unwrap();
        let fault = bench.lie("http-get", lie);
        assert!(bench.get_from(&bench.another()).await.is_some(), "{lie:?}");
        fault.remove();
    }
}
