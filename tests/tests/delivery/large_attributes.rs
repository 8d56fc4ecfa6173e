//! Events whose attributes leave little or no room for the notes of deliveries.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::settings::Metadata;
use jobqueue::storage::{GetMessages, Operation, PutMessage, StoreErrorKind};
use jobqueue::{ErrorKind, Event, JobError, Outcome, Queue, SendOptions, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, payloads, task, worker};
use serde_json::{Value, json};

use super::redrive::{LARGE, finish_all, large, lengths};

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
    let event = |large: &str| {
        format!(
            r#"{{"specversion":"1.0","id":"1","source":"/test","type":"task","schemaversion":1,"large":"{large}","data":{{"name":"a"}}}}"#
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
async fn an_event_without_room_runs_as_often_as_any_other() {
    for bytes in [61_000, 64_000, 64_900, 65_400, 65_536] {
        let storage = in_memory();
        let queue = storage.queue::<Task>().await.unwrap();
        storage.queues().put(queue.name(), PutMessage::new(event(bytes))).await.unwrap();
        assert_eq!(fail(&storage).await, 3, "{bytes}");
        let letters = queue.dead_letters().unwrap();
        let letter = letters.list().await.unwrap().remove(0);
        assert_eq!(letter.reason.as_str(), "attempts_exhausted", "{bytes}");
        assert_eq!(letter.attempts, 3, "{bytes}");
        assert_eq!(letters.message(&letter).await.unwrap(), task("a"), "{bytes}");
        let redriven = letters.redrive(DeadLetterOptions::new()).await.unwrap();
        assert_eq!(redriven.moved.len(), 1, "{bytes}");
        assert_eq!(queue.approximate_len().await.unwrap(), 1, "{bytes}");
        let handler = |task: Task| async move {
            assert_eq!(task.name, "a");
            Ok::<(), JobError>(())
        };
        let report = worker(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
        assert_eq!(report.completed, 1, "{bytes}");
    }
}

// R17-2: each look of a worker that does not know its kind counts, so that the looks grow rarer.
#[tokio::test(start_paused = true)]
async fn event_without_room_of_an_unknown_kind_is_seen_less_and_less_often() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let stranger = event(65_400).replace(r#""type":"task""#, r#""type":"tale""#);
    storage.queues().put(queue.name(), PutMessage::new(stranger)).await.unwrap();
    let waits = Arc::<Mutex<Vec<f64>>>::default();
    let sink = Arc::clone(&waits);
    let listen = move |event: &Event| {
        if let Event::Finished { outcome: Outcome::Released(wait), .. } = event {
            sink.lock().unwrap().push(wait.as_secs_f64());
        }
    };
    let handler = |_: Task| async { Ok::<(), JobError>(()) };
    let worker = worker(&storage).handle(handler).on_event(listen).build().unwrap();
    let _ = worker.run_until(after(600)).await.unwrap();
    let waits = waits.lock().unwrap().clone();
    let longest = [1.0, 2.0, 4.0, 8.0, 16.0];
    assert_eq!(waits.len(), longest.len(), "{waits:?}");
    assert!(waits.iter().zip(longest).all(|(wait, most)| (most / 2.0..=most).contains(wait)), "{waits:?}");
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

/// Puts an event without room whose payload is in a blob, which its producer needs for an hour.
async fn with_a_payload_in_a_blob(storage: &Storage) -> Queue<Task> {
    let (queue, minute) = (storage.queue::<Task>().await.unwrap(), Duration::from_secs(60));
    let _ = queue.send(&large("a")).ttl(60 * minute).await.unwrap();
    let sent = storage.queues().get(queue.name(), GetMessages::new(1, minute)).await.unwrap();
    let sent = sent.messages.into_iter().next().unwrap();
    storage.queues().delete(queue.name(), &sent.message, Default::default()).await.unwrap();
    let text = sent.text.unwrap();
    let mut event: Value = serde_json::from_str(&text).unwrap();
    event["large"] = json!("x".repeat(65_400 - text.len()));
    storage.queues().put(queue.name(), PutMessage::new(event.to_string())).await.unwrap();
    queue
}

// AU20-2: the letter referred to the blob of its message.
#[tokio::test(start_paused = true)]
async fn letter_of_an_event_without_room_keeps_its_payload() {
    for redrives in [true, false] {
        let storage = in_memory();
        let queue = with_a_payload_in_a_blob(&storage).await;
        assert_eq!(fail(&storage).await, 3);
        after(30 * 86_400).await;
        let _ = sweep(&storage, SweepOptions::new()).await.unwrap();
        let letters = queue.dead_letters().unwrap();
        let letter = letters.list().await.unwrap().remove(0);
        assert_eq!(letters.message(&letter).await.unwrap().data.len(), LARGE);
        if redrives {
            assert_eq!(letters.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
            assert_eq!(finish_all(&storage).await, (1, 1));
        } else {
            assert_eq!(
                letters.purge(DeadLetterOptions::new().filter(|_| true)).await.unwrap().deleted.len(),
                1
            );
        }
        assert_eq!(lengths(&queue).await, (0, 0));
        assert_eq!(payloads(&storage).await, 0, "nothing is left behind");
    }
}

// AU20-1: the message that was left in its queue took the payload along.
#[tokio::test(start_paused = true)]
async fn message_of_a_redriven_letter_without_room_leaves_the_payload_to_the_job() {
    let near = in_memory();
    let queue = with_a_payload_in_a_blob(&near).await;
    let faulty = Faulty::new(&near);
    let storage = faulty.storage();
    // Copied, then the worker dies before it deletes the message.
    faulty.plan(Operation::Delete, 1, Fault::Hang);
    let handler = |_: Task| async { Err::<(), _>(JobError::retry("no")) };
    let dying = worker(&storage).handle(handler).build().unwrap().run_until(std::future::pending());
    assert!(tokio::time::timeout(Duration::from_secs(15), dying).await.is_err());
    assert_eq!(lengths(&queue).await, (1, 1));
    after(60).await;
    let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.moved.len(), 1);
    // The old message comes first.
    let larges = |task: Task| async move {
        assert_eq!(task.data.len(), LARGE);
        Ok::<(), JobError>(())
    };
    let worker = worker(&storage).concurrency(1).handle(larges).build().unwrap();
    assert_eq!(worker.run_until(after(60)).await.unwrap().completed, 1);
    assert_eq!(lengths(&queue).await, (0, 0));
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
        let letter = letters.list().await.unwrap().remove(0);
        let reason = if attempts == 0 { "decode_error" } else { "attempts_exhausted" };
        assert_eq!((letter.reason.as_str(), letter.attempts), (reason, attempts), "{count}");
        assert_eq!(letters.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1, "{count}");
        assert_eq!(finish_all(&storage).await.0, u64::from(attempts > 0), "{count}");
    }
}
