//! Payloads and checkpoints in blobs of jobs that a redrive puts back: the job and its dead letter each keep
//! their own.

use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::storage::{
    BlobName, ExpiredReceipt, GetMessages, Operation, PutBlob, PutMessage, StoreErrorKind,
};
use jobqueue::{Context, JobError};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, payloads, worker};
use serde_json::Value;

use super::redrive::{LARGE, finish_all, large, lengths, reject_all};

// B20
// I12a
#[tokio::test(start_paused = true)]
async fn purge_after_a_redrive_keeps_the_jobs_payload() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&large("a")).await.unwrap();
    reject_all(&storage).await;
    faulty.plan_always(Operation::Delete, Fault::Refuse(StoreErrorKind::Unavailable));
    let dead_letters = queue.dead_letters().unwrap();
    let redriven = dead_letters.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!((redriven.moved.len(), redriven.skipped.len()), (0, 1));
    assert!(redriven.skipped[0].maybe_moved);
    faulty.heal();
    assert_eq!(lengths(&queue).await, (1, 1));
    assert_eq!(dead_letters.purge(DeadLetterOptions::new().filter(|_| true)).await.unwrap().deleted.len(), 1);
    assert_eq!(finish_all(&storage).await, (1, 1));
    assert_eq!(payloads(&storage).await, 0);
}

// B20: the other way round.
// I12a
#[tokio::test(start_paused = true)]
async fn redriven_job_keeps_the_payload_of_its_dead_letter() {
    let near = in_memory();
    let faulty = Faulty::new(&near);
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&large("a")).await.unwrap();
    reject_all(&storage).await;
    let dead_letters = queue.dead_letters().unwrap();
    // Put back, and the answer is lost: what is put once more has a payload of its own.
    faulty.plan(Operation::Put, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    faulty.plan_always(Operation::Delete, Fault::Refuse(StoreErrorKind::Unavailable));
    let _ = dead_letters.redrive(DeadLetterOptions::new()).await.unwrap();
    faulty.heal();
    assert_eq!(lengths(&queue).await, (2, 1));
    // Next to the storage, so that one is done before the other begins: copies that begin at once both run.
    assert_eq!(finish_all(&near).await.1, 1, "the second is known to be a copy");
    let letter = dead_letters.list().await.unwrap().letters.remove(0);
    assert_eq!(dead_letters.message(&letter).await.unwrap().data.len(), LARGE);
    let redriven = dead_letters.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!((redriven.moved.len(), redriven.copies), (0, 1), "its job was put back before");
    assert_eq!(lengths(&queue).await, (0, 0));
}

// AU20-8: the command that the report tells to repeat made a second job.
#[tokio::test(start_paused = true)]
async fn repeated_redrive_puts_no_job_back_twice() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&large("a")).await.unwrap();
    reject_all(&storage).await;
    let letters = queue.dead_letters().unwrap();
    // Also one that another program has put there.
    storage.queues().put(letters.name(), PutMessage::new("no event")).await.unwrap();
    faulty.plan_always(Operation::Delete, Fault::LoseRequest(StoreErrorKind::Timeout));
    let redriven = letters.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!((redriven.moved.len(), redriven.skipped.len()), (0, 2), "{redriven:?}");
    faulty.heal();
    assert_eq!(lengths(&queue).await, (2, 2));
    let repeated = letters.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!((repeated.moved.len(), repeated.copies), (0, 2), "{repeated:?}");
    assert_eq!(lengths(&queue).await, (2, 0));
    // A letter of the same text that comes later is another one.
    storage.queues().put(letters.name(), PutMessage::new("no event")).await.unwrap();
    assert_eq!(letters.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
    assert_eq!(finish_all(&storage).await, (1, 1));
}

// L2
#[tokio::test(start_paused = true)]
async fn redrive_of_a_job_whose_checkpoint_is_damaged_keeps_the_dead_letter() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&large("a")).await.unwrap();
    let handler = async |_: Task, ctx: Context| {
        ctx.checkpoint(&"p".repeat(50_000)).await?;
        Err::<(), _>(JobError::dead_letter("planted"))
    };
    let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    let container = "jobqueue-payloads".parse().unwrap();
    let blobs = storage.blobs().list_blobs(&container, "", None).await.unwrap().blobs;
    let (checkpoint, _) = blobs.into_iter().find(|(_, blob)| blob.length < LARGE as u64).unwrap();
    let name = BlobName::new(container, checkpoint).unwrap();
    storage.blobs().put_blob(&name, "damaged".into(), PutBlob::new()).await.unwrap();
    let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!((redriven.moved.len(), redriven.skipped.len()), (0, 1), "{redriven:?}");
    assert_eq!((lengths(&queue).await, payloads(&storage).await), ((0, 1), 2));
}

// The payload is too large to be copied, so both letters of one end refer to the blob of their message. The
// first of them is claimed, and its put is refused.
#[tokio::test(start_paused = true)]
async fn copy_of_a_dead_letter_that_is_not_handled_leaves_their_payload() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&large("a")).await.unwrap();
    let (raw, letters) = (storage.queues(), queue.name().dead_letter().unwrap());
    let sent =
        raw.get(queue.name(), GetMessages::new(1, Duration::from_secs(1))).await.unwrap().messages.remove(0);
    let mut event: Value = serde_json::from_str(&sent.text.unwrap()).unwrap();
    event["datasize"] = (300 * 1024 * 1024).into();
    raw.delete(queue.name(), &sent.message, ExpiredReceipt::Allow).await.unwrap();
    let _ = raw.put(queue.name(), PutMessage::new(event.to_string())).await.unwrap();
    reject_all(&storage).await;
    let first = raw.peek(&letters, 1).await.unwrap().remove(0).text.unwrap();
    let mut second: Value = serde_json::from_str(&first).unwrap();
    second["deadlettertime"] = "2030-01-01T00:00:00Z".into();
    let _ = raw.put(&letters, PutMessage::new(second.to_string())).await.unwrap();

    faulty.plan_always(Operation::Put, Fault::Refuse(StoreErrorKind::Unavailable));
    let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.skipped.len(), 1, "{redriven:?}");
    assert_eq!(redriven.copies, 1, "{redriven:?}");
    assert_eq!(payloads(&storage).await, 1);
}
