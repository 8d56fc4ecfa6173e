//! One delivery from its message to its end: decode, admit, run, settle.

use std::ops::ControlFlow::{Break, Continue};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;

use super::completion::Deletions;
use super::decode::{Incoming, inspect, lease_only};
use super::deferral::Cause;
use super::disposition::{DeliveryReport, Disposition};
use super::hook::Waiting;
use super::leased_job::HeldJob;
use super::registry::QueueHandlers;
use super::slot::{DeliverySlot, MessageClass};
use super::state::{DeliveryState, Snooze};
use crate::job::outcome::JobError;
use crate::queue_core::QueueCore;
use crate::sync::lock;

/// Runs the deliveries of one queue.
pub(crate) struct Executor {
    pub(crate) state: Arc<DeliveryState>,
    pub(crate) core: Arc<QueueCore>,
    pub(crate) handlers: Arc<QueueHandlers>,
    pub(crate) snooze: Arc<Snooze>,
    pub(crate) deletions: Arc<Deletions>,
    /// True if the worker runs until it is idle.
    pub(crate) until_idle: bool,
}

impl Executor {
    /// Runs a delivery to its end. `stop` fires when no further handler may start. It does not panic: if application code panics while
    /// the message is read, validated or run, the attempt has failed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lease ends with it.
    pub(crate) async fn deliver(
        &self,
        message: Box<Incoming>,
        slot: &dyn DeliverySlot,
        stop: &CancellationToken,
    ) -> DeliveryReport {
        let held = Mutex::new(None);
        match AssertUnwindSafe(self.attempt(message, slot, stop, &held)).catch_unwind().await {
            Ok(report) => report,
            Err(panic) => {
                let text = format!("a panic outside the handler: {}", panic_text(&*panic));
                Box::pin(self.after_panic(&held, slot, text)).await
            }
        }
    }

    async fn attempt(
        &self,
        message: Box<Incoming>,
        slot: &dyn DeliverySlot,
        stop: &CancellationToken,
        held: &Mutex<Option<HeldJob>>,
    ) -> DeliveryReport {
        let (leased_job, payload) = inspect(&self.core, *message, &*self.handlers);
        let leased_job = Arc::new(leased_job);
        *lock(held) = Some(HeldJob::new(&leased_job));
        let mut report = DeliveryReport::new(leased_job.waited());
        let waiting = Waiting { stop, until_idle: self.until_idle, slot };
        let admitted = self.admit(&leased_job, payload, waiting, &mut report).await;
        slot.classify(match &admitted {
            Continue(_) => MessageClass::Known,
            Break(disposition) => match **disposition {
                Disposition::Defer { cause: Cause::UnknownKind | Cause::NewerVersion, .. } => {
                    MessageClass::Unknown
                }
                Disposition::OverLimit(_) => MessageClass::OverLimit,
                _ => MessageClass::Known,
            },
        });
        let disposition = match admitted {
            Continue(runnable) => {
                report.attempted = true;
                // Boxed, so that neither this future nor that of the run is too large for the allocator's fast path.
                Box::pin(self.run(&leased_job, runnable, slot, &mut report)).await
            }
            Break(disposition) => {
                slot.give_back();
                *disposition
            }
        };
        if matches!(disposition, Disposition::TakenOver) {
            // The shutdown owns the lease.
            lock(held).take().into_iter().for_each(HeldJob::leave);
        }
        self.settle(&leased_job, disposition, slot, report).await
    }

    /// Settles a delivery whose application code panicked, without calling such code again.
    async fn after_panic(
        &self,
        held: &Mutex<Option<HeldJob>>,
        slot: &dyn DeliverySlot,
        text: String,
    ) -> DeliveryReport {
        let Some(leased_job) = lock(held).as_ref().and_then(HeldJob::get) else {
            // The message becomes visible again when its lease runs out.
            return DeliveryReport { error: Some(text), ..DeliveryReport::new(Duration::ZERO) };
        };
        let job = leased_job.info().map(Arc::new);
        let disposition = match &job {
            // The next delivery finds out whether the job is done.
            _ if leased_job.lease.end_transactions() => Disposition::Release(Duration::ZERO),
            // The policy is not asked: it may be the code that panicked.
            Some(job) => self.judge(job, &JobError::retry(text), None, None),
            None => Disposition::Release(Duration::ZERO),
        };
        let report = DeliveryReport { job, attempted: true, ..DeliveryReport::new(leased_job.waited()) };
        self.settle(&leased_job, disposition, slot, report).await
    }

    /// Puts back a message that was leased by a request under way when the worker was stopped.
    pub(crate) async fn put_back(&self, message: Box<Incoming>, slot: &dyn DeliverySlot) -> DeliveryReport {
        let leased_job = Arc::new(lease_only(&self.core, *message, &*self.handlers));
        let job = leased_job.info().map(Arc::new);
        let report = DeliveryReport { job, ..DeliveryReport::new(leased_job.waited()) };
        self.settle(&leased_job, Disposition::Release(Duration::ZERO), slot, report).await
    }
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
