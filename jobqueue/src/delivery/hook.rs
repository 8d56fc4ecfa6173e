//! Hooks around deliveries: asked before a handler runs, called before a message is settled.
//!
//! The worker knows only this trait. The crate root gives it the implementations.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::queue_worker::DeliveryGuard;
use crate::error::Error;
use crate::job::JobInfo;
use crate::queue::LeasedJob;
use crate::storage::{MessageId, Storage};

/// The delivery for which a hook is called.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HookContext<'a> {
    /// The storage of the worker's queues.
    pub(crate) storage: &'a Storage,
    /// The job.
    pub(crate) job: &'a JobInfo,
    /// The id of the stored message: the same at every delivery, another one for a second copy of the job.
    pub(crate) message: &'a MessageId,
    /// The delivery itself.
    pub(crate) leased_job: &'a LeasedJob,
}

/// Lets a hook wait before the handler runs.
#[derive(Clone, Copy)]
pub(crate) struct Waiting<'a> {
    /// Fires when no further handler may start.
    pub(crate) stop: &'a CancellationToken,
    /// True if the worker runs until it is idle.
    pub(crate) until_idle: bool,
    pub(super) guard: &'a DeliveryGuard,
}

impl Waiting<'_> {
    /// Frees the slot for another delivery until [`take_slot`](Self::take_slot).
    pub(crate) fn leave_slot(&self) {
        self.guard.leave_slot();
    }

    /// Waits for a slot.
    pub(crate) async fn take_slot(&self) {
        self.guard.take_slot().await;
    }
}

/// The decision of a hook before a handler runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Run the handler.
    Run,
    /// The job is done already. Do what follows from its end, then delete the message.
    Finished,
    /// Another message of the same job replaces this one. Delete it.
    Duplicate,
    /// It is not the job's turn. Put the message back for this time.
    Wait(Duration),
}

/// Work around deliveries. If a hook fails, the message stays in its queue and is delivered again.
#[async_trait]
pub(crate) trait Hook: fmt::Debug + Send + Sync + 'static {
    /// Returns whether the hook is concerned with the job. Most jobs concern no hook.
    fn applies_to(&self, job: &JobInfo) -> bool;

    /// Decides before the handler runs.
    async fn admit(&self, hook_context: HookContext<'_>, waiting: Waiting<'_>) -> Result<Decision, Error>;

    /// Called after the handler has finished and before the message is deleted. `handed_over`: another message
    /// continues the job, so that it ends later.
    async fn completing(
        &self,
        hook_context: HookContext<'_>,
        result: Option<&RawValue>,
        handed_over: bool,
    ) -> Result<(), Error>;

    /// Called before the message is moved to the dead-letter queue.
    async fn dead_lettering(
        &self,
        hook_context: HookContext<'_>,
        reason: &str,
        detail: &str,
    ) -> Result<(), Error>;
}
