//! Results of steps that the storage refuses to save for a while: the work is not repeated while the lease is
//! held.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Context, JobError, Report};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, payloads, task, worker};

/// A job of two attempts with a step in a blob, and with one of some bytes, after whose work the storage
/// refuses an operation.
#[derive(Debug, Clone, Copy)]
struct RefusedStep {
    refused: Operation,
    /// The seconds for which it is refused; `None`: until the handler is dropped.
    seconds: Option<u64>,
    bytes: usize,
}

/// Ends the refusals when the handler is dropped.
struct HealOnDrop(Option<Faulty>);

impl Drop for HealOnDrop {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|plan| plan.heal());
    }
}

impl RefusedStep {
    /// Runs the job, first by a worker that stops after some seconds. Returns how often the work was done,
    /// and the report of the first worker.
    async fn run(self, stopped_after: u64) -> (u32, Report) {
        let faulty = Faulty::new(&in_memory());
        faulty.storage().queue::<Task>().await.unwrap().send(&task("a")).await.unwrap();
        let works = Arc::<AtomicU32>::default();
        let run_for = async |seconds| {
            let (plan, works) = (faulty.clone(), Arc::clone(&works));
            let handler = move |_: Task, ctx: Context| {
                let (plan, works) = (plan.clone(), Arc::clone(&works));
                async move {
                    let _heal = HealOnDrop(self.seconds.is_none().then(|| plan.clone()));
                    // In a blob of its own, which a put-back without the second must not lose.
                    let first = ctx.step("first", async || Ok::<_, JobError>("f".repeat(20_000))).await?;
                    assert_eq!(first.len(), 20_000);
                    let work = async || -> Result<String, JobError> {
                        if works.fetch_add(1, SeqCst) == 0 {
                            plan.plan_always(self.refused, Fault::Refuse(StoreErrorKind::Unavailable));
                            if let Some(seconds) = self.seconds {
                                tokio::spawn(async move {
                                    after(seconds).await;
                                    plan.heal();
                                });
                            }
                        }
                        Ok("s".repeat(self.bytes))
                    };
                    assert_eq!(ctx.step("second", work).await?.len(), self.bytes);
                    if ctx.info().attempt == 1 { Err(JobError::retry("after the steps")) } else { Ok(()) }
                }
            };
            let builder = worker(&faulty.storage()).shutdown_timeout(Duration::ZERO);
            builder.handle(handler).build().unwrap().run_until(after(seconds)).await.unwrap()
        };
        let first = run_for(stopped_after).await;
        let second = run_for(900).await;
        assert_eq!(first.completed + second.completed, 1, "{self:?}: {first:?} {second:?}");
        // A blob that is being written when its handler is dropped is left to a sweep, as the guide says.
        let may_be_left = usize::from(self.seconds.is_none());
        let left = payloads(&faulty.storage()).await;
        assert!(left <= may_be_left, "{self:?}: {left} blobs are left");
        (works.load(SeqCst), first)
    }
}

// audit 25, core B1
#[tokio::test(start_paused = true)]
async fn step_is_not_repeated_although_the_storage_refuses_its_result_for_a_while() {
    for (refused, seconds, bytes) in
        [(Operation::PutBlob, 2, 40_000), (Operation::PutBlob, 300, 40_000), (Operation::Update, 8, 10)]
    {
        let step = RefusedStep { refused, seconds: Some(seconds), bytes };
        let (works, report) = step.run(900).await;
        assert_eq!((works, report.retried), (1, 1), "{step:?}: {report:?}");
    }
}

// audit 25, core B1
#[tokio::test(start_paused = true)]
async fn step_whose_handler_is_dropped_is_saved_by_the_put_back() {
    for (refused, bytes) in [(Operation::PutBlob, 40_000), (Operation::Update, 10)] {
        let step = RefusedStep { refused, seconds: None, bytes };
        let (works, report) = step.run(1).await;
        assert_eq!((works, report.released, report.abandoned), (1, 1, 0), "{step:?}: {report:?}");
    }
}

// audit 25, core B1
#[tokio::test(start_paused = true)]
async fn message_is_put_back_without_a_step_that_cannot_be_stored() {
    let step = RefusedStep { refused: Operation::PutBlob, seconds: Some(60), bytes: 40_000 };
    let (works, report) = step.run(1).await;
    assert_eq!((works, report.released, report.abandoned), (2, 1, 0), "{report:?}");
}

// audit 27, runtime B1: each later step was saved with the result that the storage refuses, and so refused as
// well.
#[tokio::test(start_paused = true)]
async fn result_that_is_refused_for_good_does_not_keep_later_ones_from_being_saved() {
    let faulty = Faulty::new(&in_memory());
    faulty.storage().queue::<Task>().await.unwrap().send(&task("a")).await.unwrap();
    for operation in [Operation::PutBlob, Operation::CreateContainer] {
        faulty.plan_always(operation, Fault::Refuse(StoreErrorKind::Unauthorized));
    }
    let [large, small, last] = [(); 3].map(|()| Arc::<AtomicU32>::default());
    let works = [Arc::clone(&large), Arc::clone(&small), Arc::clone(&last)];
    let handler = move |_: Task, ctx: Context| {
        let [large, small, last] = works.clone();
        async move {
            let work = |works: &AtomicU32, bytes| {
                works.fetch_add(1, SeqCst);
                std::future::ready(Ok::<_, JobError>("r".repeat(bytes)))
            };
            ctx.step("large", || work(&large, 40_000)).await.unwrap_err();
            ctx.step("small", || work(&small, 10)).await?;
            ctx.checkpoint(&"p".repeat(40_000)).await.unwrap_err();
            ctx.step("last", || work(&last, 10)).await?;
            if ctx.info().attempt == 1 { Err(JobError::retry("after the steps")) } else { Ok(()) }
        }
    };
    let built = worker(&faulty.storage()).handle(handler).build().unwrap();
    let report = built.run_until(after(900)).await.unwrap();
    assert_eq!((report.retried, report.completed), (1, 1), "{report:?}");
    assert_eq!([large, small, last].map(|works| works.load(SeqCst)), [2, 1, 1]);
}
