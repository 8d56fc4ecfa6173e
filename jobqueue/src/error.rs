//! The error of queues, deliveries, workers and coordination, named after what the caller can do.

use std::fmt;

use crate::job::outcome::{BoxError, chain};
use crate::message::{DecodeError, EncodeError};
use crate::name::NameError;

/// What went wrong, and what the caller can do about it.
///
/// One opaque type with predicates. Its text tells what was tried and what to do; its `source` is the cause.
/// It never contains keys, signatures, receipts or payloads.
///
/// `{}` shows its own text, as the conventions for errors with a source ask. `{:?}` shows the text and all its causes in one line: what
/// a `main` that returns it prints. `{:#?}` shows how it is made up.
///
/// ```
/// # use jobqueue::{Error, Queue, QueueMessage, SendOptions};
/// async fn send_once<M: QueueMessage>(queue: &Queue<M>, message: &M, id: &str) -> Result<(), Error> {
///     match queue.send_with(message, SendOptions::new().id(id)).await {
///         // Perhaps stored: under the same id a second copy does no harm.
///         Err(error) if error.is_outcome_unknown() || error.is_retryable() => {
///             queue.send_with(message, SendOptions::new().id(id)).await.map(drop)
///         }
///         sent => sent.map(drop),
///     }
/// }
/// ```
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    text: String,
    retryable: bool,
    source: Option<BoxError>,
}

/// What kind of error it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The message breaks rules of its type, or a name or option is not allowed. Correct the call.
    Invalid,
    /// The message is certainly not stored.
    Rejected,
    /// The message may or may not be stored. Sending it again under the same id is safe.
    Unknown,
    /// The lease is lost: another worker may have the message. Stop; nothing more can be saved for it.
    LeaseLost,
    /// An answer was lost, and whether the lease is still held is unknown. Finish the work, save no more
    /// checkpoints.
    LeaseUncertain,
    /// What was read is not what was expected.
    Undecodable,
    /// It is larger than allowed.
    TooLarge,
    /// The storage refused, failed or could not be reached.
    Storage,
    /// The program is put together wrongly. The text says how to mend it.
    Configuration,
    /// Somebody else has done or holds it already.
    Conflict,
}

impl Error {
    /// An error with a sentence of its own.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, text: text.into(), retryable: false, source: None }))
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Says whether the same call may succeed later.
    #[must_use]
    pub fn with_retryable(mut self, retryable: bool) -> Self {
        self.0.retryable = retryable;
        self
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// Whether the message that was to be sent is certainly not stored.
    pub fn is_rejected(&self) -> bool {
        matches!(self.kind(), ErrorKind::Rejected | ErrorKind::Invalid | ErrorKind::TooLarge)
    }

    /// Whether the message that was to be sent may or may not be stored.
    pub fn is_outcome_unknown(&self) -> bool {
        self.kind() == ErrorKind::Unknown
    }

    /// Whether the lease is lost for certain.
    pub fn is_lease_lost(&self) -> bool {
        self.kind() == ErrorKind::LeaseLost
    }

    /// Whether it is unknown if the lease is still held.
    pub fn is_lease_uncertain(&self) -> bool {
        self.kind() == ErrorKind::LeaseUncertain
    }
}

/// For people: `main` prints the error it returns by `Debug`. As `anyhow` and `jiff` do it, the form for programmers is the alternate one.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() { self.0.fmt(f) } else { f.write_str(&chain(self)) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<NameError> for Error {
    fn from(error: NameError) -> Self {
        Self::new(ErrorKind::Invalid, "a name is not allowed").with_source(error)
    }
}

impl From<EncodeError> for Error {
    fn from(error: EncodeError) -> Self {
        Self::new(ErrorKind::Invalid, "the message was not sent").with_source(error)
    }
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Self {
        Self::new(ErrorKind::Undecodable, "the message cannot be read").with_source(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_is_one_line_with_all_causes_as_main_prints_it() {
        let cause = "x".parse::<u8>().unwrap_err();
        let error = Error::new(ErrorKind::Storage, "the queue cannot be read").with_source(cause);
        assert_eq!(error.to_string(), "the queue cannot be read");
        assert_eq!(format!("{error:?}"), "the queue cannot be read: invalid digit found in string");
        assert!(format!("{error:#?}").contains("kind: Storage"));
    }
}
