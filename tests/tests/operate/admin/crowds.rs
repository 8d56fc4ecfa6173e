//! The presence of thousands of workers, and of workers with long kinds.

use std::time::Duration;

use jobqueue::storage::{BlobName, ContainerName, Operation, PutBlob, PutMessage};
use jobqueue::{ErrorKind, JobError, Storage};
use jobqueue_admin::JobReference;
use jobqueue_dashboard::snapshot::Snapshots;
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task};
use tokio::time::sleep;

use super::presence::{operator, present, send};

/// Leaves the record of a worker that writes no other: it is killed.
async fn leave_record(storage: &Storage, number: usize) {
    leave_record_of(storage, number, "tasks").await;
}

async fn leave_record_of(storage: &Storage, number: usize, queue: &str) {
    let container = ContainerName::new("jobqueue-workers").unwrap();
    let record = serde_json::json!({"id": format!("gone-{number}"), "name": "w", "host": "h", "pid": 1, "version": "0",
        "started": "2026-01-01T00:00:00Z", "written": "2026-01-01T00:00:00Z", "interval_seconds": 15.0,
        "queues": [{"name": queue, "kinds": ["task"]}], "slots": 1, "draining": false, "running": [], "running_total": 0,
        "counters": []});
    let name = BlobName::new(container, format!("gone-{number}")).unwrap();
    storage.blobs().put_blob(&name, record.to_string().into(), PutBlob::new()).await.unwrap();
}

// D11
#[tokio::test(start_paused = true)]
async fn thousands_of_dead_workers_do_not_hold_up_a_look_at_those_alive() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    storage.queue::<Task>().await.unwrap();
    let container = ContainerName::new("jobqueue-workers").unwrap();
    storage.blobs().create_container(&container).await.unwrap();
    for number in 0..5_000 {
        leave_record(&storage, number).await;
    }
    after(4 * 3_600).await;
    let handler = async |_: Task| Ok::<_, JobError>(());
    let running = present(&storage).handle(handler).build().unwrap().run_until(after(60));
    let looking = async {
        after(20).await;
        faulty.plan_always(Operation::GetBlob, Fault::DelayBefore(Duration::from_millis(5)));
        let (reads, began) = (faulty.calls_of(Operation::GetBlob), tokio::time::Instant::now());
        let workers = operator(&storage).all_workers().await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert!(faulty.calls_of(Operation::GetBlob) - reads <= 200);
        let present: Vec<_> = workers.iter().filter(|worker| !worker.stale).collect();
        assert_eq!(present.len(), 1);
        let (reads, began) = (faulty.calls_of(Operation::GetBlob), tokio::time::Instant::now());
        let snapshot = Snapshots::new(operator(&storage)).within(Duration::from_secs(5)).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert!(faulty.calls_of(Operation::GetBlob) - reads <= 200);
        let workers = snapshot.workers.as_ref().unwrap();
        assert_eq!(workers.iter().filter(|worker| !worker.stale).count(), 1);
        let report = operator(&storage).cancel(&JobReference::new("tasks", "1")).await.unwrap();
        assert_eq!(report.workers, 1);
    };
    let _ = tokio::join!(running, looking);
}

// audit 8, P2
#[tokio::test(start_paused = true)]
async fn each_of_thousands_of_workers_is_notified_of_a_cancellation() {
    let storage = in_memory();
    storage.queue::<Task>().await.unwrap();
    let container = ContainerName::new("jobqueue-workers").unwrap();
    storage.blobs().create_container(&container).await.unwrap();
    for number in 0..2_200 {
        leave_record(&storage, number).await;
    }
    let report = operator(&storage).cancel(&JobReference::new("tasks", "1")).await.unwrap();
    assert_eq!(report.workers, 2_200);
}

// round 34, B1
#[tokio::test(start_paused = true)]
async fn record_of_each_present_worker_is_read() {
    let storage = in_memory();
    let container = ContainerName::new("jobqueue-workers").unwrap();
    storage.blobs().create_container(&container).await.unwrap();
    leave_record_of(&storage, 0, "tasks").await;
    after(60).await;
    leave_record_of(&storage, 1, "letters").await;
    after(5).await;
    for number in 2..2_500 {
        leave_record(&storage, number).await;
    }
    let admin = operator(&storage);
    let workers = admin.all_workers().await.unwrap();
    assert_eq!(workers.iter().filter(|worker| !worker.stale).count(), 2_499);
    assert_eq!(workers.iter().filter(|worker| worker.stale).count(), 1, "its jobs are load");
    assert!(admin.is_served("letters").await.unwrap(), "its only worker has the oldest record");
}

// round 34, B1
#[tokio::test(start_paused = true)]
async fn records_of_a_crash_loop_are_read_in_part() {
    // Quiet: only the requests are counted.
    let faulty = Faulty::quiet(&in_memory());
    let storage = faulty.storage();
    let container = ContainerName::new("jobqueue-workers").unwrap();
    storage.blobs().create_container(&container).await.unwrap();
    for number in 0..4_000 {
        leave_record(&storage, number).await;
    }
    after(60).await;
    leave_record(&storage, 4_000).await;
    let reads = faulty.calls_of(Operation::GetBlob);
    let workers = operator(&storage).all_workers().await.unwrap();
    assert!(faulty.calls_of(Operation::GetBlob) - reads <= 2_500);
    assert_eq!(workers.iter().filter(|worker| !worker.stale).count(), 1);
}

// round 34, B1
#[tokio::test(start_paused = true)]
async fn records_that_are_too_large_to_be_read_are_an_error() {
    let storage = in_memory();
    let container = ContainerName::new("jobqueue-workers").unwrap();
    storage.blobs().create_container(&container).await.unwrap();
    let data = bytes::Bytes::from(vec![b' '; 8 * 1024 * 1024]);
    for number in 0..33 {
        let name = BlobName::new(container.clone(), format!("large-{number}")).unwrap();
        storage.blobs().put_blob(&name, data.clone(), PutBlob::new()).await.unwrap();
    }
    let error = operator(&storage).workers().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Storage);
    assert!(error.to_string().contains("33 workers have more than 256 MiB"), "{error}");
}

/// A producer may write any kind. Each of these is too long to be kept, and there are many.
#[tokio::test(start_paused = true)]
async fn long_kinds_hide_no_worker_and_stop_no_cancellation() {
    let storage = in_memory();
    send(&storage, &["first"]).await;
    let queue = "tasks".parse().unwrap();
    for number in 0..150 {
        let kind = format!("{number}{}", "x".repeat(60_000));
        let event = serde_json::json!({"specversion": "1.0", "id": number.to_string(), "source": "/other", "type": kind, "data": {}});
        let _ = storage.queues().put(&queue, PutMessage::new(event.to_string())).await.unwrap();
    }
    let tasks = storage.queue::<Task>().await.unwrap();
    let _ = tasks.send(&task("late")).id("late").delay(Duration::from_secs(90)).await.unwrap();
    let handler = async |_: Task| Ok::<_, JobError>(());
    let running = present(&storage).handle(handler).build().unwrap().run_until(after(200));
    let watching = async {
        sleep(Duration::from_secs(61)).await;
        let admin = operator(&storage);
        let [worker] = &admin.workers().await.unwrap()[..] else { panic!("the worker is shown as gone") };
        let kinds = worker.record.counters.iter().map(|counters| counters.kind.len());
        assert_eq!((kinds.clone().count() > 100, kinds.max()), (true, Some(1_024)));
        let _ = admin.cancel(&JobReference::new("tasks", "late")).await.unwrap();
    };
    let (report, ()) = tokio::join!(running, watching);
    assert_eq!(report.unwrap().completed, 1, "the cancelled job ran");
}
