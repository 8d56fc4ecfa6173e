//! Defines how a delivery ends, before and after it is settled.

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
    /// The job was done before, or another message of it counts.
    Duplicate(Arc<JobInfo>),
    /// An attempt has failed.
    Failed(Arc<JobInfo>, Failure),
    /// Never to be run.
    Rejected(Rejection),
    /// To be put back for this time; costs no attempt.
    Released(Duration),
    /// To be put back until something comes that the message waits for, told in a sentence; costs no attempt.
    Deferred(Cause, String),
    /// The lease is lost: nothing may be settled.
    LeaseLost,
    /// A shutdown has released the message while its handler went on.
    TakenOver(Arc<JobInfo>),
}

/// A failed attempt.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: JobError,
    /// The back-off of the message's type, if it has one.
    pub(super) backoff: Option<Backoff>,
    /// The reason of the dead letter if this was the last attempt.
    pub(super) last: Reason,
    /// True if the application's retry policy has a say.
    pub(super) ask_policy: bool,
}

impl Failure {
    /// Of a handler.
    pub(super) fn of_handler(error: JobError, backoff: Option<Backoff>) -> Self {
        Self { error, backoff, last: Reason::ATTEMPTS_EXHAUSTED, ask_policy: true }
    }

    /// Of other code of the application, which may be the policy.
    pub(super) fn panicked(error: JobError) -> Self {
        Self { ask_policy: false, ..Self::of_handler(error, None) }
    }
}

/// The result of a delivery.
pub(super) struct Finished {
    /// `None` if the message is no job.
    pub(super) job: Option<Arc<JobInfo>>,
    pub(super) outcome: Outcome,
    pub(super) ran: Duration,
    /// The error in one line.
    pub(super) error: Option<String>,
}

impl Finished {
    /// Returns what is told of a delivery, once it was tried to settle it; `told` is what went wrong before.
    pub(super) fn of(
        leased_job: &LeasedJob,
        job: Option<Arc<JobInfo>>,
        settled: Result<Outcome, Error>,
        ran: Duration,
        told: Option<String>,
    ) -> Self {
        match settled {
            Ok(outcome) => Self { job, outcome, ran, error: told },
            Err(error) => {
                // Not settled: the message comes back when its lease is over.
                leased_job.lease.abandon();
                let text = chain(&error);
                tracing::warn!(queue = %leased_job.core.name, error = %text, "delivery not settled");
                Self { job, outcome: Outcome::LeaseLost, ran, error: told.or(Some(text)) }
            }
        }
    }
}
