//! Defines what coordination does around deliveries: asked before a handler runs, told before a message is settled.
//!
//! The worker knows only this trait. What is behind it is put together at the crate root.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::queue_worker::Place;
use crate::error::Error;
use crate::job::JobInfo;
use crate::queue::LeasedJob;
use crate::storage::{MessageId, Storage};

/// The delivery a hook is asked about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HookContext<'a> {
    /// The storage of the worker's queues.
    pub(crate) storage: &'a Storage,
    /// The job.
    pub(crate) job: &'a JobInfo,
    /// The stored message: the same at every delivery, another one for a second copy of the job.
    pub(crate) message: &'a MessageId,
    /// The delivery itself.
    pub(crate) leased_job: &'a LeasedJob,
}

/// A way to wait before the handler runs.
#[derive(Clone, Copy)]
pub(crate) struct Waiting<'a> {
    /// Fires when nothing more is to be begun.
    pub(crate) stop: &'a CancellationToken,
    /// True if somebody waits for the worker to be idle.
    pub(crate) until_idle: bool,
    pub(super) place: &'a Place,
}

impl Waiting<'_> {
    /// Leaves the slot to another delivery, until it is taken again.
    pub(crate) fn leave_slot(&self) {
        self.place.leave_slot();
    }

    /// Waits for a slot.
    pub(crate) async fn take_slot(&self) {
        self.place.take_slot().await;
    }
}

/// True if a handler is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It is.
    Run,
    /// The job is done already; what follows from its end is still to be done, then the message is deleted.
    Finished,
    /// Another message of the same job is the one that counts; this one is deleted.
    Duplicate,
    /// It is not its turn: put back for this time.
    Wait(Duration),
}

/// Something to be done around deliveries. An error leaves the message in its queue, to be delivered again.
#[async_trait]
pub(crate) trait Hook: fmt::Debug + Send + Sync + 'static {
    /// Returns whether it has to do with the job at all; asked first, since most jobs are nobody's affair.
    fn applies_to(&self, job: &JobInfo) -> bool;

    /// Asked before the handler runs.
    async fn admit(&self, hook_context: HookContext<'_>, waiting: Waiting<'_>) -> Result<Decision, Error>;

    /// Told after the handler has finished and before the message is deleted. `handed_over`: the job ends later, in
    /// another message.
    async fn completing(
        &self,
        hook_context: HookContext<'_>,
        result: Option<&RawValue>,
        handed_over: bool,
    ) -> Result<(), Error>;

    /// Told before the message is moved to the dead-letter queue.
    async fn dead_lettering(
        &self,
        hook_context: HookContext<'_>,
        reason: &str,
        detail: &str,
    ) -> Result<(), Error>;
}
