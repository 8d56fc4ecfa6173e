//! The error of a payload that cannot be read from its blob.

use crate::job::outcome::Reason;
use crate::storage::{StoreError, StoreErrorKind};

/// The reason why the data that a message refers to cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PayloadError {
    /// The reference was written for another queue.
    #[error("the reference belongs to another queue")]
    OtherQueue,
    /// The payload is larger than this program accepts.
    #[error("the payload is larger than the limit of {limit} bytes")]
    TooLarge { limit: u64 },
    /// The blob does not exist.
    #[error("the payload's blob does not exist")]
    Missing(#[source] StoreError),
    /// The length or the hash differs.
    #[error("the payload's blob has another length or SHA-256 than the message says")]
    Corrupt,
    /// The storage failed; the blob may exist.
    #[error("the payload's blob cannot be read now")]
    Unreadable(#[source] StoreError),
}

impl PayloadError {
    pub(super) fn from_store(error: StoreError) -> Self {
        match error.kind() {
            _ if error.is_missing_blob() => Self::Missing(error),
            // The blob is longer than the message says.
            StoreErrorKind::TooLarge => Self::Corrupt,
            _ => Self::Unreadable(error),
        }
    }

    /// Returns whether the storage reports that the blob does not exist.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Missing(_))
    }

    /// Returns the reason for a dead letter; `None` while a retry can help.
    pub(crate) fn reason(&self) -> Option<Reason> {
        match self {
            Self::OtherQueue => Some(Reason::BAD_REFERENCE),
            Self::TooLarge { .. } => Some(Reason::PAYLOAD_TOO_LARGE),
            Self::Corrupt => Some(Reason::PAYLOAD_CORRUPT),
            Self::Missing(_) | Self::Unreadable(_) => None,
        }
    }
}
