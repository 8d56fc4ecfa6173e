//! Payloads in blobs while the storage does not say what it has applied: a repeated change writes few of
//! them, and none that a message needs is deleted.

use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::storage::{BlobName, Operation, PutBlob, PutMessage, StoreErrorKind};
use jobqueue::{Error, JobError};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, payloads, worker};
use serde_json::Value;
use tokio::time::timeout;

use super::redrive::{finish_all, large, lengths, reject_all};

/// The answer of a busy storage, which does not say whether the request was applied.
const BUSY: Fault = Fault::LoseRequest(StoreErrorKind::Throttled);

#[tokio::test(start_paused = true)]
async fn throttled_send_writes_its_payload_at_most_three_times() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    for nth in 1..=5 {
        faulty.plan(Operation::Put, nth, BUSY);
    }
    let _ = queue.send(&large("a")).await.unwrap();
    assert_eq!(payloads(&storage).await, 3);
    assert_eq!(finish_all(&storage).await, (1, 1));
}

#[tokio::test(start_paused = true)]
async fn message_that_shares_its_payload_leaves_it_to_the_other() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    for nth in 1..=2 {
        faulty.plan(Operation::Put, nth, BUSY);
    }
    faulty.plan(Operation::Put, 3, Fault::DropAnswer(StoreErrorKind::Throttled));
    let _ = queue.send(&large("a")).await.unwrap();
    assert_eq!(lengths(&queue).await.0, 2, "two messages of one job");
    let first = queue.receive(Duration::from_secs(60)).await.unwrap().unwrap();
    first.complete().await.unwrap();
    assert_eq!(finish_all(&storage).await, (1, 1), "the second has its payload");
    assert_eq!(lengths(&queue).await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn refused_message_of_a_send_in_doubt_leaves_no_payload() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    faulty.plan(Operation::Put, 1, BUSY);
    faulty.plan(Operation::Put, 2, Fault::Refuse(StoreErrorKind::Unauthorized));
    assert!(queue.send(&large("a")).await.unwrap_err().is_outcome_unknown());
    assert_eq!(payloads(&storage).await, 1, "that of the first message, which may be stored");
}

/// Only a request for the first message of each job may have been applied.
// review 34 c, B2: they were deleted one after the other, with a time limit for each.
#[tokio::test(start_paused = true)]
async fn second_payloads_of_a_refused_list_are_deleted_within_one_time_limit() {
    for deletions_hang in [false, true] {
        let faulty = Faulty::new(&in_memory());
        let storage = faulty.storage();
        let queue = storage.queue::<Task>().await.unwrap();
        faulty.plan(Operation::PutAll, 1, BUSY);
        faulty.plan(Operation::PutAll, 2, Fault::Refuse(StoreErrorKind::Unauthorized));
        if deletions_hang {
            faulty.plan_always(Operation::DeleteBlob, Fault::Hang);
        }
        let tasks: Vec<_> = (0..8).map(|number: u32| large(&number.to_string())).collect();
        let sending = timeout(Duration::from_secs(20), queue.send_all(&tasks).into_future());
        let sent = sending.await.expect("the answers are known").unwrap();
        assert!(sent.iter().all(|sent| sent.as_ref().is_err_and(Error::is_outcome_unknown)), "{sent:?}");
        assert_eq!(faulty.calls_of(Operation::PutAll), 2);
        let left = if deletions_hang { 16 } else { 8 };
        assert_eq!(payloads(&storage).await, left, "those of the first messages remain");
    }
}

#[tokio::test(start_paused = true)]
async fn rejected_send_leaves_no_payload_whose_upload_got_no_answer() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&large("a")).await.unwrap();
    for is_list in [false, true] {
        faulty.plan(Operation::PutBlob, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
        faulty.plan(Operation::PutBlob, 2, Fault::LoseRequest(StoreErrorKind::Timeout));
        let error = match is_list {
            true => queue.send_all(&[large("b")]).await.unwrap().into_result().unwrap_err(),
            false => queue.send(&large("b")).await.unwrap_err(),
        };
        assert!(error.is_rejected(), "{error}");
        assert_eq!(payloads(&storage).await, 1, "that of the first job");
    }
}

#[tokio::test(start_paused = true)]
async fn dead_letter_that_is_put_again_and_again_has_two_copies_of_its_payload() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&large("a")).await.unwrap();
    faulty.plan_always(Operation::Put, BUSY);
    let reject = async |seconds: u64| {
        let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("planted"));
        let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(seconds)).await.unwrap();
    };
    reject(600).await;
    let puts = faulty.calls().into_iter().filter(|call| call.subject == "tasks-poison");
    assert!(puts.filter(|call| call.operation == Operation::Put).count() >= 3);
    assert_eq!(payloads(&storage).await, 3, "of the message, of the first letter and of all others");
    faulty.heal();
    reject(900).await;
    // A letter of an earlier delivery might refer to the payload of the message.
    assert_eq!((lengths(&queue).await, payloads(&storage).await), ((0, 1), 3));
    let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.moved.len(), 1, "{redriven:?}");
    assert_eq!((finish_all(&storage).await, payloads(&storage).await), ((1, 1), 2));
}

#[tokio::test(start_paused = true)]
async fn throttled_redrive_writes_a_payload_at_most_three_times() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&large("a")).await.unwrap();
    reject_all(&storage).await;
    for nth in 1..=5 {
        faulty.plan(Operation::Put, nth, BUSY);
    }
    let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.moved.len(), 1, "{redriven:?}");
    assert_eq!(payloads(&storage).await, 3);
    assert_eq!(finish_all(&storage).await, (1, 1));
}

/// Two letters of one end have the same blob: a copy of that of their message or, if it was damaged then,
/// that of the message itself. The first letter is claimed, and its put is refused.
#[tokio::test(start_paused = true)]
async fn copy_of_a_letter_leaves_the_payload_that_both_have() {
    for was_damaged in [false, true] {
        let faulty = Faulty::new(&in_memory());
        let storage = faulty.storage();
        let queue = storage.queue::<Task>().await.unwrap();
        let _ = queue.send(&large("a")).await.unwrap();
        if was_damaged {
            let container = "jobqueue-payloads".parse().unwrap();
            let listed = storage.blobs().list_blobs(&container, "", None).await.unwrap().blobs;
            let name = BlobName::new(container, listed[0].0.clone()).unwrap();
            let sent = storage.blobs().get_blob(&name, 1_000_000).await.unwrap().data;
            storage.blobs().put_blob(&name, "damaged".into(), PutBlob::new()).await.unwrap();
            reject_all(&storage).await;
            storage.blobs().put_blob(&name, sent, PutBlob::new()).await.unwrap();
        } else {
            reject_all(&storage).await;
        }
        let letters = queue.name().dead_letter().unwrap();
        let first = storage.queues().peek(&letters, 1).await.unwrap().remove(0).text.unwrap();
        let mut second: Value = serde_json::from_str(&first).unwrap();
        second["deadlettertime"] = "2030-01-01T00:00:00Z".into();
        let _ = storage.queues().put(&letters, PutMessage::new(second.to_string())).await.unwrap();

        faulty.plan_always(Operation::Put, Fault::Refuse(StoreErrorKind::Unavailable));
        let refused = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
        assert_eq!((refused.skipped.len(), refused.copies), (1, 1), "{refused:?}");
        faulty.heal();
        let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
        assert_eq!(redriven.moved.len(), 1, "{was_damaged}: {redriven:?}");
        assert_eq!(finish_all(&storage).await, (1, 1), "{was_damaged}");
    }
}
