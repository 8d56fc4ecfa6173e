//! Jobs whose handler has finished while their messages can be neither deleted nor put back.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::JobError;
use jobqueue::memory;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, outcomes, task, worker};

const OUTAGE: Fault = Fault::Refuse(StoreErrorKind::Unavailable);

/// Returns storages that delete nothing: some delete messages together, some do not; some refuse, some do not
/// answer.
fn that_delete_nothing() -> Vec<Faulty> {
    let mut storages = Vec::new();
    for fault in [OUTAGE, Fault::Hang] {
        for faulty in [Faulty::new(&memory::open()), Faulty::deleting_one_by_one(&memory::open())] {
            faulty.plan_always(Operation::Delete, fault);
            faulty.plan_always(Operation::DeleteAll, fault);
            storages.push(faulty);
        }
    }
    storages
}

/// Queues are out of reach, blobs are not; the worker is killed long before its lease ends.
// audit 33, core B2
#[tokio::test(start_paused = true)]
async fn completion_is_recorded_beside_a_deletion_that_takes_long() {
    for faulty in that_delete_nothing() {
        let queue = faulty.storage().queue::<Task>().await.unwrap();
        let _ = queue.send(&task("a")).await.unwrap();
        let runs: Arc<AtomicU32> = Arc::default();
        let count = Arc::clone(&runs);
        let handler = move |_: Task| {
            count.fetch_add(1, Ordering::Relaxed);
            async { Ok::<(), JobError>(()) }
        };
        let (log, listen) = outcomes();
        let build = || worker(&faulty.storage()).durable_completions(true).handle(handler.clone());
        let killed = build().build().unwrap().run_until(std::future::pending());
        assert!(tokio::time::timeout(Duration::from_secs(5), killed).await.is_err());
        faulty.heal();
        let next = build().on_event(listen).build().unwrap();
        let _ = next.run_until(after(60)).await.unwrap();
        assert_eq!(*log.lock().unwrap(), ["duplicate"]);
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    }
}

/// The lease lasts for longer than a shutdown waits.
// audit 33, core B2
#[tokio::test(start_paused = true)]
async fn shutdown_leaves_a_message_whose_completion_is_recorded() {
    for faulty in that_delete_nothing() {
        let queue = faulty.storage().queue::<Task>().await.unwrap();
        let _ = queue.send(&task("a")).await.unwrap();
        let (log, listen) = outcomes();
        let handler = |_: Task| async { Ok::<(), JobError>(()) };
        let mut overrides = jobqueue::settings::SettingOverrides::default();
        overrides.timeout = Some(Duration::from_secs(600));
        let worker = worker(&faulty.storage()).durable_completions(true).overrides(overrides);
        let worker = worker.handle(handler).on_event(listen);
        let report = worker.build().unwrap().run_until(after(3)).await.unwrap();
        assert_eq!(*log.lock().unwrap(), ["completed_uncertain"]);
        assert_eq!(report.abandoned, 0, "{report:?}");
    }
}

/// A put-back that the storage refuses is tried until the lease ends. The next job does not wait for that.
// audit 33, core C3
#[tokio::test(start_paused = true)]
async fn job_that_cannot_be_put_back_gives_its_slot_away() {
    let faulty = Faulty::new(&memory::open());
    faulty.plan_always(Operation::Update, OUTAGE);
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    for name in ["fails", "follows"] {
        let _ = queue.send(&task(name)).await.unwrap();
    }
    let ran: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&ran);
    let handler = move |task: Task| {
        noted.lock().unwrap().push(task.name.clone());
        async move { if task.name == "fails" { Err(JobError::retry("not now")) } else { Ok(()) } }
    };
    let worker = worker(&faulty.storage()).concurrency(1).handle(handler).build().unwrap();
    let _ = worker.run_until(after(10)).await.unwrap();
    assert_eq!(*ran.lock().unwrap(), ["fails", "follows"]);
}
