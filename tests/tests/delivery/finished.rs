//! Jobs whose handler has finished while the end of the job cannot be recorded: the handler does not run
//! again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Context, JobError, Report};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};

/// A storage without groups of its own: each key has a log in blobs.
struct Scene {
    faulty: Faulty,
    runs: Arc<AtomicU32>,
}

impl Scene {
    fn new() -> Self {
        Self { faulty: Faulty::new(&in_memory()), runs: Arc::default() }
    }

    async fn send(&self, task: &Task) {
        let queue = self.faulty.storage().queue::<Task>().await.unwrap();
        let _ = queue.send(task).in_order().await.unwrap();
    }

    /// Runs jobs whose result is large, and refuses changes of blobs for `outage` seconds from the end of the
    /// first handler.
    async fn run(&self, refusal: StoreErrorKind, outage: u64, seconds: u64) -> Report {
        let (runs, faulty) = (Arc::clone(&self.runs), self.faulty.clone());
        let handler = move |_: Task, ctx: Context| {
            let is_first = runs.fetch_add(1, Ordering::Relaxed) == 0;
            let faulty = faulty.clone();
            async move {
                ctx.set_result(&"r".repeat(15_000))?;
                if is_first {
                    faulty.plan_always(Operation::PutBlob, Fault::Refuse(refusal));
                    tokio::spawn(async move {
                        after(outage).await;
                        faulty.heal();
                    });
                }
                Ok::<(), JobError>(())
            }
        };
        let built = worker(&self.faulty.storage()).handle(handler).build().unwrap();
        built.run_until(after(seconds)).await.unwrap()
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::Relaxed)
    }
}

// H1
#[tokio::test(start_paused = true)]
async fn an_outage_of_blobs_repeats_no_handler_whose_output_has_no_room() {
    let scene = Scene::new();
    scene.send(&Task { name: "a".into(), data: "x".repeat(55_000) }).await;
    let report = scene.run(StoreErrorKind::Unavailable, 20, 300).await;
    assert_eq!((scene.runs(), report.completed, report.lease_lost), (1, 1, 0), "{report:?}");
}

// H1: while the outage lasts, the message cannot keep that its handler has finished.
#[tokio::test(start_paused = true)]
async fn a_long_outage_of_blobs_costs_a_finished_job_no_delivery() {
    let scene = Scene::new();
    scene.send(&Task { name: "a".into(), data: "x".repeat(55_000) }).await;
    let report = scene.run(StoreErrorKind::Unavailable, 4 * 3_600, 5 * 3_600).await;
    let ends = (report.completed, report.dead_lettered, report.lease_lost, report.retried);
    assert_eq!(ends, (1, 0, 0, 0), "{report:?}");
}

// review 6, H1b
#[tokio::test(start_paused = true)]
async fn outage_of_blobs_holds_up_no_jobs_that_need_none() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    for n in 0..8 {
        let _ = queue.send(&task(format!("in order {n}"))).in_order().await.unwrap();
    }
    for n in 0..20 {
        let _ = queue.send(&task(format!("any {n}"))).await.unwrap();
    }
    let blobs = faulty.clone();
    let handler = move |_: Task| {
        blobs.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unavailable));
        async { Ok::<(), JobError>(()) }
    };
    let built = worker(&faulty.storage()).concurrency(4).handle(handler).build().unwrap();
    let report = built.run_until(after(45)).await.unwrap();
    assert_eq!(report.completed, 20, "{report:?}");
}

// BH1
#[tokio::test(start_paused = true)]
async fn a_finished_job_is_not_received_by_hand() {
    let scene = Scene::new();
    scene.send(&task("a")).await;
    let report = scene.run(StoreErrorKind::Unauthorized, 120, 90).await;
    assert_eq!((scene.runs(), report.completed), (1, 0), "{report:?}");
    after(60).await;
    let queue = scene.faulty.storage().queue::<Task>().await.unwrap();
    assert!(queue.receive(Duration::from_secs(400)).await.unwrap().is_none());
    let report = scene.run(StoreErrorKind::Unauthorized, 0, 60).await;
    assert_eq!((scene.runs(), report.completed), (1, 1), "{report:?}");
}

// Audit 27, core 3: a task that the handler had left saved progress at that time.
#[tokio::test(start_paused = true)]
async fn finished_handler_is_not_forgotten_by_a_checkpoint_under_way() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).in_order().await.unwrap();
    let runs: Arc<AtomicU32> = Arc::default();
    let (counted, storage) = (Arc::clone(&runs), faulty.clone());
    let handler = move |_: Task, ctx: Context| {
        counted.fetch_add(1, Ordering::Relaxed);
        let faulty = storage.clone();
        async move {
            faulty.plan(Operation::Update, 1, Fault::DelayAfter(Duration::from_secs(5)));
            tokio::spawn(async move { ctx.checkpoint(&1).await });
            after(1).await;
            // The end of the job cannot be recorded.
            faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unauthorized));
            Ok::<(), JobError>(())
        }
    };
    let built = worker(&faulty.storage()).handle(handler).build().unwrap();
    let running = tokio::spawn(built.run_until(after(300)));
    after(60).await;
    faulty.heal();
    let report = running.await.unwrap().unwrap();
    assert_eq!((runs.load(Ordering::Relaxed), report.completed), (1, 1), "{report:?}");
}
