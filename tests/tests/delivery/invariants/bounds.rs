//! Durations and numbers at the end of their range: F75.

use std::time::{Duration, SystemTime};

use jobqueue::settings::Metadata;
use jobqueue::sqlite::Options;
use jobqueue::storage::{GetMessages, PutMessage, StoreErrorKind, UpdateMessage};
use jobqueue::{ErrorKind, JobError, QueueName, Storage, memory};
use jobqueue_tests::jobs::{Task, after, outcomes, task, worker};

const FOR_EVER: [Duration; 3] =
    [Duration::MAX, Duration::from_secs(u64::MAX), Duration::from_millis(u64::MAX)];

// F75
#[tokio::test]
async fn delays_out_of_range_are_refused_at_the_api() {
    let folder = tempfile::tempdir().unwrap();
    // Waiting for a lock forever is allowed.
    let file =
        Storage::open(Options::new(folder.path().join("jobs.db")).busy_timeout(Duration::MAX)).await.unwrap();
    let name: QueueName = "raw".parse().unwrap();
    for storage in [memory::open(), file] {
        let tasks = storage.queue::<Task>().await.unwrap();
        let queues = storage.queues();
        queues.create_queue(&name, &Metadata::new()).await.unwrap();
        let put = queues.put(&name, PutMessage::new("x")).await.unwrap().message;
        for long in FOR_EVER {
            let error = tasks.send(&task("a")).delay(long).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            let error =
                queues.put(&name, PutMessage::new("x").with_visibility_delay(long)).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::InvalidInput, "{error}");
            let error = queues.get(&name, GetMessages::new(1, long)).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::InvalidInput, "{error}");
            let change = UpdateMessage::new(long);
            let error = queues.update(&name, &put, change).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::InvalidInput, "{error}");
            // A time to live beyond the calendar means never.
            queues.put(&name, PutMessage::new("x").with_ttl(Some(long))).await.unwrap();
            let _ = tasks.send(&task("a")).ttl(long).await.unwrap();
        }
        let far = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 50);
        let error = tasks.send(&task("a")).at(far).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(tasks.approximate_len().await.unwrap(), FOR_EVER.len() as u64);
    }
}

// F75
#[tokio::test(start_paused = true)]
async fn endless_retry_delay_is_capped() {
    let storage = memory::open();
    let tasks = storage.queue::<Task>().await.unwrap();
    for name in ["snooze", "retry"] {
        let _ = tasks.send(&task(name)).await.unwrap();
    }
    let handler = |task: Task| async move {
        Err::<(), _>(match &*task.name {
            "snooze" => JobError::snooze(Duration::MAX),
            _ => JobError::retry_after(Duration::from_secs(u64::MAX), "later"),
        })
    };
    let (log, listen) = outcomes();
    let worker = worker(&storage).handle(handler).on_event(listen).build().unwrap();
    let _ = worker.run_until(after(60)).await.unwrap();
    let mut log = log.lock().unwrap().clone();
    log.sort();
    assert_eq!(log, ["released", "retried"]);
    assert_eq!(tasks.approximate_len().await.unwrap(), 2);
}

// A file that has given out all its numbers, as far as they can be counted.
// F75
#[tokio::test]
async fn puts_fail_when_sequence_numbers_are_exhausted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let name: QueueName = "raw".parse().unwrap();
    let earlier = Storage::open(Options::new(&path)).await.unwrap();
    earlier.queues().create_queue(&name, &Metadata::new()).await.unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute("UPDATE jobqueue_store SET sequence = ?1", [(1_i64 << 41) - 2]).unwrap();
    // Another one, since the first has set numbers aside for itself.
    let storage = Storage::open(Options::new(&path)).await.unwrap();
    for _ in 0..2 {
        storage.queues().put(&name, PutMessage::new("x")).await.unwrap();
    }
    let error = storage.queues().put(&name, PutMessage::new("x")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
    assert_eq!(storage.queues().queue_properties(&name).await.unwrap().approximate_count, 2);
}
