//! Converts the errors of the lower layers to the error of the public API. Sets the retries of a scan of
//! which a shard of the queue did not answer, and the text of its failure.

use crate::claim_check::PayloadError;
use crate::error::{Error, ErrorKind};
use crate::lease::LeaseError;

/// The delays, in seconds, between retries when a scan found no more messages but a shard did not answer.
pub(crate) const RESCAN_SECONDS: [u64; 5] = [1, 2, 4, 4, 4];
/// The error text of a scan that could not read the whole queue.
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

/// Converts the error of a payload that cannot be read.
pub(crate) fn payload_error(error: PayloadError) -> Error {
    match error {
        PayloadError::Unreadable(failed) => Error::from(failed),
        error => {
            Error::new(ErrorKind::Undecodable, "the payload of the message cannot be read").with_source(error)
        }
    }
}

/// Returns the error for a lease renewer whose thread could not be started.
pub(crate) fn no_renewer(error: std::io::Error) -> Error {
    let text = "the thread that renews leases could not be started: raise the limit of threads, of open files or of memory";
    Error::new(ErrorKind::Configuration, text).with_source(error)
}
