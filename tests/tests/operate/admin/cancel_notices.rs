//! Workers read of cancellations by the notifications in their records, while requests for blobs fail, hang
//! or are slow.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Context, JobError, SendOptions};
use jobqueue_admin::{Admin, JobReference};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory};
use tokio::time::{Instant, sleep};

use crate::admin::cancel::{dead, send};
use crate::admin::presence::{operator, present};

/// Returns the seconds after which the handler of a cancelled job began whose worker starts while its blobs
/// behave like this.
async fn begins_after(fault: Fault) -> Option<u64> {
    let storage = in_memory();
    let job = send(&storage, "waiting", SendOptions::new()).await;
    assert_eq!(operator(&storage).cancel(&job).await.unwrap().workers, 0);
    // Quiet: the seconds until the job begins are those of the worker's own wait.
    let faulty = Faulty::quiet(&storage);
    faulty.plan_always(Operation::ListBlobs, fault);
    let (start, began) = (Instant::now(), Arc::<Mutex<Option<u64>>>::default());
    let sink = Arc::clone(&began);
    let handler = move |_: Task| {
        *sink.lock().unwrap() = Some(start.elapsed().as_secs());
        async { Ok::<_, JobError>(()) }
    };
    let _ = present(&faulty.storage()).handle(handler).build().unwrap().run_until(after(100)).await.unwrap();
    let mut began = began.lock().unwrap();
    began.take()
}

#[tokio::test(start_paused = true)]
async fn starting_worker_reads_the_requests_before_it_fetches() {
    assert_eq!(begins_after(Fault::DelayBefore(Duration::from_secs(5))).await, None);
    // Not for ever: an outage of the blobs stops no worker.
    let refused = begins_after(Fault::Refuse(StoreErrorKind::Unavailable)).await.unwrap();
    assert!((30..60).contains(&refused), "{refused} s");
}

/// Runs a worker whose handler waits until it is cancelled; `cancelling` plans faults and cancels the job.
/// Returns the seconds after which the handler was told.
async fn told_after(cancelling: impl AsyncFnOnce(&Faulty, Admin, JobReference)) -> u64 {
    let storage = in_memory();
    let job = send(&storage, "long", SendOptions::new()).await;
    // Quiet: only the planned faults make the record stale.
    let faulty = Faulty::quiet(&storage);
    let (start, stopped) = (Instant::now(), Arc::<Mutex<Option<u64>>>::default());
    let sink = Arc::clone(&stopped);
    let handler = move |_: Task, ctx: Context| {
        let sink = Arc::clone(&sink);
        async move {
            ctx.token().cancelled().await;
            *sink.lock().unwrap() = Some(start.elapsed().as_secs());
            Ok::<_, JobError>(())
        }
    };
    let running = present(&faulty.storage()).handle(handler).build().unwrap().run_until(after(300));
    let (report, ()) = tokio::join!(running, cancelling(&faulty, operator(&storage), job));
    let _ = report.unwrap();
    let stopped = *stopped.lock().unwrap();
    stopped.expect("the job is told")
}

#[tokio::test(start_paused = true)]
async fn job_that_is_cancelled_while_its_worker_cannot_write_is_told_after_it() {
    let told = told_after(async |faulty, admin, job| {
        after(20).await;
        faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unavailable));
        after(60).await;
        assert_eq!(admin.cancel(&job).await.unwrap().workers, 0, "its record is stale");
        faulty.heal();
    });
    let told = told.await;
    assert!(told < 110, "{told} s");
}

#[tokio::test(start_paused = true)]
async fn job_that_is_cancelled_between_two_slow_records_is_told_after_them() {
    let told = told_after(async |faulty, admin, job| {
        after(20).await;
        // The next record is written at once, but answered late; the one after it is written late.
        faulty.plan(Operation::PutBlob, 1, Fault::DelayAfter(Duration::from_secs(28)));
        faulty.plan(Operation::PutBlob, 2, Fault::DelayBefore(Duration::from_secs(25)));
        after(58).await;
        assert_eq!(admin.cancel(&job).await.unwrap().workers, 0, "its record is stale");
    });
    let told = told.await;
    assert!(told < 120, "{told} s");
}

#[tokio::test(start_paused = true)]
async fn worker_that_writes_faster_than_the_operator_is_told() {
    let storage = in_memory();
    let job = send(&storage, "long", SendOptions::new()).await;
    let faulty = Faulty::new(&storage);
    let refused = Arc::new(Mutex::new(0));
    let count = Arc::clone(&refused);
    faulty.on(Operation::PutBlob, move |call| {
        // The record has another tag each time: its worker was faster.
        let is_conditional = call.subject.contains("jobqueue-workers") && {
            let mut refused = count.lock().unwrap();
            *refused += 1;
            *refused < 5
        };
        is_conditional.then_some(Fault::Refuse(StoreErrorKind::ConditionNotMet))
    });
    let handler = async |_: Task| std::future::pending::<Result<(), JobError>>().await;
    let running = present(&storage).handle(handler).build().unwrap().run_until(after(100));
    let cancelling = async {
        sleep(Duration::from_secs(20)).await;
        operator(&faulty.storage()).cancel(&job).await.unwrap()
    };
    let (report, told) = tokio::join!(running, cancelling);
    assert_eq!(*refused.lock().unwrap(), 5);
    assert_eq!(told.workers, 1);
    assert_eq!(report.unwrap().dead_lettered, 1);
}

#[tokio::test(start_paused = true)]
async fn requests_that_stand_cost_a_starting_worker_one_listing() {
    let storage = in_memory();
    for number in 0..200 {
        let _ = operator(&storage).cancel(&JobReference::new("tasks", number.to_string())).await.unwrap();
    }
    let job = send(&storage, "7", SendOptions::new()).await;
    let _ = operator(&storage).cancel(&job).await.unwrap();
    let _ = send(&storage, "new", SendOptions::new()).await;
    let faulty = Faulty::new(&storage);
    let handler = async |_: Task| Ok::<_, JobError>(());
    let report =
        present(&faulty.storage()).handle(handler).build().unwrap().run_until(after(20)).await.unwrap();
    assert_eq!((report.completed, report.dead_lettered), (1, 1));
    let read = |call: &&jobqueue_testing::faults::Call| {
        call.operation == Operation::GetBlob && call.subject.contains("requests/")
    };
    assert_eq!(faulty.calls().iter().filter(read).count(), 0);
}

#[tokio::test(start_paused = true)]
async fn answers_that_hang_hold_up_neither_the_record_nor_the_requests() {
    let storage = in_memory();
    let admin = operator(&storage);
    let first = send(&storage, "first", SendOptions::new()).await;
    let _ = admin.cancel(&first).await.unwrap();
    let long = send(&storage, "long", SendOptions::new()).await;
    // Quiet: only the answers that hang delay the record.
    let faulty = Faulty::quiet(&storage);
    faulty.on(Operation::PutBlob, |call| call.subject.contains("answers/").then_some(Fault::Hang));
    let handler = async |_: Task, ctx: Context| {
        ctx.token().cancelled().await;
        Err::<(), _>(JobError::retry("stopped"))
    };
    let running = present(&faulty.storage()).handle(handler).build().unwrap().run_until(after(300));
    let cancelling = async {
        sleep(Duration::from_secs(120)).await;
        assert_eq!(admin.cancel(&long).await.unwrap().workers, 1, "the worker is present");
        sleep(Duration::from_secs(30)).await;
        assert_eq!(dead(&admin).await.len(), 2, "and has read the second request");
    };
    let (report, ()) = tokio::join!(running, cancelling);
    let _ = report.unwrap();
}
