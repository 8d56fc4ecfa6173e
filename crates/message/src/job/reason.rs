//! The reasons of dead letters.

use std::borrow::Cow;
use std::fmt;

/// Defines the constants of the framework's reasons, and the list of all of them.
macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal;)+) => {
        impl Reason {
            $($(#[doc = $doc])+ pub const $name: Self = Self(Cow::Borrowed($code));)+

            /// All reasons of the framework. Applications and other programs have others.
            pub const ALL: &[Self] = &[$(Self::$name),+];
        }
    };
}

/// The reason of a dead-lettering: a short code that programs can compare.
///
/// The framework's reasons are constants. An application makes its own reasons by [`Reason::new`], and a
/// handler sets them by [`JobError::with_reason`](super::outcome::JobError::with_reason).
///
/// ```
/// use jobqueue::Reason;
///
/// assert_eq!(Reason::ATTEMPTS_EXHAUSTED.as_str(), "attempts_exhausted");
/// assert_eq!(Reason::new("no such customer!").as_str(), "no_such_customer_");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reason(Cow<'static, str>);

reasons! {
    /// The handler failed as many times as the poison threshold allows.
    ATTEMPTS_EXHAUSTED = "attempts_exhausted";
    /// The message was delivered more often than `maxdeliveries` allows: the job probably kills its worker.
    MAX_DELIVERIES = "max_deliveries";
    /// The handler returned [`JobError::dead_letter`](super::outcome::JobError::dead_letter) without a
    /// reason.
    REJECTED = "rejected";
    /// The handler passed on, by `?`, that a message which it wanted to send breaks rules of its type.
    INVALID_SEND = "invalid_send";
    /// The text or payload cannot be read.
    DECODE_ERROR = "decode_error";
    /// The payload breaks rules of its type.
    INVALID = "invalid";
    /// No worker knew the kind for as long as `unknownkindseconds` allows: a day by default.
    UNKNOWN_KIND = "unknown_kind";
    /// No worker knew the version for as long as `unknownkindseconds` allows: a day by default.
    NEWER_VERSION = "newer_version";
    /// The reference to the payload is malformed.
    BAD_REFERENCE = "bad_reference";
    /// The payload's blob is gone.
    PAYLOAD_MISSING = "payload_missing";
    /// The payload's blob does not have the length or hash that the message names.
    PAYLOAD_CORRUPT = "payload_corrupt";
    /// The payload is larger than this program accepts.
    PAYLOAD_TOO_LARGE = "payload_too_large";
    /// The job's coordination (its FIFO group or its batch) failed permanently.
    COORDINATION_FAILED = "coordination_failed";
    /// A relay cannot forward the job: it is too large for the destination, or belongs to a batch.
    NOT_FORWARDED = "not_forwarded";
    /// An operator cancelled the job.
    CANCELLED = "cancelled";
    /// Another program put the message there without a reason.
    UNKNOWN = "unknown";
}

impl Reason {
    /// Returns an application's reason: at most 64 lower-case letters, digits and underscores. All other
    /// characters are replaced by underscores, and a longer code is cut.
    pub fn new(code: &str) -> Self {
        let keep = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '_' };
        Self(code.chars().take(64).map(keep).collect::<String>().into())
    }

    /// Returns the code.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for Reason {
    fn eq(&self, code: &str) -> bool {
        self.0 == code
    }
}

impl PartialEq<&str> for Reason {
    fn eq(&self, code: &&str) -> bool {
        self.0 == *code
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_plain_codes() {
        assert_eq!(Reason::new("Bad <b>").as_str(), "_ad__b_");
        for reason in Reason::ALL {
            assert_eq!(&Reason::new(reason.as_str()), reason);
        }
    }
}
