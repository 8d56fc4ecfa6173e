//! Counts of the service that are too low: a count of 0 is no proof that a queue is empty.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::clock::ManualClock;
use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::sharded::Sharded;
use jobqueue::storage::{ContainerName, PutMessage};
use jobqueue::{Runtime, SendOptions, Storage, memory};
use jobqueue_test_support::servicebus::{Fault, is_excluded};
use serde_json::json;

use super::jobs::{Work, kill, work};
use super::{Bench, MINUTE, later};

impl Bench {
    fn miscount(&self) -> Fault<'_> {
        self.emulator.plant_with("http-get", "miscount", json!({ "times": null }))
    }
}

// The payload of a job that waited, and of a dead letter, was deleted.
#[tokio::test]
async fn payloads_stay_while_a_queue_that_counts_as_empty_has_a_message() {
    if is_excluded("miscounts::payloads_stay_while_a_queue_that_counts_as_empty_has_a_message") {
        return;
    }
    for is_dead in [false, true] {
        let clock = Arc::new(ManualClock::new());
        let bench = Bench::with_blobs(memory::open_on(Runtime::new().with_clock(clock.clone())));
        let queue = bench.storage.queue::<Work>().await.unwrap();
        let delay = if is_dead { Duration::ZERO } else { MINUTE };
        queue.send(&work(&"x".repeat(100_000))).with(SendOptions::new().delay(delay)).await.unwrap();
        if is_dead {
            kill(&queue, "no").await;
        }
        let fault = bench.miscount();
        let options = SweepOptions::new().drained_queues(true);
        clock.advance(Duration::from_secs(30 * 86_400));
        let _ = sweep(&bench.storage, options).await.unwrap();
        let container = ContainerName::new("jobqueue-payloads").unwrap();
        let left = bench.blobs.blobs().list_blobs(&container, "", None).await.unwrap().blobs;
        assert_eq!(left.len(), 1, "a dead letter: {is_dead}");
        assert!(fault.hits() > 0);
        fault.remove();
    }
}

// It was deleted with the shard in which it waited for the end of its delay, which no look at visible messages shows.
#[tokio::test]
async fn a_former_shard_that_counts_as_empty_keeps_its_delayed_message() {
    if is_excluded("miscounts::a_former_shard_that_counts_as_empty_keeps_its_delayed_message") {
        return;
    }
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
    let fault = bench.miscount();
    assert_eq!(open(&later(&bench.storage, 60 * MINUTE)).retire(&bench.queue).await.unwrap(), 2);
    fault.remove();
    let properties = storage.queues().queue_properties(&bench.queue).await.unwrap();
    assert_eq!(properties.approximate_count, 2);
}
