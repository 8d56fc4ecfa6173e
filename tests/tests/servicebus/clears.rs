//! Clears a queue: which messages are gone when the call returns.

use jobqueue::storage::{DeadLetterCause, DeadLetterMessage, PutMessage, StoreErrorKind};
use serde_json::json;

use super::late_answers::until;
use super::{Bench, MINUTE};

#[tokio::test]
async fn more_messages_than_a_batch_are_deleted_with_the_delayed_ones() {
    let bench = Bench::new();
    let all = (0..501).map(|number| PutMessage::new(number.to_string()));
    let delayed = (0..8).map(|number| PutMessage::new(number.to_string()).with_visibility_delay(MINUTE));
    for put in bench.store().put_all(&bench.queue, all.chain(delayed).collect()).await {
        put.unwrap();
    }
    bench.store().clear(&bench.queue).await.unwrap();
    assert_eq!((bench.count("active"), bench.count("scheduled")), (0, 0));
}

// The letter with the highest number was taken for the newest; it has the time at which its job came.
#[tokio::test]
async fn dead_letters_are_cleared_in_whatever_order_their_jobs_came() {
    let bench = Bench::new();
    bench.put(PutMessage::new("older")).await.unwrap();
    bench.emulator.advance(MINUTE);
    bench.put(PutMessage::new("newer")).await.unwrap();
    let (older, newer) = (bench.get().await.unwrap(), bench.get().await.unwrap());
    for job in [newer, older] {
        let letter = DeadLetterMessage::new("dead", DeadLetterCause::new("rejected"));
        bench.store().dead_letter(&bench.queue, &job.message, letter).await.unwrap();
    }
    assert_eq!(bench.count("deadLetters"), 2);
    bench.store().clear(&bench.queue.dead_letter().unwrap()).await.unwrap();
    assert_eq!(bench.count("deadLetters"), 0);
}

// It could not be cancelled any more, and nothing else was tried.
#[tokio::test]
async fn a_message_that_appears_while_its_queue_is_cleared_is_deleted() {
    let bench = Bench::new();
    bench.put_delayed(150).await;
    let fault = bench.emulator.plant("cancel-scheduled-message", "hold");
    let (storage, queue) = (bench.storage.clone(), bench.queue.clone());
    let clearing = tokio::spawn(async move { storage.queues().clear(&queue).await });
    until(|| fault.hits() == 1).await;
    bench.emulator.advance(MINUTE * 2);
    assert!(bench.count("active") > 0);
    fault.release();
    clearing.await.unwrap().unwrap();
    assert_eq!((bench.count("active"), bench.count("scheduled")), (0, 0));
}

// Only one partition would be cleared.
#[tokio::test]
async fn a_partitioned_queue_that_is_not_cleared_says_so() {
    let bench = Bench::with(json!({ "EnablePartitioning": true }), &[]);
    bench.put(PutMessage::new("job")).await.unwrap();
    let error = bench.store().clear(&bench.queue).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error:?}");
    assert!(!error.is_ambiguous());
    assert_eq!(bench.count("active"), 1);
}

// Whether the service deletes messages of all sessions by one request is not documented. A receiver without a
// session was refused instead.
#[tokio::test]
async fn a_queue_with_sessions_that_is_not_cleared_says_so() {
    let bench = Bench::of_sessions();
    bench.put_in("a", "job").await;
    let refused = json!({ "condition": "amqp:not-allowed" });
    bench.emulator.plant_with("batch-delete-messages", "error", refused);
    let error = bench.store().clear(&bench.queue).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error:?}");
    assert!(!error.is_ambiguous());
    assert_eq!(bench.count("active"), 1);
}
