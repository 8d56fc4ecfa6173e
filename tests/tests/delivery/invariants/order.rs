//! Order per key while the storage of the group logs fails.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Context, JobError, Queue, SendOptions, memory};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, outcomes, task, worker};
use tokio::time::Instant;

async fn queue(faulty: &Faulty) -> Queue<Task> {
    faulty.storage().queue::<Task>().await.unwrap()
}

fn in_order() -> SendOptions {
    SendOptions::new().in_order()
}

#[tokio::test(start_paused = true)]
async fn clear_removes_fifo_groups_or_reports_an_error() {
    let faulty = Faulty::new(&memory::open());
    let queue = queue(&faulty).await;
    queue.clear().await.expect("no message was ever sent in order");
    for (operation, kind) in [
        (Operation::ListBlobs, StoreErrorKind::ContainerNotFound),
        (Operation::ListBlobs, StoreErrorKind::Unavailable),
        (Operation::PutBlob, StoreErrorKind::ConditionNotMet),
        (Operation::PutBlob, StoreErrorKind::Unavailable),
    ] {
        let _ = queue.send(&task("a")).with(in_order()).await.unwrap();
        faulty.plan(operation, 1, Fault::Refuse(kind));
        assert!(queue.clear().await.is_ok(), "{operation:?}, {kind:?}");
    }
    let _ = queue.send(&task("a")).with(in_order()).await.unwrap();
    faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unavailable));
    assert!(queue.clear().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn message_without_position_is_cancelled_and_reported() {
    // How often a place is asked for; who is overtaken by others tries longest.
    for (fault, tries, again) in [
        (Fault::Refuse(StoreErrorKind::Throttled), 5, true),
        (Fault::LoseRequest(StoreErrorKind::Throttled), 40, true),
        (Fault::Refuse(StoreErrorKind::ConditionNotMet), 40, true),
        (Fault::LoseRequest(StoreErrorKind::Protocol), 40, true),
        (Fault::Refuse(StoreErrorKind::Unauthorized), 1, false),
    ] {
        let faulty = match fault {
            // Quiet: only such a storage throttles with certainty.
            Fault::Refuse(StoreErrorKind::Throttled) => Faulty::quiet(&memory::open()),
            _ => Faulty::new(&memory::open()),
        };
        let queue = queue(&faulty).await;
        faulty.plan_always(Operation::PutBlob, fault);
        let began = Instant::now();
        let error = queue.send(&task("a")).with(in_order()).await.unwrap_err();
        assert_eq!(faulty.calls_of(Operation::PutBlob), tries, "{fault:?}");
        // Pauses double up to half a second, and are shortened at random to a fifth.
        let seconds = began.elapsed().as_secs_f64();
        assert_eq!((2.0..25.0).contains(&seconds), tries == 40, "{fault:?}: {seconds} s");
        assert!(error.is_rejected(), "{fault:?}: {error}");
        assert_eq!(error.is_retryable(), again, "{fault:?}: {error}");
        assert!(queue.is_empty().await.unwrap(), "{fault:?}");
    }
}

/// Otherwise the log would count as empty, and its positions as free.
#[tokio::test(start_paused = true)]
async fn unreadable_group_log_is_not_overwritten() {
    let faulty = Faulty::new(&memory::open());
    let queue = queue(&faulty).await;
    faulty.plan_always(Operation::GetBlob, Fault::Refuse(StoreErrorKind::Unauthorized));
    assert!(queue.send(&task("a")).with(in_order()).await.unwrap_err().is_rejected());
    assert_eq!(faulty.calls_of(Operation::GetBlob), 1);
    assert_eq!(faulty.calls_of(Operation::PutBlob), 0);
}

#[tokio::test(start_paused = true)]
async fn delivery_that_waits_here_for_its_turn_is_called_at_once() {
    let faulty = Faulty::new(&memory::open());
    let queue = queue(&faulty).await;
    for _ in 0..5 {
        let _ = queue.send(&task("a")).with(in_order()).await.unwrap();
    }
    let begun: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let sink = Arc::clone(&begun);
    let handler = move |_: Task| {
        sink.lock().unwrap().push(Instant::now());
        async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok::<(), JobError>(())
        }
    };
    let worker = worker(&faulty.storage()).concurrency(8).handle(handler).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 5);
    let begun = begun.lock().unwrap();
    let took = begun[4] - begun[0];
    assert!(took < Duration::from_millis(300), "four of 10 ms took {took:?}");
}

/// A message that another worker has, or whose lease has expired, is not done, whatever its handler returns.
// I9, F35
#[tokio::test(start_paused = true)]
async fn lost_lease_leaves_its_position_to_the_next_delivery() {
    for fault in [Fault::Refuse(StoreErrorKind::PopReceiptMismatch), Fault::Hang] {
        let faulty = Faulty::new(&memory::open());
        let _ = queue(&faulty).await.send(&task("a")).with(in_order()).await.unwrap();
        faulty.plan_always(Operation::Update, fault);
        let runs: Arc<Mutex<u32>> = Arc::default();
        let (count, plan) = (Arc::clone(&runs), faulty.clone());
        let handler = move |_: Task, ctx: Context| {
            let plan = plan.clone();
            *count.lock().unwrap() += 1;
            async move {
                tokio::select! {
                    () = ctx.token().cancelled() => plan.heal(),
                    () = after(40) => {}
                }
                Ok::<(), JobError>(())
            }
        };
        let worker = worker(&faulty.storage()).handle(handler).build().unwrap();
        let report = worker.run_until(after(300)).await.unwrap();
        assert_eq!(report.lease_lost, 1, "{fault:?}");
        assert_eq!(report.completed, 1, "{fault:?}");
        assert_eq!(*runs.lock().unwrap(), 2, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_for_their_turn_hold_no_slot() {
    let faulty = Faulty::new(&memory::open());
    let queue = queue(&faulty).await;
    for _ in 0..30 {
        let _ = queue.send(&task("a")).with(in_order()).await.unwrap();
    }
    queue.send(&task("b")).await.unwrap();
    let handler = |task: Task| async move {
        after(if task.name == "a" { 20 } else { 0 }).await;
        Ok::<(), JobError>(())
    };
    let (log, listen) = outcomes();
    let worker = worker(&faulty.storage()).concurrency(2).handle(handler).on_event(listen).build().unwrap();
    let watch = async move {
        after(5).await;
        assert_eq!(*log.lock().unwrap(), ["completed"], "one of `a` runs, all others of it wait");
    };
    let report = worker.run_until(watch).await.unwrap();
    assert_eq!(report.completed, 2);
    assert_eq!(queue.approximate_len().await.unwrap(), 29);
}
