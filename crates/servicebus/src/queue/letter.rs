//! Marks that prove that a dead letter's text belongs to it, even after tools have copied its properties.
//! Knows no message.

use std::time::SystemTime;

use sha2::{Digest as _, Sha256};

use super::super::amqp::millis;
use jobqueue_storage::fast::hex::to_hex;

/// Returns the mark that ties the text of a dead letter to its message, so that a letter with properties
/// copied from another one is not read with that one's text.
pub(super) fn mark(sequence: i64, enqueued: SystemTime) -> String {
    format!("{sequence} {}", millis(enqueued))
}

/// Returns whether a mark belongs to this message. One matching part is enough: it is not documented whether
/// the service keeps the number or the time when it dead-letters a message.
pub(super) fn is_mark_of(text: &str, sequence: i64, enqueued: SystemTime) -> bool {
    text.split_once(' ')
        .is_some_and(|(of, at)| of.parse() == Ok(sequence) || at.parse() == Ok(millis(enqueued)))
}

/// Returns the digest of a body in hexadecimal.
pub(super) fn digest(body: &str) -> String {
    to_hex(&Sha256::digest(body))
}

/// Returns whether `digits` is the digest of a body.
pub(super) fn is_digest(digits: &str, body: &Result<String, String>) -> bool {
    body.as_ref().is_ok_and(|body| digest(body) == digits)
}
