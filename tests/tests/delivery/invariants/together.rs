//! The messages of jobs that end at about the same time are deleted together: I1, I18, F9.

use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Event, JobError, Storage, sqlite};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Log, Task, after, in_memory, outcomes, task, worker};

async fn send(storage: &Storage, count: u32) -> jobqueue::Queue<Task> {
    let queue = storage.queue::<Task>().await.unwrap();
    for number in 0..count {
        let _ = queue.send(&task(number.to_string())).await.unwrap();
    }
    queue
}

/// Returns a handler that records the names of its tasks.
fn noting(log: &Log) -> impl Fn(Task) -> Ready<Result<(), JobError>> + Clone + Send + Sync + 'static {
    let log = Arc::clone(log);
    move |task| {
        log.lock().unwrap().push(task.name);
        ready(Ok(()))
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_ending_during_a_batch_delete_join_the_next() {
    let faulty = Faulty::new(&in_memory());
    let queue = send(&faulty.storage(), 32).await;
    faulty.plan_always(Operation::DeleteAll, Fault::DelayAfter(Duration::from_millis(10)));
    let (log, listen) = outcomes();
    let worker = worker(&faulty.storage()).handle(async |_: Task| Ok::<(), JobError>(()));
    let report = worker.on_event(listen).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 32);
    assert_eq!(log.lock().unwrap().len(), 32);
    assert!(queue.is_empty().await.unwrap());
    let requests = faulty.calls_of(Operation::DeleteAll);
    assert!((1..=4).contains(&requests), "{requests}");
    assert_eq!(faulty.calls_of(Operation::Delete), 0);
}

// F9
#[tokio::test(start_paused = true)]
async fn lost_answer_to_batch_delete_reruns_no_job() {
    for fault in [
        Fault::DropAnswer(StoreErrorKind::Timeout),
        Fault::LoseRequest(StoreErrorKind::Timeout),
        Fault::Throttle(Duration::from_secs(1)),
        Fault::Hang,
        Fault::HangAfter,
    ] {
        let faulty = Faulty::new(&in_memory());
        let queue = send(&faulty.storage(), 40).await;
        faulty.plan_always(Operation::DeleteAll, fault);
        let log = Log::default();
        let worker = worker(&faulty.storage()).concurrency(8).handle(noting(&log)).build().unwrap();
        let report = worker.run_until(after(600)).await.unwrap();
        assert_eq!(report.completed, 40, "{fault:?}: {report:?}");
        assert_eq!(log.lock().unwrap().len(), 40, "{fault:?}");
        assert!(queue.is_empty().await.unwrap());
    }
}

/// A storage answers for a message of a list that an open transaction holds it up, and then takes long to
/// delete it alone.
#[tokio::test(start_paused = true)]
async fn message_that_is_held_up_delays_the_end_of_no_other_job() {
    const LONG: Duration = Duration::from_secs(5);
    let faulty = Faulty::new(&in_memory());
    let queue = send(&faulty.storage(), 20).await;
    faulty.plan_always(Operation::DeleteAll, Fault::Refuse(StoreErrorKind::Timeout));
    faulty.plan(Operation::Delete, 10, Fault::DelayBefore(LONG));
    let (ends, started) = (Arc::<Mutex<Vec<Duration>>>::default(), tokio::time::Instant::now());
    let sink = Arc::clone(&ends);
    let listen = move |event: &Event| {
        if matches!(event, Event::Finished { .. }) {
            sink.lock().unwrap().push(started.elapsed());
        }
    };
    let worker = worker(&faulty.storage()).handle(async |_: Task| Ok::<(), JobError>(())).on_event(listen);
    let report = worker.build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 20);
    assert!(queue.is_empty().await.unwrap());
    let ends = ends.lock().unwrap();
    assert_eq!(ends.iter().filter(|end| **end < LONG).count(), 19, "{ends:?}");
}

// I18
#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_batch_deletes() {
    let faulty = Faulty::new(&in_memory());
    let queue = send(&faulty.storage(), 20).await;
    faulty.plan_always(Operation::DeleteAll, Fault::DelayBefore(Duration::from_secs(5)));
    let log = Log::default();
    let worker = worker(&faulty.storage()).handle(noting(&log)).build().unwrap();
    // Told to stop when all handlers are done and nothing is deleted.
    let report = worker.run_until(after(1)).await.unwrap();
    assert_eq!(log.lock().unwrap().len(), 20);
    assert_eq!(report.completed, 20);
    assert!(report.is_clean());
    assert!(queue.is_empty().await.unwrap());
}

// I1
#[tokio::test(start_paused = true)]
async fn worker_that_dies_in_a_batch_delete_loses_nothing() {
    let faulty = Faulty::new(&in_memory());
    let queue = send(&faulty.storage(), 20).await;
    faulty.plan_always(Operation::DeleteAll, Fault::Hang);
    let log = Log::default();
    let dying = worker(&faulty.storage()).handle(noting(&log)).build().unwrap();
    let dying = dying.run_until(std::future::pending());
    assert!(tokio::time::timeout(Duration::from_secs(1), dying).await.is_err());
    let runs = log.lock().unwrap().len();
    assert_eq!(runs, 20);
    assert_eq!(queue.approximate_len().await.unwrap(), 20);
    faulty.heal();
    // They come back when their leases are over: at least once.
    let worker = worker(&faulty.storage()).handle(noting(&log)).build().unwrap();
    let report = worker.run_until(after(60)).await.unwrap();
    assert_eq!(report.completed, 20);
    assert_eq!(queue.approximate_len().await.unwrap(), 0);
}

#[tokio::test]
async fn failed_job_among_many_is_retried_others_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::open(sqlite::Options::new(folder.path().join("jobs.db"))).await.unwrap();
    let queue = send(&storage, 64).await;
    let failed: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = Arc::clone(&failed);
    let handler = move |task: Task| {
        let sink = Arc::clone(&sink);
        async move {
            if task.name.ends_with('7') {
                sink.lock().unwrap().push(task.name);
                return Err(JobError::dead_letter("sevens are not served"));
            }
            Ok(())
        }
    };
    let worker = jobqueue::Worker::builder(storage.clone()).handle(handler).build().unwrap();
    let report = worker.run_until_idle().await.unwrap();
    assert_eq!(report.completed, 58);
    assert_eq!(report.dead_lettered, 6);
    assert_eq!(failed.lock().unwrap().len(), 6);
    assert!(queue.is_empty().await.unwrap());
    assert_eq!(queue.dead_letters().unwrap().approximate_len().await.unwrap(), 6);
}
