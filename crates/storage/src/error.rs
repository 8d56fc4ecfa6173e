//! The errors of a storage. Each kind is named after the caller's possible reaction.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::text::chain;

/// The longest `Retry-After` that is honoured.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);

/// An error of a storage operation.
///
/// The text names the operation, the queue or blob, and what to do. The cause is its `source`. The text never
/// contains keys, signatures, receipts or payloads. `{:?}` shows the text and the causes in one line, `{:#?}`
/// the fields.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::storage::{PutMessage, StoreErrorKind};
/// use jobqueue::{QueueName, Storage};
///
/// let storage = Storage::memory();
/// let error = storage.queues().put(&QueueName::new("jobs")?, PutMessage::new("{}")).await.unwrap_err();
/// assert_eq!(error.kind(), StoreErrorKind::QueueNotFound);
/// // Waiting does not help, and nothing was changed.
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
    answered_at: Option<SystemTime>,
    of_part: bool,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal: $sentence:literal,)+) => {
        /// The kind of a storage error.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum StoreErrorKind {
            $($(#[$doc])* $name,)+
        }

        impl StoreErrorKind {
            /// Returns the code of the kind, for metrics: lower-case letters and underscores.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)+
                }
            }

            fn sentence(self) -> &'static str {
                match self {
                    $(Self::$name => $sentence,)+
                }
            }
        }
    };
}

kinds! {
    /// The queue does not exist.
    QueueNotFound = "queue_not_found": "the queue does not exist; create it first",
    /// The queue exists with other metadata.
    QueueAlreadyExists = "queue_already_exists":
        "the queue exists with other metadata; read and update that instead",
    /// The queue was deleted and is still being removed; it can be created again soon.
    QueueBeingDeleted = "queue_being_deleted":
        "the queue was just deleted; it can be created again in a minute",
    /// An administrator has disabled the queue.
    QueueDisabled = "queue_disabled": "the queue is disabled; ask its administrator",
    /// The message is gone: it was deleted, has expired, or another worker has taken it.
    MessageNotFound = "message_not_found":
        "the message is gone: deleted, expired, or taken by another worker",
    /// The receipt is not the newest: another worker has the message now.
    PopReceiptMismatch = "pop_receipt_mismatch": "another worker has the message now",
    /// The receipt's visibility timeout is over.
    LeaseExpired = "lease_expired": "the lease is over; another worker may have the message",
    /// The container does not exist.
    ContainerNotFound = "container_not_found": "the container does not exist; create it first",
    /// The container was deleted and is still being removed.
    ContainerBeingDeleted = "container_being_deleted":
        "the container was just deleted; it can be created again in a minute",
    /// The blob does not exist.
    BlobNotFound = "blob_not_found": "the blob does not exist",
    /// The blob exists, and the write required that it does not.
    BlobAlreadyExists = "blob_already_exists": "the blob exists already",
    /// The blob's tag does not match the condition.
    ConditionNotMet = "condition_not_met": "the blob has changed; read it again",
    /// Another holder has the blob's lease.
    LeaseAlreadyPresent = "lease_already_present": "another process holds the blob's lease",
    /// The blob's lease has another id.
    LeaseIdMismatch = "lease_id_mismatch": "the blob's lease has another id",
    /// The blob is leased, and the write named no lease.
    LeaseIdMissing = "lease_id_missing": "the blob is leased; name the lease to write it",
    /// The blob has no such lease any more: it was released, has expired or was never taken.
    LeaseNotPresent = "lease_not_present": "there is no such lease any more",
    /// The lease is broken or being broken, and cannot be renewed.
    LeaseBroken = "lease_broken": "the lease is broken and cannot be renewed",
    /// A text, a blob or an answer is larger than allowed.
    TooLarge = "too_large": "the text, blob or answer is larger than allowed",
    /// An argument is not allowed, for example because it is outside of its range.
    InvalidInput = "invalid_input": "an argument is not allowed",
    /// The options or the connection string are wrong. The text names the setting, and never its value.
    Configuration = "configuration": "the storage cannot be used as it is configured",
    /// The file or the tables are missing or of an older version, and the options forbid making or migrating
    /// them.
    NotPrepared = "not_prepared": "the storage has no tables of this version yet",
    /// The caller lacks access: a key, token or permission is missing or has expired.
    Unauthorized = "unauthorized": "access was refused; check key, token and permissions",
    /// The storage asks to slow down.
    Throttled = "throttled": "the storage throttles requests; try again later",
    /// The operation exceeded its time limit.
    Timeout = "timeout": "the operation exceeded its time limit",
    /// The storage cannot be reached, or has an internal failure.
    Unavailable = "unavailable": "the storage cannot be reached or failed; try again later",
    /// This handle has stopped for good: its disk has failed, or it was inherited by `fork`. A newly opened
    /// handle may work.
    Stopped = "stopped": "this storage handle has stopped; open the storage again",
    /// There is no room: the disk is full, or a queue of Service Bus has reached its size.
    Full = "full": "the storage has no room for more; free some",
    /// The stored data are damaged. Work stops; damage is never read as an empty queue.
    Corrupt = "corrupt": "the stored data are damaged; restore them from a backup",
    /// The storage's answer was not understood.
    Protocol = "protocol": "unexpected answer from the storage",
    /// This storage does not support the operation.
    Unsupported = "unsupported": "this storage does not support the operation",
}

impl StoreError {
    /// Returns an error of `kind` in `operation` (a verb phrase such as `put message`) on `subject` (a queue
    /// or blob).
    pub fn new(kind: StoreErrorKind, operation: &'static str, subject: impl fmt::Display) -> Self {
        Self(Box::new(Inner {
            kind,
            operation,
            subject: subject.to_string(),
            detail: None,
            ambiguous: false,
            retry_after: None,
            answered_at: None,
            of_part: false,
            source: None,
        }))
    }

    setters! {
        /// Adds the details of this case, such as the argument or the limit. They must contain no secrets and
        /// no payloads.
        with_detail(detail some String) => 0.detail;

        /// Adds the cause. It must contain no secrets and no payloads.
        with_source(source some Box<dyn std::error::Error + Send + Sync>) => 0.source;

        /// Sets whether the operation may have been applied.
        with_ambiguous(ambiguous: bool) => 0.ambiguous;

        /// Sets the pause that the storage asks for. A pause of more than 5 minutes is cut to 5 minutes.
        with_retry_after(wait: impl Into<Option<Duration>>) => 0.retry_after =
            wait.into().map(|wait| wait.min(LONGEST_RETRY_AFTER));

        /// Sets the storage's time at which it refused the operation.
        with_answered_at(at from Option<SystemTime>) => 0.answered_at;
    }

    /// Sets whether only a part of the storage answered, so that the error says nothing about the load of the
    /// other parts.
    #[must_use]
    pub fn with_of_part(mut self, of_part: bool) -> Self {
        self.0.of_part = of_part;
        self
    }

    /// Returns the error of a whole command, repeated for each of its `parts`.
    pub fn for_each(self, parts: usize) -> impl Iterator<Item = Self> {
        let Inner { kind, operation, subject, detail, ambiguous, retry_after, answered_at, of_part, source } =
            *self.0;
        let source = source.map(Arc::<dyn std::error::Error + Send + Sync>::from);
        (0..parts).map(move |_| {
            Self(Box::new(Inner {
                kind,
                operation,
                subject: subject.clone(),
                detail: detail.clone(),
                ambiguous,
                retry_after,
                answered_at,
                of_part,
                source: source.clone().map(Into::into),
            }))
        })
    }

    /// Returns the first storage error among an error and its causes, including an error behind an `Arc`.
    ///
    /// ```
    /// use jobqueue::storage::{StoreError, StoreErrorKind};
    ///
    /// /// Tells whether another process keeps the file locked.
    /// fn is_locked(error: &jobqueue::Error) -> bool {
    ///     StoreError::in_chain(error).is_some_and(|cause| cause.kind() == StoreErrorKind::Timeout)
    /// }
    /// # assert!(!is_locked(&jobqueue::Error::new(jobqueue::ErrorKind::Storage, "another")));
    /// ```
    pub fn in_chain<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e Self> {
        let own = |error: &'e (dyn std::error::Error + 'static)| {
            error.downcast_ref().or_else(|| error.downcast_ref::<Arc<Self>>().map(|shared| &**shared))
        };
        std::iter::successors(Some(error), |error| error.source()).find_map(own)
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> StoreErrorKind {
        self.0.kind
    }

    /// Returns whether the operation may have been applied nevertheless, because its answer was lost, late or
    /// unreadable.
    pub fn is_ambiguous(&self) -> bool {
        self.0.ambiguous
    }

    /// Returns whether the same call may succeed later without a change by the caller.
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

    /// Returns whether the error means that a blob or its container does not exist.
    pub fn is_missing_blob(&self) -> bool {
        matches!(self.kind(), StoreErrorKind::BlobNotFound | StoreErrorKind::ContainerNotFound)
    }

    /// Returns whether the error means that the lease of a message is lost.
    pub fn is_lease_lost(&self) -> bool {
        use StoreErrorKind as K;
        matches!(self.kind(), K::MessageNotFound | K::PopReceiptMismatch | K::LeaseExpired)
    }

    /// Returns the pause that the storage asks for before the next call; at most 5 minutes.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Returns the storage's time at which it refused the operation, if its answer has one.
    pub fn answered_at(&self) -> Option<SystemTime> {
        self.0.answered_at
    }

    /// Returns whether only a part of the storage answered, such as one of several shards.
    pub(crate) fn is_of_part(&self) -> bool {
        self.0.of_part
    }

    /// Returns the name of the operation that failed.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// Returns the object of the operation: a queue, a blob, or a storage that was to be opened, by its name
    /// without secrets.
    pub fn subject(&self) -> &str {
        &self.0.subject
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
            f.write_str("; the operation may have been applied nevertheless")?;
        }
        Ok(())
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
