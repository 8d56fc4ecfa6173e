//! Renders an envelope as the text of a message, with its payload in a blob if the text would be too large.

use bytes::Bytes;

use super::queue::QueueCore;
use crate::envelope::{Envelope, MAX_ID_BYTES, Payload, StoredReference, fits, may_fit, to_wire};
use crate::error::{Error, ErrorKind};
use crate::settings::MessageEncoding;

/// Renders the envelope. If the text is too large, moves a payload of at most `limit` bytes to a blob, and
/// returns the blob, which the caller writes. Sends have a limit. The payload of a received message has none,
/// so that the message can always be put back or dead-lettered.
pub(crate) fn fit(
    core: &QueueCore,
    envelope: &mut Envelope,
    encoding: MessageEncoding,
    limit: u64,
) -> Result<(String, Option<(StoredReference, Bytes)>), Error> {
    // A payload that is too large by itself is not copied into a text first.
    if envelope.payload.inline().is_none_or(|data| may_fit(data.len())) {
        let json = envelope.to_json()?;
        if fits(&json, encoding) {
            return Ok((to_wire(json, encoding), None));
        }
    }
    let too_large = |text: String| Err(Error::new(ErrorKind::TooLarge, text));
    let Some(data) = envelope.payload.inline().cloned() else {
        return too_large("the event's attributes alone are too large for a message".to_owned());
    };
    let bytes = data.len() as u64;
    if bytes > limit {
        return too_large(format!(
            "the payload has {bytes} bytes; {limit} are allowed: put larger data into a blob and its name into the message"
        ));
    }
    let reference = core.claim_checks.reference(&core.name, &data);
    envelope.payload = Payload::Stored(reference.clone());
    let json = envelope.to_json()?;
    if !fits(&json, encoding) {
        return too_large("the event's attributes alone are too large for a message".to_owned());
    }
    Ok((to_wire(json, encoding), Some((reference, data))))
}

/// Refuses an id or a source that no reader accepts.
pub(crate) fn check_length(what: &str, text: &str) -> Result<(), Error> {
    match text.len() {
        1..=MAX_ID_BYTES => Ok(()),
        bytes => {
            let text = format!("a job's {what} has {bytes} bytes; 1 to {MAX_ID_BYTES} are allowed");
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}
