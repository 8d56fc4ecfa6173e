//! A dead-lettering that was decided: its [`Reason`], its text, and whether an attempt counts.

use crate::job::outcome::{Reason, chain, printable};
use crate::message::DecodeError;

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
        let detail = printable(detail.as_ref(), crate::envelope::MAX_ERROR_CHARS);
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
