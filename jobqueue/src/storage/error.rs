//! What can go wrong in a storage, named after what the caller can do about it.

use std::fmt;
#[cfg(feature = "sqlite")]
use std::sync::Arc;
use std::time::Duration;

use crate::job::outcome::chain;

/// An error of a storage operation.
///
/// Its text names the operation and the queue or blob, and what to do; the cause is its `source`. It never
/// contains keys, signatures, receipts or payloads. `{:?}` shows text and causes in one line, `{:#?}` how it is made up.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::storage::{PutMessage, StoreErrorKind};
/// use jobqueue::{QueueName, Storage};
///
/// let storage = Storage::memory();
/// let error = storage.queues().put(&QueueName::new("jobs")?, PutMessage::new("{}")).await.unwrap_err();
/// assert_eq!(error.kind(), StoreErrorKind::QueueNotFound);
/// // What to do about it: not by waiting, and nothing was done.
/// assert!(!error.is_retryable() && !error.is_ambiguous());
/// assert!(error.to_string().contains("jobs"));
/// # Ok(()) }
/// ```
pub struct StoreError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: StoreErrorKind,
    operation: &'static str,
    subject: String,
    detail: Option<String>,
    ambiguous: bool,
    retry_after: Option<Duration>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What kind of error it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The queue does not exist.
    QueueNotFound,
    /// The queue exists with other metadata.
    QueueAlreadyExists,
    /// The queue was deleted and is still being removed; it can be created again soon.
    QueueBeingDeleted,
    /// An administrator has disabled the queue.
    QueueDisabled,
    /// The message is gone: deleted, expired, or taken by another.
    MessageNotFound,
    /// The receipt is not the newest: somebody else has the message now.
    PopReceiptMismatch,
    /// The receipt's visibility timeout is over.
    LeaseExpired,
    /// The container does not exist.
    ContainerNotFound,
    /// The container was deleted and is still being removed.
    ContainerBeingDeleted,
    /// The blob does not exist.
    BlobNotFound,
    /// The blob exists, and the write was on condition that it does not.
    BlobAlreadyExists,
    /// The blob has another tag than the condition names.
    ConditionNotMet,
    /// The blob is leased by another.
    LeaseAlreadyPresent,
    /// The lease has another id.
    LeaseIdMismatch,
    /// The blob is leased, and the write named no lease.
    LeaseIdMissing,
    /// There is no such lease any more: released, expired or never taken.
    LeaseNotPresent,
    /// The lease is broken or breaking and cannot be renewed.
    LeaseBroken,
    /// Text, blob or answer is larger than allowed.
    TooLarge,
    /// An argument is outside the allowed range.
    InvalidInput,
    /// The caller may not do this: key, token or permission is missing or expired.
    Unauthorized,
    /// The storage asks to slow down.
    Throttled,
    /// The operation took longer than it was given.
    Timeout,
    /// The storage cannot be reached or failed inside.
    Unavailable,
    /// This handle works no more: its disk has failed, or it was inherited by `fork`. A handle that is opened anew may.
    Stopped,
    /// The disk is full.
    Full,
    /// What is stored is damaged. Work stops; nothing is read as empty.
    Corrupt,
    /// The answer was not understood.
    Protocol,
    /// This storage does not have the operation.
    Unsupported,
}

impl StoreErrorKind {
    fn sentence(self) -> &'static str {
        match self {
            Self::QueueNotFound => "the queue does not exist; create it first",
            Self::QueueAlreadyExists => "the queue exists with other metadata; read and change that instead",
            Self::QueueBeingDeleted => "the queue was just deleted; it can be created again in a minute",
            Self::QueueDisabled => "the queue is disabled; ask its administrator",
            Self::MessageNotFound => "the message is gone: deleted, expired, or taken by another worker",
            Self::PopReceiptMismatch => "another worker has the message now",
            Self::LeaseExpired => "the lease is over; another worker may have the message",
            Self::ContainerNotFound => "the container does not exist; create it first",
            Self::ContainerBeingDeleted => {
                "the container was just deleted; it can be created again in a minute"
            }
            Self::BlobNotFound => "the blob does not exist",
            Self::BlobAlreadyExists => "the blob exists already",
            Self::ConditionNotMet => "the blob has changed; read it again",
            Self::LeaseAlreadyPresent => "another process holds the blob's lease",
            Self::LeaseIdMismatch => "the blob's lease has another id",
            Self::LeaseIdMissing => "the blob is leased; name the lease to write it",
            Self::LeaseNotPresent => "there is no such lease any more",
            Self::LeaseBroken => "the lease is broken and cannot be renewed",
            Self::TooLarge => "it is larger than allowed",
            Self::InvalidInput => "an argument is not allowed",
            Self::Unauthorized => "access was refused; check key, token and permissions",
            Self::Throttled => "the storage asks to slow down; try again later",
            Self::Timeout => "it took too long",
            Self::Unavailable => "the storage cannot be reached or failed; try again later",
            Self::Stopped => "the storage's handle works no more; open the storage anew",
            Self::Full => "the disk is full; make room",
            Self::Corrupt => "what is stored is damaged; restore it from a backup",
            Self::Protocol => "the storage's answer was not understood",
            Self::Unsupported => "this storage does not have the operation",
        }
    }
}

impl StoreError {
    /// An error of `kind` in `operation` (a verb phrase such as `put message`) on `subject` (a queue or blob).
    pub fn new(kind: StoreErrorKind, operation: &'static str, subject: impl fmt::Display) -> Self {
        Self(Box::new(Inner {
            kind,
            operation,
            subject: subject.to_string(),
            detail: None,
            ambiguous: false,
            retry_after: None,
            source: None,
        }))
    }

    /// Adds what is particular to this case: which argument, which limit. No secrets, no payloads.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }

    /// Adds the cause. No secrets, no payloads.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Says that the operation may have been applied.
    #[must_use]
    pub fn with_ambiguous(mut self, ambiguous: bool) -> Self {
        self.0.ambiguous = ambiguous;
        self
    }

    /// Adds how long the storage asks to wait.
    #[must_use]
    pub fn with_retry_after(mut self, wait: impl Into<Option<Duration>>) -> Self {
        self.0.retry_after = wait.into();
        self
    }

    /// The error of a whole command as the answer to each of its `parts`.
    #[cfg(feature = "sqlite")]
    pub(crate) fn for_each(self, parts: usize) -> impl Iterator<Item = Self> {
        let Inner { kind, operation, subject, detail, ambiguous, retry_after, source } = *self.0;
        let source = source.map(Arc::<dyn std::error::Error + Send + Sync>::from);
        (0..parts).map(move |_| {
            Self(Box::new(Inner {
                kind,
                operation,
                subject: subject.clone(),
                detail: detail.clone(),
                ambiguous,
                retry_after,
                source: source.clone().map(Into::into),
            }))
        })
    }

    /// What kind of error it is.
    pub fn kind(&self) -> StoreErrorKind {
        self.0.kind
    }

    /// Whether the operation may have been applied all the same: the answer was lost, late or unreadable.
    pub fn is_ambiguous(&self) -> bool {
        self.0.ambiguous
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_retryable(&self) -> bool {
        use StoreErrorKind as K;
        matches!(
            self.kind(),
            K::Throttled
                | K::Timeout
                | K::Unavailable
                | K::QueueBeingDeleted
                | K::ContainerBeingDeleted
                | K::Full
        )
    }

    /// Whether it says that a message's lease is lost.
    pub fn is_lease_lost(&self) -> bool {
        use StoreErrorKind as K;
        matches!(self.kind(), K::MessageNotFound | K::PopReceiptMismatch | K::LeaseExpired)
    }

    /// How long the storage asks to wait before the next call.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The operation that failed.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() { self.0.fmt(f) } else { f.write_str(&chain(self)) }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, operation, subject, detail, ambiguous, .. } = &*self.0;
        write!(f, "{operation}")?;
        if !subject.is_empty() {
            write!(f, " ({subject})")?;
        }
        write!(f, ": {}", kind.sentence())?;
        if let Some(detail) = detail {
            write!(f, " ({detail})")?;
        }
        if *ambiguous {
            f.write_str("; it may have been done all the same")?;
        }
        Ok(())
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
