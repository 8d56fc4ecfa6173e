//! Messages above the limit of payloads of the worker that receives them. The limit concerns handlers and
//! sends: it keeps no message in its queue.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::settings::Metadata;
use jobqueue::storage::{Operation, PutMessage};
use jobqueue::{Context, JobError, QueueMessage, Reason, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::redrive::{finish_all, lengths};

const LIMIT: u64 = 50_000;

/// Returns an event of this size, nearly all of it in its payload.
fn event(kind: &str, bytes: usize) -> String {
    let event = |name: &str| {
        format!(
            r#"{{"specversion":"1.0","id":"1","source":"/test","type":"{kind}","schemaversion":1,"data":{{"name":"{name}"}}}}"#
        )
    };
    event(&"x".repeat(bytes - event("").len()))
}

/// Runs a worker with the limit for two hours beside this message. Returns the reasons of the dead letters.
async fn reasons_of(storage: &Storage, text: &str) -> Vec<Reason> {
    let metadata = Metadata::new().with("unknownkindseconds", "3600");
    storage.queues().create_queue(&"tasks".parse().unwrap(), &metadata).await.unwrap();
    let queue = storage.queue::<Task>().await.unwrap();
    storage.queues().put(queue.name(), PutMessage::new(text)).await.unwrap();
    let limited = worker(storage).max_payload_bytes(LIMIT).handle(async |_: Task| Ok::<_, JobError>(()));
    let report = limited.build().unwrap().run_until(after(2 * 3_600)).await.unwrap();
    assert_eq!(report.completed, 0);
    let letters = queue.dead_letters().unwrap();
    assert_eq!(lengths(&queue).await, (0, 1));
    letters.list().await.unwrap().letters.into_iter().map(|letter| letter.reason).collect()
}

// Audit 27, core 1: the letter needs a blob for the text.
#[tokio::test(start_paused = true)]
async fn unreadable_text_above_the_limit_is_a_dead_letter() {
    let storage = in_memory();
    let text = "!".repeat(65_500);
    assert_eq!(reasons_of(&storage, &text).await, [Reason::DECODE_ERROR]);
    let letters = storage.queue::<Task>().await.unwrap().dead_letters().unwrap();
    let letter = letters.list().await.unwrap().letters.remove(0);
    assert_eq!(letters.text(&letter).await.unwrap(), text);
}

// Audit 27, core 1: the queues of handlers have the limit too.
#[tokio::test(start_paused = true)]
async fn text_above_the_limit_is_put_back_by_a_handler() {
    let storage = in_memory();
    let _ = reasons_of(&storage, &"!".repeat(65_500)).await;
    let _ = storage.queue::<Task>().await.unwrap().send(&task("redrive")).await.unwrap();
    let moved = Arc::new(AtomicUsize::new(0));
    let sink = Arc::clone(&moved);
    let handler = move |_: Task, ctx: Context| {
        let sink = Arc::clone(&sink);
        async move {
            let letters = ctx.queue::<Task>().await?.dead_letters()?;
            let redriven = letters.redrive(DeadLetterOptions::new()).await?;
            sink.store(redriven.moved.len(), Ordering::Relaxed);
            Ok::<_, JobError>(())
        }
    };
    let limited = worker(&storage).max_payload_bytes(LIMIT).handle(handler).build().unwrap();
    assert_eq!(limited.run_until(after(60)).await.unwrap().completed, 1);
    assert_eq!(moved.load(Ordering::Relaxed), 1);
}

// Audit 27, core 1: the letter has no room for the payload, and the cause is not in the attributes.
#[tokio::test(start_paused = true)]
async fn payload_above_the_limit_inside_its_message_is_a_dead_letter() {
    let storage = in_memory();
    let reasons = reasons_of(&storage, &event("task", 65_400)).await;
    assert_eq!(reasons, [Reason::PAYLOAD_TOO_LARGE]);
    let letters = storage.queue::<Task>().await.unwrap().dead_letters().unwrap();
    assert_eq!(letters.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
    assert_eq!(finish_all(&storage).await.0, 1);
}

// Audit 27, core 1: no wait was recorded, so that the wait had no end.
#[tokio::test(start_paused = true)]
async fn waits_of_a_message_above_the_limit_are_recorded() {
    let storage = in_memory();
    let reasons = reasons_of(&storage, &event("tale", 65_400)).await;
    assert_eq!(reasons, [Reason::UNKNOWN_KIND]);
}

/// A message of another queue.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "notes", kind = "note")]
struct Note {
    text: String,
}

// round 30, core 5: each queue had one in memory.
#[tokio::test(start_paused = true)]
async fn payloads_above_the_limit_are_copied_one_at_a_time_from_all_queues() {
    const SLOW: Duration = Duration::from_secs(5);
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let text = "x".repeat(100_000);
    let _ = storage.queue::<Note>().await.unwrap().send(&Note { text: text.clone() }).await.unwrap();
    let large = Task { name: "a".into(), data: text };
    let _ = storage.queue::<Task>().await.unwrap().send(&large).await.unwrap();
    let reads = Arc::<Mutex<Vec<Instant>>>::default();
    for operation in [Operation::GetBlob, Operation::PutBlob] {
        let sink = Arc::clone(&reads);
        faulty.on(operation, move |call| {
            let is_payload = call.subject.contains("jobqueue-payloads");
            if is_payload && operation == Operation::GetBlob {
                sink.lock().unwrap().push(Instant::now());
            }
            is_payload.then_some(Fault::DelayAfter(SLOW))
        });
    }
    let limited = worker(&storage)
        .max_payload_bytes(LIMIT)
        .handle(async |_: Task| Ok::<_, JobError>(()))
        .handle(async |_: Note| Ok::<_, JobError>(()));
    let report = limited.build().unwrap().run_until(after(60)).await.unwrap();
    assert_eq!(report.dead_lettered, 2, "{report:?}");
    let reads = reads.lock().unwrap().clone();
    assert_eq!(reads.len(), 2);
    assert!(reads[1] - reads[0] >= 2 * SLOW, "the first is written before the second is read");
}
