//! Jobs in order that have exceeded their maximum run time while their leases are held: they keep their
//! positions, and are settled as others are.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::job::Verdict;
use jobqueue::storage::Operation;
use jobqueue::{Context, JobError, JobInfo};
use jobqueue_testing::faults::Faulty;
use jobqueue_tests::jobs::{after, worker};

use super::disturbed::REFUSED;
use super::records::MINUTE;
use super::{Step, logged, opened, step};

#[tokio::test(start_paused = true)]
async fn job_that_ran_too_long_keeps_its_position_until_its_retry() {
    let storage = logged();
    let queue = opened(&storage).await;
    for number in 0..2 {
        queue.send(&step("a", number)).in_order().await.unwrap();
    }
    let begun = Arc::<Mutex<Vec<(u32, u32)>>>::default();
    let log = Arc::clone(&begun);
    let handler = move |step: Step, info: JobInfo| {
        log.lock().unwrap().push((step.number, info.attempt));
        async move {
            if (step.number, info.attempt) == (0, 1) {
                std::future::pending::<()>().await;
            }
            Ok::<_, JobError>(())
        }
    };
    let built = worker(&storage)
        .max_run_time(MINUTE)
        .retry_policy(|_, _| Some(Verdict::RetryAfter(60 * MINUTE)))
        .handle(handler)
        .build()
        .unwrap();
    let _ = built.run_until(after(9_000)).await.unwrap();
    assert_eq!(*begun.lock().unwrap(), [(0, 1), (0, 2), (1, 1)]);
}

#[tokio::test(start_paused = true)]
async fn success_after_the_run_time_waits_for_its_log_as_one_before_it() {
    let faulty = Faulty::new(&logged());
    let storage = faulty.storage();
    let queue = opened(&storage).await;
    queue.send(&step("a", 0)).in_order().await.unwrap();
    let (runs, blobs) = (Arc::new(AtomicU32::new(0)), faulty.clone());
    let counted = Arc::clone(&runs);
    let handler = move |_: Step, ctx: Context| {
        counted.fetch_add(1, Ordering::Relaxed);
        let blobs = blobs.clone();
        async move {
            ctx.token().cancelled().await;
            blobs.plan_always(Operation::PutBlob, REFUSED);
            tokio::spawn(async move {
                after(30).await;
                blobs.heal();
            });
            Ok::<_, JobError>(())
        }
    };
    let built = worker(&storage).max_run_time(MINUTE).handle(handler).build().unwrap();
    let report = built.run_until(after(600)).await.unwrap();
    assert_eq!((runs.load(Ordering::Relaxed), report.completed), (1, 1), "{report:?}");
    assert_eq!(report.released, 0, "settled by the delivery that ran it");
}

// audit 24, core B4
#[tokio::test(start_paused = true)]
async fn shutdown_records_an_attempt_whose_put_back_cannot_be_noted() {
    let faulty = Faulty::new(&logged());
    let storage = faulty.storage();
    opened(&storage).await.send(&step("a", 0)).in_order().await.unwrap();
    let (attempts, blobs) = (Arc::<Mutex<Vec<u32>>>::default(), faulty.clone());
    let log = Arc::clone(&attempts);
    let run_for = async |seconds| {
        let (log, blobs) = (Arc::clone(&log), blobs.clone());
        let handler = move |_: Step, info: JobInfo| {
            log.lock().unwrap().push(info.attempt);
            if info.attempt == 1 {
                blobs.plan_always(Operation::PutBlob, REFUSED);
            }
            async move { if info.attempt == 1 { Err(JobError::retry("once")) } else { Ok(()) } }
        };
        let builder = worker(&storage).retry_policy(|_, _| Some(Verdict::RetryAfter(60 * MINUTE)));
        let built = builder.shutdown_timeout(Duration::ZERO).handle(handler).build().unwrap();
        built.run_until(after(seconds)).await.unwrap()
    };
    let stopped = run_for(30).await;
    assert_eq!((stopped.retried, stopped.abandoned), (1, 0), "{stopped:?}");
    faulty.heal();
    assert_eq!(run_for(600).await.completed, 1);
    assert_eq!(*attempts.lock().unwrap(), [1, 2]);
}
