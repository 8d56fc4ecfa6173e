//! Messages that cannot run, of children and continuations that are done: they are deleted.

use std::time::Duration;

use jobqueue::batch::OnDeadLetters;
use jobqueue::settings::Metadata;
use jobqueue::storage::{GetMessages, Operation, PutBlob, StoreErrorKind};
use jobqueue::{JobError, QueueMessage, Reason, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{after, in_memory, worker};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::{Log, Slice, blob, builder, fan_out, run, slice};

// The deletions got no answer, the worker that remembers the jobs is gone, and an operator has lowered the
// bound of deliveries.
#[tokio::test(start_paused = true)]
async fn message_of_a_child_that_is_done_is_no_dead_letter() {
    for undeleted in ["slices", "joins"] {
        let (storage, log) = (in_memory(), Log::default());
        let faulty = Faulty::deleting_one_by_one(&storage);
        faulty.on(Operation::Delete, move |call| {
            (call.subject == undeleted).then_some(Fault::LoseRequest(StoreErrorKind::Timeout))
        });
        fan_out(&faulty.storage(), 1, OnDeadLetters::Wait).await;
        run(&faulty.storage(), &log).await;
        assert_eq!(log.joins.lock().unwrap().len(), 1);
        let queue = undeleted.parse().unwrap();
        let once = Metadata::new().with("maxdeliveries", "1");
        storage.queues().set_queue_metadata(&queue, &once).await.unwrap();
        sleep(Duration::from_secs(3_600)).await;
        run(&storage, &log).await;
        let dead = storage.queue_named::<Slice>(undeleted).await.unwrap().dead_letters().unwrap();
        assert_eq!(dead.approximate_len().await.unwrap(), 0, "{undeleted}");
        assert_eq!(storage.queues().queue_properties(&queue).await.unwrap().approximate_count, 0);
        assert_eq!(log.runs.lock().unwrap().values().sum::<u32>(), 1);
    }
}

/// A worker of another release has a handler for this kind of the queue only.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "slices", kind = "slice.later")]
struct Later {}

async fn set(storage: &Storage, key: &str, value: &str) {
    let metadata = Metadata::new().with(key, value);
    storage.queues().set_queue_metadata(&"slices".parse().unwrap(), &metadata).await.unwrap();
}

// No worker knows its kind any more.
#[tokio::test(start_paused = true)]
async fn message_of_unknown_kind_of_a_child_that_is_done_is_no_dead_letter() {
    let (storage, log) = (in_memory(), Log::default());
    let faulty = Faulty::deleting_one_by_one(&storage);
    faulty.on(Operation::Delete, move |call| {
        (call.subject == "slices").then_some(Fault::LoseRequest(StoreErrorKind::Timeout))
    });
    fan_out(&faulty.storage(), 1, OnDeadLetters::Wait).await;
    run(&faulty.storage(), &log).await;
    assert_eq!(log.joins.lock().unwrap().len(), 1);
    set(&storage, "unknownkindseconds", "60").await;
    sleep(Duration::from_secs(3_600)).await;
    let later = async |_: Later| Ok::<_, JobError>(());
    let report = worker(&storage).handle(later).build().unwrap().run_until(after(1_200)).await.unwrap();
    assert_eq!((report.dead_lettered, report.duplicates), (0, 1), "{report:?}");
    assert!(storage.queue_named::<Slice>("slices").await.unwrap().is_empty().await.unwrap());
}

// The blob that says whether the child is done cannot be read.
#[tokio::test(start_paused = true)]
async fn dead_letter_of_a_child_keeps_its_reason_although_its_batch_is_damaged() {
    let (storage, log) = (in_memory(), Log::default());
    fan_out(&storage, 1, OnDeadLetters::Wait).await;
    let slices = storage.queue::<Slice>().await.unwrap();
    // The worker of the first delivery is gone.
    let minute = GetMessages::new(1, Duration::from_secs(60));
    assert_eq!(storage.queues().get(slices.name(), minute).await.unwrap().messages.len(), 1);
    set(&storage, "maxdeliveries", "1").await;
    storage.blobs().put_blob(&blob("b/0/00000000/00"), "{".into(), PutBlob::new()).await.unwrap();
    let built = builder(&storage, &log).handle(slice).build().unwrap();
    let report = built.run_until(after(7_200)).await.unwrap();
    assert_eq!(report.dead_lettered, 1, "{report:?}");
    let letters = slices.dead_letters().unwrap().list().await.unwrap().letters;
    assert_eq!(letters[0].reason, Reason::MAX_DELIVERIES);
}
