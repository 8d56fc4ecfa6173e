//! The end of a delivery, before and after it is settled.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::job::JobInfo;
use crate::job::outcome::{JobError, Outcome, Reason, chain};
use crate::job::retry::Backoff;
use crate::queue::{Cause, LeasedJob, Rejection};

/// The end of a delivery, before it is settled.
#[derive(Debug)]
pub(super) enum Ending {
    /// The handler finished.
    Done(Arc<JobInfo>),
    /// The job was done before, or another message of it replaces this one.
    Duplicate(Arc<JobInfo>),
    /// An attempt has failed.
    Failed(Arc<JobInfo>, Failure),
    /// The message must never run.
    Rejected(Rejection),
    /// The message is put back for this time, without costing an attempt.
    Released(Duration),
    /// The message is put back for this time, because its handler has reached a limit. This costs no attempt.
    OverLimit(Duration),
    /// The message is put back until what it waits for has come, with a text that says what. This costs no attempt.
    Deferred(Cause, String),
    /// The lease is lost: nothing may be settled.
    LeaseLost,
    /// A shutdown has released the message while its handler was running.
    TakenOver(Arc<JobInfo>),
}

/// A failed attempt.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: JobError,
    /// The back-off of the message type, if it declares one.
    pub(super) backoff: Option<Backoff>,
    /// The reason to give in the dead letter if this was the last attempt.
    pub(super) last: Reason,
    /// True if the application's retry policy is asked.
    pub(super) ask_policy: bool,
}

impl Failure {
    /// Returns the failure of a handler.
    pub(super) fn of_handler(error: JobError, backoff: Option<Backoff>) -> Self {
        Self { error, backoff, last: Reason::ATTEMPTS_EXHAUSTED, ask_policy: true }
    }

    /// Returns the failure of other application code. The policy is not asked, as it may be that code.
    pub(super) fn panicked(error: JobError) -> Self {
        Self { ask_policy: false, ..Self::of_handler(error, None) }
    }
}

/// The result of a delivery.
pub(super) struct Finished {
    /// The job; `None` if the message is not a job.
    pub(super) job: Option<Arc<JobInfo>>,
    pub(super) outcome: Outcome,
    pub(super) ran: Duration,
    /// The time until the delivery.
    pub(super) waited: Duration,
    /// The error in one line.
    pub(super) error: Option<String>,
}

impl Finished {
    /// Returns the code of a failed attempt to settle the delivery.
    pub(super) fn settle_error(&self) -> Option<&'static str> {
        match self.outcome {
            Outcome::LeaseLost => Some("lease_lost"),
            Outcome::CompletedUncertain => Some("uncertain"),
            _ => None,
        }
    }

    /// Returns the result of a delivery after an attempt to settle it. `told` is the error that occurred before.
    pub(super) fn of(
        leased_job: &LeasedJob,
        job: Option<Arc<JobInfo>>,
        settled: Result<Outcome, Error>,
        ran: Duration,
        told: Option<String>,
    ) -> Self {
        let waited = leased_job.waited();
        match settled {
            Ok(outcome) => Self { job, outcome, ran, waited, error: told },
            Err(error) => {
                // Settling failed: the message becomes visible again when its lease runs out.
                leased_job.lease.abandon();
                let text = chain(&error);
                tracing::warn!(queue = %leased_job.core.name, error = %text, "settling the delivery failed");
                Self { job, outcome: Outcome::LeaseLost, ran, waited, error: told.or(Some(text)) }
            }
        }
    }
}
