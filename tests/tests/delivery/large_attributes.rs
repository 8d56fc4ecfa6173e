//! Events whose attributes leave little or no room for the notes of deliveries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::settings::Metadata;
use jobqueue::storage::{ExpiredReceipt, GetMessages, Operation, PutMessage, StoreErrorKind};
use jobqueue::{Context, ErrorKind, JobError, SendOptions, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};
use serde_json::{Value, json};

use super::redrive::{finish_all, large, lengths};

/// Fails every attempt for some hours. Returns the number of handler runs.
async fn fail(storage: &Storage) -> u32 {
    let runs: Arc<AtomicU32> = Arc::default();
    let counted = Arc::clone(&runs);
    let handler = move |_: Task| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Err::<(), _>(JobError::retry("e".repeat(2_000))) }
    };
    let _ = worker(storage).handle(handler).build().unwrap().run_until(after(4 * 3_600)).await.unwrap();
    runs.load(Ordering::Relaxed)
}

/// Returns an event of this size, nearly all of it in one attribute.
fn event(bytes: usize) -> String {
    event_with("", bytes)
}

/// Returns such an event with further attributes.
fn event_with(attributes: &str, bytes: usize) -> String {
    let event = |large: &str| {
        format!(
            r#"{{"specversion":"1.0","id":"1","source":"/test","type":"task","schemaversion":1,{attributes}"large":"{large}","data":{{"name":"a"}}}}"#
        )
    };
    event(&"x".repeat(bytes - event("").len()))
}

// D4
#[tokio::test(start_paused = true)]
async fn message_that_could_not_be_settled_is_refused_at_the_send() {
    for (encoding, refused, accepted) in [("none", 63_500, 62_500), ("base64", 47_000, 46_000)] {
        let storage = in_memory();
        let metadata = Metadata::new().with("messageencoding", encoding).with("poisonthreshold", "3");
        storage.queues().create_queue(&"tasks".parse().unwrap(), &metadata).await.unwrap();
        let queue = storage.queue::<Task>().await.unwrap();
        let with = |bytes: usize| SendOptions::new().header("large", "x".repeat(bytes));
        let error = queue.send(&task("a")).with(with(refused)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
        assert!(error.is_rejected() && queue.is_empty().await.unwrap());
        // The payload and the rest of the error move out.
        let _ = queue
            .send(&Task { name: "a".into(), data: "y".repeat(3_000) })
            .with(with(accepted))
            .await
            .unwrap();
        assert_eq!(fail(&storage).await, 3, "{encoding}");
        let letter = queue.dead_letters().unwrap().peek().await.unwrap().remove(0);
        assert_eq!(letter.reason.as_str(), "attempts_exhausted", "{encoding}");
        assert_eq!(letter.attempts, 3, "{encoding}");
    }
}

// D4: from producers that know nothing of the room.
#[tokio::test(start_paused = true)]
async fn an_event_with_little_room_runs_as_often_as_any_other() {
    let storage = in_memory();
    let metadata = Metadata::new().with("poisonthreshold", "3");
    storage.queues().create_queue(&"tasks".parse().unwrap(), &metadata).await.unwrap();
    let queue = storage.queue::<Task>().await.unwrap();
    storage.queues().put(queue.name(), PutMessage::new(event(61_000))).await.unwrap();
    assert_eq!(fail(&storage).await, 3);
    let letters = queue.dead_letters().unwrap();
    let letter = letters.list().await.unwrap().letters.remove(0);
    assert_eq!(letter.reason.as_str(), "attempts_exhausted");
    assert_eq!(letter.attempts, 3);
    assert_eq!(letters.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
    assert_eq!(finish_all(&storage).await.0, 1);
}

// D4: its attempts could not be counted.
#[tokio::test(start_paused = true)]
async fn an_event_without_room_is_dead_lettered_unrun() {
    for bytes in [65_400, 65_536] {
        let storage = in_memory();
        let queue = storage.queue::<Task>().await.unwrap();
        storage.queues().put(queue.name(), PutMessage::new(event(bytes))).await.unwrap();
        assert_eq!(fail(&storage).await, 0, "{bytes}");
        let letters = queue.dead_letters().unwrap();
        let letter = letters.list().await.unwrap().letters.remove(0);
        assert_eq!(letter.reason.as_str(), "decode_error", "{bytes}");
        assert_eq!(letters.text(&letter).await.unwrap(), event(bytes), "{bytes}");
        assert_eq!(letters.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1, "{bytes}");
        assert_eq!(lengths(&queue).await, (1, 0), "{bytes}");
    }
}

// Audit 27, core 2 (audit 20, AU20-2): a letter that keeps such an event as a text deleted the payload of the
// event.
#[tokio::test(start_paused = true)]
async fn dead_letter_of_an_event_without_room_leaves_its_payload_alone() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let raw = storage.queues();
    let _ = queue.send(&large("a")).await.unwrap();
    let get = GetMessages::new(1, Duration::from_secs(60));
    let sent = raw.get(queue.name(), get).await.unwrap().messages.remove(0);
    raw.delete(queue.name(), &sent.message, ExpiredReceipt::Allow).await.unwrap();
    let mut event: Value = serde_json::from_str(&sent.text.unwrap()).unwrap();
    event["large"] = json!("x".repeat(60_000));
    // A producer that got no answer has stored it twice. In base64 it has no room.
    let encoded = |encoding: &str| Metadata::new().with("messageencoding", encoding);
    raw.set_queue_metadata(queue.name(), &encoded("base64")).await.unwrap();
    for _ in 0..2 {
        let _ = raw.put(queue.name(), PutMessage::new(event.to_string())).await.unwrap();
    }
    assert_eq!(fail(&storage).await, 0);
    assert_eq!(lengths(&queue).await, (0, 2));
    let letters = queue.dead_letters().unwrap();
    let one = DeadLetterOptions::new().limit(1).filter(|letter| letter.reason == "decode_error");
    assert_eq!(letters.purge(one).await.unwrap().deleted.len(), 1);
    raw.set_queue_metadata(queue.name(), &encoded("none")).await.unwrap();
    assert_eq!(letters.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
    assert_eq!(finish_all(&storage).await, (1, 1));
}

// audit 27, runtime B4: it was refused unread for want of room beside its result, and its handler ran again
// after a redrive.
#[tokio::test(start_paused = true)]
async fn finished_event_without_room_does_not_run_again() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let in_order = event_with(r#""key":"a","inorder":true,"#, 55_100);
    storage.queues().put(queue.name(), PutMessage::new(in_order)).await.unwrap();
    let runs: Arc<AtomicU32> = Arc::default();
    let run_for = async |seconds| {
        let (runs, faulty) = (Arc::clone(&runs), faulty.clone());
        let handler = move |_: Task, ctx: Context| {
            runs.fetch_add(1, Ordering::Relaxed);
            // The log of its key cannot be changed.
            faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unavailable));
            async move { ctx.set_result(&"r".repeat(10_000)).map_err(JobError::from) }
        };
        let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(seconds)).await.unwrap();
    };
    run_for(60).await;
    faulty.heal();
    after(900).await;
    let text = storage.queues().peek(queue.name(), 1).await.unwrap().remove(0).text.unwrap();
    assert!(text.contains("handlerfinished") && text.len() > 65_200, "{}", text.len());
    run_for(900).await;
    assert!(queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap().moved.is_empty());
    run_for(900).await;
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert_eq!(lengths(&queue).await, (0, 0));
}

// D4: what has to move out of a full message cannot be stored.
#[tokio::test(start_paused = true)]
async fn an_attempt_is_counted_while_blobs_cannot_be_written() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&Task { name: "a".into(), data: "x".repeat(64_500) }).await.unwrap();
    assert_eq!(faulty.calls_of(Operation::PutBlob), 0, "the payload is in the message");
    faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unauthorized));
    faulty.plan_always(Operation::CreateContainer, Fault::Refuse(StoreErrorKind::Unauthorized));
    assert_eq!(fail(&storage).await, 3);
    faulty.heal();
    assert_eq!(fail(&storage).await, 0);
    assert_eq!(queue.dead_letters().unwrap().approximate_len().await.unwrap(), 1);
}

// AU20-3: the notes of its own deliveries made it unreadable.
#[tokio::test(start_paused = true)]
async fn event_with_all_attributes_of_a_producer_runs_as_others_do() {
    for (count, attempts) in [(256, 3), (257, 0)] {
        let storage = in_memory();
        let queue = storage.queue::<Task>().await.unwrap();
        let mut event: Value = serde_json::from_str(&event(200)).unwrap();
        for number in 1..count {
            event[format!("a{number}")] = json!("1");
        }
        storage.queues().put(queue.name(), PutMessage::new(event.to_string())).await.unwrap();
        assert_eq!(fail(&storage).await, attempts, "{count}");
        let letters = queue.dead_letters().unwrap();
        let letter = letters.list().await.unwrap().letters.remove(0);
        let reason = if attempts == 0 { "decode_error" } else { "attempts_exhausted" };
        assert_eq!((letter.reason.as_str(), letter.attempts), (reason, attempts), "{count}");
        assert_eq!(letters.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1, "{count}");
        assert_eq!(finish_all(&storage).await.0, u64::from(attempts > 0), "{count}");
    }
}
