//! Codecs, and the way between a typed message and its bytes: validate and encode, decode and validate.
//!
//! Knows messages and bytes; knows nothing of envelopes, queues or storages.

mod json;

pub use crate::vocabulary::codec::{Codec, CodecError};
pub use json::Json;

use crate::vocabulary::message::{DecodeError, EncodeError, QueueMessage};

/// Validates a message and writes its payload.
///
/// # Errors
/// All violations of the message's rules, or what the codec cannot write.
pub fn encode_message<M: QueueMessage>(message: &M) -> Result<Vec<u8>, EncodeError> {
    message.validate().map_err(EncodeError::Invalid)?;
    M::Codec::encode(message).map_err(EncodeError::Codec)
}

/// Reads a payload that was written as `version`, upgrades it to the present version, and validates it.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode_message<M: QueueMessage>(version: u32, payload: &[u8]) -> Result<M, DecodeError> {
    let message = M::decode(version, payload)?;
    message.validate().map_err(DecodeError::Invalid)?;
    Ok(message)
}
