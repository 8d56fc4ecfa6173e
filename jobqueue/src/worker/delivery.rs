//! One delivery from its message to its end: decode, decide, run, settle.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;

use super::decide::{self, Decided};
use super::ending::{Ending, Failure, Finished};
use super::queue_worker::{DeliveryGuard, QueueWorker};
use super::run::{self, Ran};
use super::{completion, settle};
use crate::job::JobInfo;
use crate::job::outcome::{JobError, Outcome};
use crate::queue::{self, Incoming, LeasedJob};

/// The progress of a delivery.
pub(super) enum Delivered {
    /// The delivery has ended.
    Finished(Finished),
    /// The handler has finished; the message must be deleted together with others.
    Done { leased_job: Arc<LeasedJob>, job: Arc<JobInfo>, ran: Duration },
}

/// Runs a delivery to its end, or until only the deletion of its message is left. It does not panic: if application
/// code panics while the message is read, validated, run or settled, the attempt has failed.
pub(super) async fn deliver(
    worker: &QueueWorker,
    incoming: Box<Incoming>,
    guard: &DeliveryGuard,
) -> Delivered {
    let leased = OnceLock::new();
    let delivery = AssertUnwindSafe(decode_and_run(worker, incoming, guard, &leased)).catch_unwind();
    match delivery.await {
        Ok(delivered) => delivered,
        Err(panic) => {
            let text = format!("a panic outside the handler: {}", panic_text(&*panic));
            Delivered::Finished(Box::pin(after_panic(worker, leased.into_inner(), text)).await)
        }
    }
}

async fn decode_and_run(
    worker: &QueueWorker,
    incoming: Box<Incoming>,
    guard: &DeliveryGuard,
    leased: &OnceLock<Arc<LeasedJob>>,
) -> Delivered {
    let (leased_job, decoded) = queue::decode(&worker.core, *incoming, &*worker.handlers).await;
    let leased_job = Arc::new(leased_job);
    // It is empty: this is the only delivery.
    drop(leased.set(Arc::clone(&leased_job)));
    guard.ends(&leased_job.lease);
    let decided = decide::decide(worker, &leased_job, decoded, guard).await;
    worker.unknown.note(decided.seen());
    let ran = match decided {
        // Boxed, so that neither this future nor that of the run is too large for the allocator's fast path.
        Decided::Run(ready) => match Box::pin(run::run(worker, &leased_job, ready, guard)).await {
            Ran { ending: Ending::Done(job), ran, .. } if completion::together(worker, &leased_job) => {
                return Delivered::Done { leased_job, job, ran };
            }
            ended => ended,
        },
        Decided::End(ending) => Ran::not(*ending),
    };
    // Boxed, because most deliveries end above.
    Delivered::Finished(Box::pin(settle::settle(&worker.shared, &leased_job, ran)).await)
}

/// Settles a delivery whose application code panicked, without calling such code again.
async fn after_panic(worker: &QueueWorker, leased_job: Option<Arc<LeasedJob>>, text: String) -> Finished {
    let Some(leased_job) = leased_job else {
        // The message becomes visible again when its lease runs out.
        let (ran, waited) = (Duration::ZERO, Duration::ZERO);
        return Finished { job: None, outcome: Outcome::LeaseLost, ran, waited, error: Some(text) };
    };
    let ending = match leased_job.info().map(Arc::new) {
        Some(job) => Ending::Failed(job, Failure::panicked(JobError::retry(text))),
        None => Ending::Released(Duration::ZERO),
    };
    settle::settle(&worker.shared, &leased_job, Ran::not(ending)).await
}

/// Puts back a message that was leased by a request under way when the worker was told to stop.
pub(super) async fn put_back(worker: &QueueWorker, incoming: Box<Incoming>) {
    let leased_job = queue::lease_only(&worker.core, *incoming, &*worker.handlers);
    let ending = Ending::Released(Duration::ZERO);
    let finished = settle::settle(&worker.shared, &leased_job, Ran::not(ending)).await;
    worker.shared.report().count(&finished.outcome);
}

/// Returns the text of a panic, if it has one.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
