//! Errors of sends.

use crate::error::{Error, ErrorKind};
use crate::storage::{Certainty, StoreError, StoreErrorKind};

/// Returns the error of a failed send; `message` says whether the message is stored all the same.
pub(crate) fn send_error(error: StoreError, message: Certainty) -> Error {
    let retryable = error.is_retryable();
    let (kind, text) = match error.kind() {
        _ if message != Certainty::NotApplied => {
            (ErrorKind::Unknown, "the outcome of the send is unknown; send again under the same id")
        }
        StoreErrorKind::TooLarge => (ErrorKind::TooLarge, "the message is too large for the storage"),
        _ => (ErrorKind::Rejected, "the message is not stored; send it again when the cause is fixed"),
    };
    Error::new(kind, text).with_retryable(retryable).with_source(error)
}
