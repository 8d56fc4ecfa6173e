//! Defines why a payload in a blob cannot be had.

use crate::job::outcome::Reason;
use crate::storage::{StoreError, StoreErrorKind};

/// The reason why what a message refers to cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PayloadError {
    /// The reference was written for another queue.
    #[error("the reference belongs to another queue")]
    OtherQueue,
    /// Larger than this program accepts.
    #[error("the payload is larger than the {limit} bytes this program accepts")]
    TooLarge {
        /// In bytes.
        limit: u64,
    },
    /// There is no such blob.
    #[error("the payload's blob does not exist")]
    Missing(#[source] StoreError),
    /// Length or hash differ.
    #[error("the payload's blob has another length or SHA-256 than the message says")]
    Corrupt,
    /// The storage failed; the blob may be there.
    #[error("the payload's blob cannot be read now")]
    Unreadable(#[source] StoreError),
}

impl PayloadError {
    pub(super) fn from_store(error: StoreError) -> Self {
        match error.kind() {
            StoreErrorKind::BlobNotFound | StoreErrorKind::ContainerNotFound => Self::Missing(error),
            // The blob is longer than the message says.
            StoreErrorKind::TooLarge => Self::Corrupt,
            _ => Self::Unreadable(error),
        }
    }

    /// Returns whether the storage says that there is no such blob.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Missing(_))
    }

    /// The reason for a dead letter; `None` while trying again can help.
    pub(crate) fn reason(&self) -> Option<Reason> {
        match self {
            Self::OtherQueue => Some(Reason::BAD_REFERENCE),
            Self::TooLarge { .. } => Some(Reason::PAYLOAD_TOO_LARGE),
            Self::Corrupt => Some(Reason::PAYLOAD_CORRUPT),
            Self::Missing(_) | Self::Unreadable(_) => None,
        }
    }
}
