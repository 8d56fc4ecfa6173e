//! Messages of jobs in order that have ended: of a done one none becomes a dead letter, and a cancelled one
//! is not done.

use std::time::Duration;

use jobqueue::batch::OnDeadLetters;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::settings::Metadata;
use jobqueue::storage::{BlobName, ContainerName, Operation, PutBlob, StoreErrorKind};
use jobqueue::{Context, JobError, Queue, QueueMessage, Reason, SendOptions, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{after, worker};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::order::records::{MINUTE, run, steps};
use crate::order::{Step, Watch, handle, logged, step};

/// Returns a storage with the message of a job that is done: its deletions got no answer, and its worker is
/// gone.
async fn done_but_stored() -> (Storage, Queue<Step>) {
    let storage = logged();
    let faulty = Faulty::new(&storage);
    for operation in [Operation::Delete, Operation::DeleteAll] {
        faulty.plan_always(operation, Fault::LoseRequest(StoreErrorKind::Timeout));
    }
    let queue = steps(&storage).await;
    queue.send(&step("a", 0)).with(SendOptions::new().in_order().id("first")).await.unwrap();
    let watch = Watch::default();
    run(&faulty.storage(), &watch, 1).await;
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
    let once = Metadata::new().with("maxdeliveries", "1");
    storage.queues().set_queue_metadata(queue.name(), &once).await.unwrap();
    sleep(MINUTE * 60).await;
    (storage, queue)
}

/// Asserts that the message is gone, and that the job is still known to be done.
async fn assert_done(queue: &Queue<Step>) {
    assert_eq!(queue.dead_letters().unwrap().approximate_len().await.unwrap(), 0, "a done job is a letter");
    assert!(queue.is_empty().await.unwrap());
    let again = queue.send(&step("a", 0)).with(SendOptions::new().in_order().id("first")).await.unwrap();
    assert!(again.was_done());
}

#[tokio::test(start_paused = true)]
async fn message_of_a_done_job_in_order_is_no_dead_letter() {
    let (storage, queue) = done_but_stored().await;
    let built = worker(&storage).state(Watch::default()).handle(handle).build().unwrap();
    let report = built.run_until(sleep(MINUTE * 10)).await.unwrap();
    assert_eq!((report.dead_lettered, report.duplicates), (0, 1), "{report:?}");
    assert_done(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn message_of_a_done_job_that_is_received_by_hand_is_no_dead_letter() {
    let (_storage, queue) = done_but_stored().await;
    assert!(queue.receive(Duration::from_secs(60)).await.unwrap().is_none());
    assert_done(&queue).await;
}

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "pages", kind = "page")]
struct Page {
    #[message(key)]
    of: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "books", kind = "book")]
struct Book {}

/// Returns a storage with a batch of one child whose job was cancelled by another sender. The two had
/// announced it before either was stored.
async fn cancelled_child(policy: OnDeadLetters) -> Storage {
    let faulty = Faulty::new(&logged());
    let storage = faulty.storage();
    let queue = storage.queue::<Page>().await.unwrap();
    let (page, same) = (Page { of: "k".into() }, SendOptions::new().in_order().id("17").source("/shop"));
    faulty.plan(Operation::Put, 1, Fault::DelayBefore(Duration::from_secs(5)));
    let mut batch = storage.batch("b").await.unwrap();
    batch.on_dead_letters(policy);
    let send_child = async {
        sleep(Duration::from_secs(1)).await;
        batch.send(&page).with(same.clone()).await.unwrap();
        batch.then(&Book {}).await.unwrap();
    };
    let (sent, ()) = tokio::join!(queue.send(&page).with(same.clone()), send_child);
    assert!(queue.cancel(&sent.unwrap()).await.unwrap_err().is_outcome_unknown(), "it was sent twice");
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
    storage
}

/// Runs the storage's jobs, and returns the reasons of the child's failure that the continuation has found,
/// if it has run.
async fn failures(storage: &Storage) -> Option<Vec<Option<Reason>>> {
    let (found, mut read) = tokio::sync::mpsc::unbounded_channel();
    let page = async |_: Page| -> Result<(), JobError> { panic!("a cancelled job runs") };
    let book = move |_: Book, ctx: Context| {
        let found = found.clone();
        async move {
            let results = ctx.batch_results::<()>().await?;
            let reasons = results.into_iter().map(|child| child.outcome.err().map(|failed| failed.reason));
            found.send(reasons.collect()).unwrap();
            Ok::<_, JobError>(())
        }
    };
    let built = worker(storage).handle(page).handle(book).build().unwrap();
    let report = built.run_until(after(1_200)).await.unwrap();
    assert_eq!((report.duplicates, report.dead_lettered), (1, 0), "{report:?}");
    read.recv().await
}

#[tokio::test(start_paused = true)]
async fn cancelled_child_does_not_count_as_done() {
    let waits = cancelled_child(OnDeadLetters::Wait).await;
    assert_eq!(failures(&waits).await, None, "the batch goes on without the work of its child");
    let continues = cancelled_child(OnDeadLetters::Continue).await;
    assert_eq!(failures(&continues).await, Some(vec![Some(Reason::CANCELLED)]));
}

/// Runs the storage's jobs for two hours, and returns the reasons of the dead letters.
async fn reasons(storage: &Storage) -> Vec<Reason> {
    let page = async |_: Page| Ok::<_, JobError>(());
    let built = worker(storage).handle(page).build().unwrap();
    let _ = built.run_until(after(7_200)).await.unwrap();
    let letters =
        storage.queue::<Page>().await.unwrap().dead_letters().unwrap().list().await.unwrap().letters;
    letters.into_iter().map(|letter| letter.reason).collect()
}

async fn damage(storage: &Storage, name: &str) -> BlobName {
    let blob = BlobName::new(ContainerName::new("jobqueue-batches").unwrap(), name).unwrap();
    storage.blobs().put_blob(&blob, "{".into(), PutBlob::new()).await.unwrap();
    blob
}

#[tokio::test(start_paused = true)]
async fn dead_letter_of_a_cancelled_child_says_so_although_its_batch_is_damaged() {
    let storage = cancelled_child(OnDeadLetters::Continue).await;
    damage(&storage, "b/plan").await;
    assert_eq!(reasons(&storage).await, [Reason::CANCELLED]);
}

#[tokio::test(start_paused = true)]
async fn child_that_is_done_does_not_fail_although_its_batch_is_damaged() {
    let storage = logged();
    let queue = storage.queue::<Page>().await.unwrap();
    let (page, same) = (Page { of: "k".into() }, SendOptions::new().in_order().id("17").source("/shop"));
    queue.send(&page).with(same.clone()).await.unwrap();
    let mut batch = storage.batch("b").await.unwrap();
    batch.on_dead_letters(OnDeadLetters::Continue);
    batch.send(&page).with(same).await.unwrap();
    let damaged = damage(&storage, "b/handover/0000000000").await;
    assert_eq!(reasons(&storage).await, [Reason::COORDINATION_FAILED]);
    assert_eq!(storage.batch_progress("b").await.unwrap().unwrap().failed, 0);
    storage.blobs().delete_blob(&damaged, None).await.unwrap();
    let _ = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert!(reasons(&storage).await.is_empty());
    assert_eq!(storage.batch_progress("b").await.unwrap().unwrap().done, 1);
}

/// Its letter is redriven when another sender's job has done its work.
#[tokio::test(start_paused = true)]
async fn failed_child_whose_work_another_job_has_done_counts_as_done() {
    let storage = logged();
    let queue = storage.queue::<Page>().await.unwrap();
    let (page, same) = (Page { of: "k".into() }, SendOptions::new().in_order().id("17").source("/shop"));
    let mut batch = storage.batch("b").await.unwrap();
    batch.on_dead_letters(OnDeadLetters::Continue);
    batch.send(&page).with(same.clone()).await.unwrap();
    let reject = async |_: Page| Err::<(), _>(JobError::dead_letter("planted"));
    let _ = worker(&storage).handle(reject).build().unwrap().run_until(after(60)).await.unwrap();
    assert_eq!(storage.batch_progress("b").await.unwrap().unwrap().failed, 1);

    queue.send(&page).with(same).await.unwrap();
    let accept = async |_: Page| Ok::<_, JobError>(());
    let accepting = || worker(&storage).handle(accept).build().unwrap();
    assert_eq!(accepting().run_until(after(60)).await.unwrap().completed, 1);
    let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.moved.len(), 1);
    assert_eq!(accepting().run_until(after(60)).await.unwrap().duplicates, 1);
    let progress = storage.batch_progress("b").await.unwrap().unwrap();
    assert_eq!((progress.done, progress.failed), (1, 0), "{progress:?}");
}
