//! The error of queues, deliveries, workers and coordination. Its kinds are named after the caller's possible
//! reactions.

use std::fmt;

use crate::envelope::EnvelopeError;
use crate::job::{BoxError, JobError, Reason};
use crate::message::{DecodeError, EncodeError};
use crate::validate::Violations;
use jobqueue_storage::text::chain;
use jobqueue_storage::{NameError, StoreError, StoreErrorKind};

/// The error of the framework's operations.
///
/// The type is opaque: predicates and [`kind`](Self::kind) say what the caller can do. The text names the
/// failed operation and the remedy, and `source` is the cause. The text never contains keys, signatures,
/// receipts or payloads.
///
/// `{}` shows the text without the cause, as is the convention for errors with a source. `{:?}` shows the
/// text and all causes in one line, because a `main` that returns the error prints it so. `{:#?}` shows the
/// fields.
///
/// ```
/// # use jobqueue::{Error, Queue, QueueMessage, SendOptions};
/// async fn send_once<M: QueueMessage>(queue: &Queue<M>, message: &M, id: &str) -> Result<(), Error> {
///     match queue.send(message).id(id).await {
///         // The message may be stored. Under the same id, handlers recognise a second one as the same job.
///         Err(error) if error.is_outcome_unknown() || error.is_retryable() => {
///             queue.send(message).id(id).await.map(drop)
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

/// The kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The message breaks rules of its type, or a name or an option is not allowed. Correct the call.
    Invalid,
    /// The message is certainly not stored.
    Rejected,
    /// The message may or may not be stored. Send it again under the same id: if both messages are stored,
    /// handlers recognise them as one job.
    Unknown,
    /// The lease is lost: another worker may have the message. Stop; nothing more can be saved for the job.
    LeaseLost,
    /// An answer was lost, so it is unknown whether the lease is still held. Finish the work, but save no
    /// more checkpoints.
    LeaseUncertain,
    /// The data that was read does not have the expected form.
    Undecodable,
    /// A message, payload or checkpoint is larger than allowed.
    TooLarge,
    /// The storage refused, failed or could not be reached.
    Storage,
    /// The configuration of the program is wrong. The text says how to correct it.
    Configuration,
    /// Another process has already done the operation or holds the resource.
    Conflict,
    /// The queue, the schedule or the job that the call names does not exist.
    NotFound,
    /// The operator's access level does not allow the action; nothing was changed.
    Forbidden,
}

impl ErrorKind {
    /// Returns the code of the kind, for metrics: lower-case letters and underscores.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Rejected => "rejected",
            Self::Unknown => "unknown",
            Self::LeaseLost => "lease_lost",
            Self::LeaseUncertain => "lease_uncertain",
            Self::Undecodable => "undecodable",
            Self::TooLarge => "too_large",
            Self::Storage => "storage",
            Self::Configuration => "configuration",
            Self::Conflict => "conflict",
            Self::NotFound => "not_found",
            Self::Forbidden => "forbidden",
        }
    }
}

impl Error {
    /// Returns an error with this kind and text.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, text: text.into(), retryable: false, source: None }))
    }

    jobqueue_storage::setters! {
        /// Adds the cause.
        with_source(source some BoxError) => 0.source;

        /// Sets whether the same call may succeed later.
        with_retryable(retryable: bool) => 0.retryable;
    }

    /// Returns the rules that the message breaks, to be reported to the sender of the data. Returns `None` if
    /// the error has another cause.
    ///
    /// ```
    /// # use jobqueue::{Error, Queue, QueueMessage};
    /// /// Returns what is wrong with each field.
    /// async fn submit<M: QueueMessage>(queue: &Queue<M>, form: &M) -> Result<Vec<String>, Error> {
    ///     match queue.send(form).await {
    ///         Ok(_) => Ok(Vec::new()),
    ///         Err(error) => match error.violations() {
    ///             Some(violations) => Ok(violations.iter().map(ToString::to_string).collect()),
    ///             None => Err(error),
    ///         },
    ///     }
    /// }
    /// ```
    pub fn violations(&self) -> Option<&Violations> {
        let mut causes = std::iter::successors(std::error::Error::source(self), |cause| (*cause).source());
        causes.find_map(|cause| cause.downcast_ref())
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns whether the same call may succeed later without any change.
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// Returns whether the message is certainly not stored.
    pub fn is_rejected(&self) -> bool {
        matches!(self.kind(), ErrorKind::Rejected | ErrorKind::Invalid | ErrorKind::TooLarge)
    }

    /// Returns whether it is unknown if the message is stored.
    pub fn is_outcome_unknown(&self) -> bool {
        self.kind() == ErrorKind::Unknown
    }

    /// Returns whether the lease is certainly lost.
    pub fn is_lease_lost(&self) -> bool {
        self.kind() == ErrorKind::LeaseLost
    }

    /// Returns whether it is unknown if the lease is still held.
    pub fn is_lease_uncertain(&self) -> bool {
        self.kind() == ErrorKind::LeaseUncertain
    }
}

/// Shows the text and all causes in one line, because `main` prints a returned error by `Debug`. The
/// alternate form shows the fields, as in `anyhow` and `jiff`.
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
        Self::new(ErrorKind::Invalid, error.to_string())
    }
}

impl From<EncodeError> for Error {
    fn from(error: EncodeError) -> Self {
        // The message itself may be right: the codec lacks a key for now.
        let retryable = matches!(&error, EncodeError::Codec(codec) if codec.is_retryable());
        let kind = if retryable { ErrorKind::Rejected } else { ErrorKind::Invalid };
        Self::new(kind, "the message was not sent").with_retryable(retryable).with_source(error)
    }
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Self {
        Self::new(ErrorKind::Undecodable, "the message cannot be read").with_source(error)
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let kind = match error.kind() {
            StoreErrorKind::TooLarge => ErrorKind::TooLarge,
            StoreErrorKind::InvalidInput => ErrorKind::Invalid,
            StoreErrorKind::Configuration | StoreErrorKind::NotPrepared => ErrorKind::Configuration,
            _ => ErrorKind::Storage,
        };
        let text = match error.kind() {
            StoreErrorKind::Configuration => "the options of the storage are wrong",
            StoreErrorKind::NotPrepared => "the storage was not made or migrated yet",
            _ => "the storage failed",
        };
        let retryable = error.is_retryable();
        Self::new(kind, text).with_retryable(retryable).with_source(error)
    }
}

impl From<EnvelopeError> for Error {
    fn from(error: EnvelopeError) -> Self {
        let text = "the event cannot be read or written";
        match error {
            EnvelopeError::HeaderName(_) => Self::new(ErrorKind::Invalid, error.to_string()),
            _ => Self::new(ErrorKind::Undecodable, text).with_source(error),
        }
    }
}

/// The `?` of a handler. It is here because it judges an [`Error`].
impl<E: std::error::Error + Send + Sync + 'static> From<E> for JobError {
    fn from(error: E) -> Self {
        let own = (&error as &(dyn std::error::Error + 'static)).downcast_ref::<Error>();
        match own.is_some_and(is_invalid_send) {
            true => Self::dead_letter(error).with_reason(Reason::INVALID_SEND),
            false => Self::retry(error),
        }
    }
}

/// Returns whether a message was not sent because it breaks rules of its type.
fn is_invalid_send(error: &Error) -> bool {
    error.kind() == ErrorKind::Invalid && error.violations().is_some()
}

#[cfg(test)]
mod tests {
    use jobqueue_storage::QueueName;

    use super::*;
    use crate::job::Verdict;
    use crate::validate::Path;

    // newcomers 28, A5
    #[test]
    fn only_a_message_that_breaks_its_rules_is_not_sent_again() {
        let violations = || {
            let mut violations = Violations::new();
            violations.add(&Path::ROOT, "email", "must be an email address");
            violations
        };
        let refused = || Error::from(EncodeError::Invalid(violations()));
        let passed_on = JobError::from(refused());
        assert_eq!(passed_on.verdict(), Verdict::DeadLetter);
        assert_eq!(passed_on.reason(), Some(&Reason::INVALID_SEND));
        assert_eq!(JobError::retry(refused()).verdict(), Verdict::Retry);
        let read = Error::from(DecodeError::Invalid(violations()));
        assert_eq!(JobError::from(read).verdict(), Verdict::Retry, "a dead letter that the handler has read");
        let misused = Error::new(ErrorKind::Invalid, "no transaction is open");
        assert_eq!(JobError::from(misused).verdict(), Verdict::Retry);
    }

    // newcomers 30, A19
    #[test]
    fn refused_header_name_is_in_the_text() {
        let error = Error::from(EnvelopeError::HeaderName("trace-id".to_owned()));
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("the header name \"trace-id\" is not"), "{error}");
    }

    // round 31, newcomer c 7
    #[test]
    fn refused_name_and_its_rule_are_in_the_text() {
        let error = Error::from(QueueName::new("Trans_codes").unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(
            error.to_string(),
            r#"queue name "Trans_codes" contains 'T'; use lower-case letters, digits and dashes"#
        );
    }

    #[test]
    fn debug_is_one_line_with_all_causes_as_main_prints_it() {
        let cause = "x".parse::<u8>().unwrap_err();
        let error = Error::new(ErrorKind::Storage, "the queue cannot be read").with_source(cause);
        assert_eq!(error.to_string(), "the queue cannot be read");
        assert_eq!(format!("{error:?}"), "the queue cannot be read: invalid digit found in string");
        assert!(format!("{error:#?}").contains("kind: Storage"));
    }
}
