//! Jobs that are stopped while they wait for others, and during their call.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use jobqueue::chunk::{ChunkJob, ChunkOptions};
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::job::Verdict;
use jobqueue::storage::{GetMessages, Operation, QueueName, StoreErrorKind};
use jobqueue::{JobError, Storage};
use jobqueue_admin::{AccessLevel, Admin, JobReference};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, outcomes, worker};

use super::{Calls, calling, send};

async fn cancel(storage: &Storage, id: &str) {
    let admin = Admin::builder(storage.clone()).access(AccessLevel::Operate).build();
    let _ = admin.cancel(&JobReference::new("tasks", id)).await.unwrap();
}

/// True until the future that owns it is dropped.
struct Alive(Arc<AtomicBool>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_cancelled_while_it_waits_is_left_out() {
    // The first job polls the wait; the others go on without it.
    for cancelled in ["a", "b"] {
        let storage = in_memory();
        send(&storage, &["a", "b", "c"]).await;
        let options = ChunkOptions::new(10).linger(Duration::from_secs(60));
        let (calls, builder) = calling(&storage, options, |_| Ok(()));
        let cancelling = async {
            after(10).await;
            cancel(&storage, cancelled).await;
            after(90).await;
        };
        // A grace beyond the wait: the job leaves as soon as its token fires.
        let builder = builder.presence(Duration::from_secs(5)).cancel_grace(Duration::from_secs(300));
        let report = builder.build().unwrap().run_until(cancelling).await.unwrap();
        assert_eq!((report.completed, report.dead_lettered), (2, 1));
        let others: Vec<_> = ["a", "b", "c"].into_iter().filter(|id| *id != cancelled).collect();
        assert_eq!(calls.all(), [others]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_cancelled_during_the_call_leaves_the_others_to_it() {
    for cancelled in ["a", "b"] {
        let storage = in_memory();
        send(&storage, &["a", "b", "c"]).await;
        let handler = move |jobs: Vec<ChunkJob<Task>>| async move {
            let stopped = jobs.iter().find(|job| job.message.name == cancelled).unwrap();
            stopped.context.token().cancelled().await;
            // Longer than the grace of the cancelled job.
            after(30).await;
            let is_stopped = |job: &&ChunkJob<Task>| job.context.is_cancelled();
            assert_eq!(jobs.iter().filter(is_stopped).count(), 1);
            Ok::<_, JobError>(())
        };
        let cancelling = async {
            after(10).await;
            cancel(&storage, cancelled).await;
            after(90).await;
        };
        let builder = worker(&storage).handle_many(3, handler).presence(Duration::from_secs(5));
        let report = builder.build().unwrap().run_until(cancelling).await.unwrap();
        assert_eq!((report.completed, report.dead_lettered, report.retried), (2, 1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_loses_its_lease_leaves_the_others_to_the_call() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    send(&storage, &["a", "b", "c"]).await;
    faulty.plan(Operation::Update, 1, Fault::Refuse(StoreErrorKind::MessageNotFound));
    let (calls, (log, listener)) = (Calls::default(), outcomes());
    let noted = calls.clone();
    let handler = move |jobs: Vec<ChunkJob<Task>>| {
        noted.note(&jobs);
        async move {
            if jobs.len() > 1 {
                let lost = jobs.iter().find(|job| job.message.name == "a").unwrap();
                assert!(lost.context.checkpoint(&1).await.unwrap_err().is_lease_lost());
                after(60).await;
                assert!(lost.context.is_cancelled());
                assert_eq!(jobs.iter().filter(|job| job.context.is_cancelled()).count(), 1);
            }
            Ok::<_, JobError>(())
        }
    };
    let builder = worker(&storage).handle_many(3, handler).on_event(listener);
    let _ = builder.build().unwrap().run_until(after(120)).await.unwrap();
    let mut outcomes = log.lock().unwrap().clone();
    outcomes.sort();
    assert_eq!(outcomes, ["completed", "completed", "completed", "lease_lost"]);
    assert_eq!(calls.all(), [vec!["a", "b", "c"], vec!["a"]]);
}

#[tokio::test(start_paused = true)]
async fn the_call_is_dropped_with_its_last_job() {
    let faulty = Faulty::new(&in_memory());
    send(&faulty.storage(), &["a", "b"]).await;
    faulty.plan_always(Operation::Update, Fault::Refuse(StoreErrorKind::Unavailable));
    let (alive, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (flag, count) = (Arc::clone(&alive), Arc::clone(&calls));
    let handler = move |_: Vec<ChunkJob<Task>>| {
        assert!(!flag.swap(true, Ordering::SeqCst), "the former call has lost all leases");
        count.fetch_add(1, Ordering::SeqCst);
        let alive = Alive(Arc::clone(&flag));
        async move {
            let _alive = alive;
            pending::<Result<(), JobError>>().await
        }
    };
    let builder = worker(&faulty.storage()).cancel_grace(Duration::from_secs(60)).handle_many(2, handler);
    let report = builder.build().unwrap().run_until(after(90)).await.unwrap();
    assert!(calls.load(Ordering::SeqCst) > 1, "{report:?}");
    assert_eq!(report.retried, 0, "{report:?}");
    assert!(!alive.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn no_call_outlives_a_worker_that_is_dropped() {
    let storage = in_memory();
    send(&storage, &["a", "b"]).await;
    let (alive, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (flag, called) = (Arc::clone(&alive), Arc::clone(&calls));
    let handler = move |_: Vec<ChunkJob<Task>>| {
        called.fetch_add(1, Ordering::SeqCst);
        flag.store(true, Ordering::SeqCst);
        let alive = Alive(Arc::clone(&flag));
        async move {
            let _alive = alive;
            pending::<Result<(), JobError>>().await
        }
    };
    let running = worker(&storage).handle_many(2, handler).build().unwrap().run_until(pending());
    assert!(tokio::time::timeout(Duration::from_secs(1), running).await.is_err());
    after(1).await;
    assert_eq!((calls.load(Ordering::SeqCst), alive.load(Ordering::SeqCst)), (1, false));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_calls_and_for_jobs_that_wait() {
    let storage = in_memory();
    send(&storage, &["a", "b", "c"]).await;
    let calls = Calls::default();
    let noted = calls.clone();
    let handler = move |jobs: Vec<ChunkJob<Task>>| {
        noted.note(&jobs);
        async {
            after(10).await;
            Ok::<_, JobError>(())
        }
    };
    let options = ChunkOptions::new(2).linger(Duration::from_secs(5));
    let worker = worker(&storage).handle_many(options, handler).build().unwrap();
    let report = worker.run_until(after(1)).await.unwrap();
    assert_eq!((report.completed, report.cancelled, report.abandoned), (3, 0, 0));
    assert_eq!(calls.all().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_releases_jobs_that_wait_for_too_long() {
    let storage = in_memory();
    send(&storage, &["a", "b"]).await;
    let options = ChunkOptions::new(3).linger(Duration::from_secs(600));
    let (calls, builder) = calling(&storage, options, |_| Ok(()));
    let report = builder.build().unwrap().run_until(after(1)).await.unwrap();
    assert_eq!((report.completed, report.cancelled, report.abandoned), (0, 2, 0));
    assert!(calls.all().is_empty());
    // At once, and without an attempt.
    let (calls, builder) = calling(&storage, 2, |jobs| {
        assert!(jobs.iter().all(|job| job.context.info().attempt == 1));
        Ok(())
    });
    assert_eq!(super::run(builder).await.completed, 2);
    assert_eq!(calls.sizes(), [2]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_stops_at_a_shutdown_costs_none_of_its_jobs_an_attempt() {
    let storage = in_memory();
    send(&storage, &["a", "b", "c"]).await;
    let handler = |jobs: Vec<ChunkJob<Task>>| async move {
        jobs[0].context.token().cancelled().await;
        assert!(jobs.iter().all(|job| job.context.is_cancelled()));
        Err::<(), _>(JobError::retry("stopped"))
    };
    let worker = worker(&storage).handle_many(3, handler).shutdown_timeout(Duration::ZERO).build().unwrap();
    let report = worker.run_until(after(1)).await.unwrap();
    assert_eq!((report.cancelled, report.retried), (3, 0), "{report:?}");
    let (calls, builder) = calling(&storage, 3, |jobs| {
        assert!(jobs.iter().all(|job| job.context.info().attempt == 1));
        Ok(())
    });
    assert_eq!(super::run(builder).await.completed, 3);
    assert_eq!(calls.sizes(), [3]);
}

/// A crash counts no attempt, and the job that has caused it may be among them.
#[tokio::test(start_paused = true)]
async fn jobs_of_a_worker_that_died_share_no_call_again() {
    let storage = in_memory();
    send(&storage, &["a", "b", "c"]).await;
    // Their leases end without a word of the worker.
    let queue = QueueName::new("tasks").unwrap();
    let leased = storage.queues().get(&queue, GetMessages::new(32, Duration::from_secs(30)));
    assert_eq!(leased.await.unwrap().messages.len(), 3);
    after(60).await;
    let (calls, builder) = calling(&storage, 3, |_| Ok(()));
    let report = super::run(builder).await;
    assert_eq!((report.completed, calls.sizes()), (3, vec![1, 1, 1]));
}

/// A redriven job may be the one that ended its process.
// T4
#[tokio::test(start_paused = true)]
async fn redriven_jobs_share_no_call() {
    let storage = in_memory();
    send(&storage, &["a", "b"]).await;
    let reject = |_: Task| async { Err::<(), _>(JobError::dead_letter("as planted")) };
    assert_eq!(super::run(worker(&storage).handle(reject)).await.dead_lettered, 2);
    let letters = storage.queue::<Task>().await.unwrap().dead_letters().unwrap();
    assert_eq!(letters.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 2);
    send(&storage, &["c", "d"]).await;
    let (calls, builder) = calling(&storage, 4, |_| Ok(()));
    assert_eq!(super::run(builder).await.completed, 4);
    let mut calls = calls.all();
    calls.sort();
    assert_eq!(calls, [vec!["a"], vec!["b"], vec!["c", "d"]]);
}

/// The policy is asked about each job of the call, with the same error.
#[tokio::test(start_paused = true)]
async fn retry_policy_dead_letters_no_job_for_its_neighbours() {
    let storage = in_memory();
    send(&storage, &["bad", "b", "c"]).await;
    let verdict = |jobs: Vec<ChunkJob<Task>>| match jobs.iter().any(|job| job.message.name == "bad") {
        true => Err(JobError::retry("no such file")),
        false => Ok(()),
    };
    let (calls, builder) = calling(&storage, 3, verdict);
    let worker = builder.retry_policy(|_, _| Some(Verdict::DeadLetter)).build().unwrap();
    let report = worker.run_until(after(600)).await.unwrap();
    assert_eq!((report.completed, report.retried, report.dead_lettered), (2, 3, 1));
    assert_eq!(calls.sizes(), [3, 1, 1, 1]);
}
