//! Times in messages.

use std::time::SystemTime;

use crate::clock;
use crate::error::{Error, ErrorKind};

/// Returns a time as RFC 3339 writes it.
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid) for a time that RFC 3339 cannot write.
pub(crate) fn rfc3339(time: Option<SystemTime>) -> Result<String, Error> {
    let text = time.and_then(clock::rfc3339);
    text.ok_or_else(|| Error::new(ErrorKind::Invalid, "a moment is outside the calendar"))
}
