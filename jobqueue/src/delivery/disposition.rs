//! The disposition of a message, which a delivery decides and `settle` performs. Plain data.

use std::time::Duration;

use super::deferral::DeferralCause;
use crate::envelope::MAX_ERROR_CHARS;
use crate::job::outcome::{Reason, chain, printable};
use crate::message::DecodeError;

/// The disposition of a delivery's message.
#[derive(Debug)]
pub(crate) enum Disposition {
    /// It is deleted: its handler has finished.
    Complete,
    /// It is deleted: its job was done before.
    Discard,
    /// It is deleted: its job was cancelled, and no message of it runs.
    DiscardCancelled,
    /// It is put back for `wait`, and its attempt counts as failed.
    Retry { wait: Duration, error: String },
    /// It moves to the dead-letter queue.
    DeadLetter(Rejection),
    /// It is put back for this time, without costing an attempt.
    Release(Duration),
    /// It is put back for `wait`, without costing an attempt, because its handler asked for that.
    Snooze { wait: Duration, error: String },
    /// It is put back for this time, without costing an attempt, because its handler has reached a limit.
    OverLimit(Duration),
    /// It is put back until its condition is met, without costing an attempt; `detail` names the condition.
    Defer { cause: DeferralCause, detail: String },
    /// Nothing: the lease is lost, or a shutdown has ended it while its handler was running.
    Abandon,
}

impl Disposition {
    /// Returns the error that led to this, in one line.
    pub(super) fn error(&self) -> Option<String> {
        match self {
            Self::Retry { error, .. } | Self::Snooze { error, .. } => Some(error.clone()),
            Self::DeadLetter(rejection) => Some(rejection.detail.clone()),
            Self::Defer { cause, detail } => Some(format!("{}: {detail}", cause.name())),
            _ => None,
        }
    }

    /// Returns the time for which the message is put back; `None` if it is not, or if the time is still to be decided.
    pub(super) fn delay(&self) -> Option<Duration> {
        match self {
            Self::Retry { wait, .. } | Self::Snooze { wait, .. } => Some(*wait),
            Self::Release(wait) | Self::OverLimit(wait) => Some(*wait),
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
    /// True if an attempt of this delivery has failed that the message does not count yet.
    pub(super) attempted: bool,
}

impl Rejection {
    /// Returns a rejection before any attempt.
    pub(crate) fn new(reason: Reason, detail: impl AsRef<str>) -> Self {
        let detail = printable(detail.as_ref(), MAX_ERROR_CHARS);
        Self { reason, detail, attempted: false }
    }

    /// Returns a rejection after a failed attempt.
    pub(crate) fn of_attempt(reason: Reason, detail: impl AsRef<str>) -> Self {
        Self { attempted: true, ..Self::new(reason, detail) }
    }

    /// Returns the rejection of a payload that is not of its type.
    pub(crate) fn undecodable(error: &DecodeError) -> Self {
        let reason = match error {
            DecodeError::Invalid(_) => Reason::INVALID,
            _ => Reason::DECODE_ERROR,
        };
        Self::new(reason, chain(error))
    }
}

/// The end of a delivery without a run. Boxed because it is rare: a delivery's future has its full size for every
/// message.
pub(crate) type NotRun = Box<Disposition>;

pub(super) fn rejected(rejection: Rejection) -> NotRun {
    Box::new(Disposition::DeadLetter(rejection))
}

pub(super) fn deferred(cause: DeferralCause, detail: String) -> NotRun {
    Box::new(Disposition::Defer { cause, detail })
}
