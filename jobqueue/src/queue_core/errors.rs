//! Converts the errors of the lower layers to the error of the public API. Says when a look at a part of a queue is repeated, and how it ends.

use crate::claim_check::PayloadError;
use crate::error::{Error, ErrorKind};
use crate::lease::LeaseError;

/// The seconds before a look is repeated that found no more messages while a part of the queue did not answer.
pub(crate) const RESCAN_SECONDS: [u64; 5] = [1, 2, 4, 4, 4];
/// The cause of the end of a look that could not see the whole queue.
pub(crate) const UNCERTAIN_END: &str =
    "a part of the queue did not answer, so there may be more messages; try again when the storage is well";

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
                "an answer was lost, and the lease may be lost too; finish what was begun"
            }
            _ => "changing the message failed",
        };
        Self::new(kind, text).with_retryable(retryable).with_source(error)
    }
}

/// Converts the failure to read a payload.
pub(crate) fn payload_error(error: PayloadError) -> Error {
    match error {
        PayloadError::Unreadable(failed) => Error::from(failed),
        error => {
            Error::new(ErrorKind::Undecodable, "the payload of the message cannot be read").with_source(error)
        }
    }
}

/// Returns the error of a thread for renewals that could not be started.
pub(crate) fn no_renewer(error: std::io::Error) -> Error {
    let text = "the thread that renews leases could not be started: raise the limit of threads, of open files or of memory";
    Error::new(ErrorKind::Configuration, text).with_source(error)
}
