//! The proofs that the text of a dead letter is its own, although tools copy the properties of letters. Knows no message.

use std::time::SystemTime;

use sha2::{Digest as _, Sha256};

use super::super::amqp::millis;
use jobqueue_storage::fast::hex::to_hex;

/// Returns what a dead letter says of its message, so that its text is not taken for that of a letter which a tool has copied.
pub(super) fn mark(sequence: i64, enqueued: SystemTime) -> String {
    format!("{sequence} {}", millis(enqueued))
}

/// Returns whether that is said of this message. It is not documented which of the two the service keeps when a message becomes a dead letter.
pub(super) fn is_mark_of(said: &str, sequence: i64, enqueued: SystemTime) -> bool {
    said.split_once(' ')
        .is_some_and(|(of, at)| of.parse() == Ok(sequence) || at.parse() == Ok(millis(enqueued)))
}

/// Returns the digest of a body, in hexadecimal digits.
pub(super) fn digest(body: &str) -> String {
    to_hex(&Sha256::digest(body))
}

/// Returns whether these are the digits of a body.
pub(super) fn is_digest(digits: &str, body: &Result<String, String>) -> bool {
    body.as_ref().is_ok_and(|body| digest(body) == digits)
}
