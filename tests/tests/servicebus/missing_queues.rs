//! Queues that do not exist: the service refuses the token for them, before any link.

use std::time::Duration;

use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::storage::{Access, GetMessages, PutMessage, StoreErrorKind, UpdateMessage};
use jobqueue::{JobError, QueueName, Storage, Worker};
use jobqueue_admin::{AccessLevel, Admin};
use jobqueue_test_support::servicebus::ServiceBus;
use serde_json::json;

use super::jobs::{Work, work};
use super::late_answers::{pass, until};
use super::{Bench, MINUTE, later, options};

// It was called a missing message, so that no queue was ever created.
#[tokio::test]
async fn queue_is_created_on_its_first_use() {
    let emulator = ServiceBus::start();
    let storage = Storage::from(options(&emulator).with_blobs_of(Storage::memory()).unwrap());
    storage.queue::<Work>().await.unwrap().send(&work("first")).await.unwrap();
    let handler = |_: Work| async { Ok::<(), JobError>(()) };
    let worker = Worker::builder(storage.clone()).handle(handler).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 1);
    let admin = Admin::builder(storage).access(AccessLevel::Operate).operator("ada").build();
    admin.create_queue("other").await.unwrap();
    assert!(emulator.queue("other")["settings"].is_object());
}

/// Each by a process of its own, which has no token yet.
#[tokio::test]
async fn operation_on_a_missing_queue_says_that_the_queue_is_missing() {
    let bench = Bench::new();
    let queue = QueueName::new("missing").unwrap();
    for queue in [queue.clone(), queue.dead_letter().unwrap()] {
        let one = async || bench.another();
        let errors = [
            one().await.queues().get(&queue, GetMessages::new(1, MINUTE)).await.unwrap_err(),
            one().await.queues().peek(&queue, 1).await.unwrap_err(),
            one().await.queues().clear(&queue).await.unwrap_err(),
            one().await.queues().queue_metadata(&queue).await.unwrap_err(),
            one().await.queues().queue_properties(&queue).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), StoreErrorKind::QueueNotFound, "{error:?}");
            assert!(!error.is_ambiguous(), "{error:?}");
        }
        one().await.queues().check_access(&queue, Access::Process).await.unwrap();
    }
    let error = bench.another().queues().put(&queue, PutMessage::new("text")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::QueueNotFound, "{error:?}");
    assert!(!error.is_ambiguous(), "{error:?}");
}

// Each sweep of the namespace failed.
#[tokio::test]
async fn sweep_of_another_process_removes_the_texts_of_a_deleted_queue() {
    let bench = Bench::new();
    let leased = bench.leased("a").await;
    bench.update(&leased.message, UpdateMessage::new(MINUTE).with_text("step 1".to_owned())).await.unwrap();
    bench.store().delete_queue(&bench.queue).await.unwrap();
    let days = Duration::from_secs(3 * 86_400);
    let swept = sweep(&later(&bench.another(), days), SweepOptions::new().dry_run(false)).await.unwrap();
    assert_eq!(swept.removed, 1);
    assert_eq!(bench.texts().await.len(), 0);
}

// It was asked for every five seconds, with a warning, for as long as the connection lasted.
#[tokio::test]
async fn token_of_a_deleted_queue_is_not_renewed() {
    let bench = Bench::new();
    bench.emulator.create_queue("gone", json!({}));
    let gone = QueueName::new("gone").unwrap();
    let options = options(&bench.emulator).token_validity(Duration::from_secs(32));
    let storage = Storage::from(options.with_blobs_of(&bench.blobs).unwrap());
    let put = async |queue: &QueueName| storage.queues().put(queue, PutMessage::new("a")).await.unwrap();
    put(&bench.queue).await;
    put(&gone).await;
    bench.another().queues().delete_queue(&gone).await.unwrap();
    let tokens = || bench.emulator.calls("put-token", "$cbs", 0);
    let before = tokens();
    // Tokens are renewed after three quarters of their life. No request waits for so long.
    for renewed in [2, 3] {
        pass(Duration::from_secs(25)).await;
        until(|| tokens() >= before + renewed).await;
        put(&bench.queue).await;
    }
    assert_eq!(tokens(), before + 3, "one of each queue, and then one of that which is there");
}
