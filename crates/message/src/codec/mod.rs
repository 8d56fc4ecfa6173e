//! Codecs for payloads, and the conversion between a typed message and its bytes: validate and encode, decode and validate.

mod finite;
mod json;
mod place;

pub use crate::message::codec::{Codec, CodecError};
pub use json::Json;

use crate::message::{DecodeError, EncodeError, QueueMessage};

// These functions are compiled for each type of message, in the crate that sends or handles it: `match` is one function
// there, `?` and `map_err` would be ten.

/// Validates a message and encodes its payload.
///
/// # Errors
/// [`EncodeError::Invalid`] with all violations of the message's rules, [`EncodeError::Codec`] for a value that the
/// codec cannot write.
pub fn encode_message<M: QueueMessage>(message: &M) -> Result<Vec<u8>, EncodeError> {
    if let Err(violations) = message.validate() {
        return Err(EncodeError::Invalid(violations));
    }
    match M::Codec::encode(message) {
        Ok(payload) => Ok(payload),
        Err(error) => Err(EncodeError::Codec(error)),
    }
}

/// Decodes a payload that was written as `version`, upgrades it to the present version, and validates it.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode_message<M: QueueMessage>(version: u32, payload: &[u8]) -> Result<M, DecodeError> {
    let decoded = M::decode(version, payload);
    if let Ok(message) = &decoded
        && let Err(violations) = message.validate()
    {
        return Err(DecodeError::Invalid(violations));
    }
    decoded
}

/// Decodes a payload as [`decode_message`] does, and returns its version too. A payload without a version is read as
/// the oldest version from which a valid message can be made.
///
/// # Errors
/// See [`DecodeError`]. If no version fits, the error of the present one.
pub fn decode_any_version<M: QueueMessage>(
    version: Option<u32>,
    payload: &[u8],
) -> Result<(u32, M), DecodeError> {
    if let Some(version) = version {
        return decode_message(version, payload).map(|message| (version, message));
    }
    let mut failed = None;
    for version in M::versions() {
        match decode_message(version, payload) {
            Ok(message) => return Ok((version, message)),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| DecodeError::unreadable_version(0, M::VERSION)))
}
