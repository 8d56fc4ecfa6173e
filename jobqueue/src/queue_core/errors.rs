//! Converts the errors of the lower layers to the error of the public API.

use crate::envelope::EnvelopeError;
use crate::error::{Error, ErrorKind};
use crate::lease::LeaseError;
use crate::storage::{Certainty, StoreError, StoreErrorKind};

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let kind = match error.kind() {
            StoreErrorKind::TooLarge => ErrorKind::TooLarge,
            StoreErrorKind::InvalidInput => ErrorKind::Invalid,
            _ => ErrorKind::Storage,
        };
        let retryable = error.is_retryable();
        Self::new(kind, "the storage failed").with_retryable(retryable).with_source(error)
    }
}

impl From<EnvelopeError> for Error {
    fn from(error: EnvelopeError) -> Self {
        let kind = match error {
            EnvelopeError::HeaderName(_) => ErrorKind::Invalid,
            _ => ErrorKind::Undecodable,
        };
        Self::new(kind, "the event cannot be read or written").with_source(error)
    }
}

impl From<LeaseError> for Error {
    fn from(error: LeaseError) -> Self {
        let (kind, retryable) = match &error {
            LeaseError::Lost | LeaseError::Closed => (ErrorKind::LeaseLost, false),
            LeaseError::Uncertain(_) => (ErrorKind::LeaseUncertain, false),
            LeaseError::Refused(source) => (ErrorKind::Storage, source.is_retryable()),
        };
        let text = match kind {
            ErrorKind::LeaseLost => {
                "the lease is lost; stop working on the message, another worker may have it"
            }
            ErrorKind::LeaseUncertain => {
                "an answer was lost, and the lease may be lost too; finish, but save no more"
            }
            _ => "changing the message failed",
        };
        Self::new(kind, text).with_retryable(retryable).with_source(error)
    }
}

/// Returns the error of a failed send; `message` says whether the message is stored all the same.
pub(super) fn send_error(error: StoreError, message: Certainty) -> Error {
    let retryable = error.is_retryable();
    let (kind, text) = match error.kind() {
        _ if message != Certainty::NotApplied => {
            (ErrorKind::Unknown, "whether the message is stored is unknown; send it again under the same id")
        }
        StoreErrorKind::TooLarge => (ErrorKind::TooLarge, "the message is too large for the storage"),
        _ => (ErrorKind::Rejected, "the message is not stored; send it again when the cause is fixed"),
    };
    Error::new(kind, text).with_retryable(retryable).with_source(error)
}
