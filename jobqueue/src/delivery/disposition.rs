//! The disposition of a message, which a delivery decides and `settle` performs. Plain data.

use std::time::Duration;

use super::deferral::DeferralCause;
use crate::envelope::MAX_ERROR_CHARS;
use crate::job::outcome::{Reason, chain, printable};
use crate::message::DecodeError;

/// The end of a delivery: the action on its message.
#[derive(Debug)]
pub(crate) enum Disposition {
    /// Deletes the message: its handler has finished.
    Complete,
    /// Deletes the message: its job was done before.
    Discard,
    /// Deletes the message: its job was cancelled, and no message of the job runs.
    DiscardCancelled,
    /// Puts the message back for `wait`, and counts a failed attempt.
    Retry { wait: Duration, error: String },
    /// Moves the message to the dead-letter queue.
    DeadLetter(Rejection),
    /// Puts the message back for this time without counting an attempt.
    Release(Duration),
    /// Puts the message back for `wait` without counting an attempt, because its handler asked for that.
    /// The message keeps the error if the handler named a cause.
    Snooze { wait: Duration, error: String, has_cause: bool },
    /// Puts the message back for this time without counting an attempt, because its handler has reached a
    /// limit.
    OverLimit(Duration),
    /// Puts the message back until its condition is met, without counting an attempt. `detail` names the
    /// condition.
    Defer { cause: DeferralCause, detail: String },
    /// Does nothing: the lease is lost, or a shutdown ended it while the handler was running.
    Abandon,
}

impl Disposition {
    pub(super) fn error(&self) -> Option<String> {
        match self {
            Self::Retry { error, .. } | Self::Snooze { error, .. } => Some(error.clone()),
            Self::DeadLetter(rejection) => Some(rejection.detail.clone()),
            Self::Defer { cause, detail } => Some(format!("{}: {detail}", cause.name())),
            _ => None,
        }
    }

    /// Returns how long the message is put back after its run; `None` if it is not, or if the time is yet to
    /// be decided.
    pub(super) fn delay_after_run(&self) -> Option<Duration> {
        match self {
            Self::Retry { wait, .. } | Self::Snooze { wait, .. } => Some(*wait),
            _ => None,
        }
    }

    /// Returns whether the job may run again: at the next delivery of its message, or after a redrive.
    pub(super) fn may_run_again(&self) -> bool {
        match self {
            Self::Retry { .. } | Self::Snooze { .. } | Self::Defer { .. } => true,
            Self::Release(_) | Self::OverLimit(_) | Self::DeadLetter(_) => true,
            Self::Complete | Self::Discard | Self::DiscardCancelled | Self::Abandon => false,
        }
    }
}

/// The decision to dead-letter a message.
#[derive(Debug, Clone)]
pub(crate) struct Rejection {
    pub(crate) reason: Reason,
    /// One line without control characters.
    pub(crate) detail: String,
    /// True if an attempt of this delivery has failed and is not yet counted in the message.
    pub(super) attempted: bool,
    /// True if an earlier delivery has run the job, and has recorded its end.
    pub(super) has_run: bool,
}

impl Rejection {
    /// Returns a rejection that no failed attempt of this delivery led to.
    pub(crate) fn new(reason: Reason, detail: impl AsRef<str>) -> Self {
        let detail = printable(detail.as_ref(), MAX_ERROR_CHARS);
        Self { reason, detail, attempted: false, has_run: false }
    }

    /// Returns a rejection after a failed attempt of this delivery.
    pub(crate) fn of_attempt(reason: Reason, detail: impl AsRef<str>) -> Self {
        Self { attempted: true, ..Self::new(reason, detail) }
    }

    /// Returns whether the rate limit of rejections applies: the job has not run, and a single mistake may
    /// cause many. A cancellation is an operator's decision.
    pub(super) fn is_rate_limited(&self) -> bool {
        !self.attempted && !self.has_run && self.reason != Reason::CANCELLED
    }

    /// Returns the rejection of a payload that its type cannot decode.
    pub(crate) fn undecodable(error: &DecodeError) -> Self {
        let reason = match error {
            DecodeError::Invalid(_) => Reason::INVALID,
            _ => Reason::DECODE_ERROR,
        };
        Self::new(reason, chain(error))
    }
}

/// The disposition of a message whose handler does not run. Boxed because it is rare, and the future of every
/// delivery would reserve its size.
pub(crate) type NotRun = Box<Disposition>;

pub(super) fn rejected(rejection: Rejection) -> NotRun {
    Box::new(Disposition::DeadLetter(rejection))
}

pub(super) fn deferred(cause: DeferralCause, detail: String) -> NotRun {
    Box::new(Disposition::Defer { cause, detail })
}
