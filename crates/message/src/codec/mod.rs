//! Codecs for payloads, and the conversion between a typed message and its bytes, with validation.

mod finite;
mod json;
mod place;

pub use crate::message::codec::{Codec, CodecError};
pub use json::Json;

use crate::message::{DecodeError, EncodeError, QueueMessage};

// These functions are compiled for each message type, in the crate that sends or handles it. With `match`,
// each of them is one function there; with `?` and `map_err` it would be ten.

/// Validates a message and encodes its payload.
///
/// # Errors
/// [`EncodeError::Invalid`] with all violations of the message's rules; [`EncodeError::Codec`] for a value
/// that the codec cannot write.
pub fn encode_message<M: QueueMessage>(message: &M) -> Result<Vec<u8>, EncodeError> {
    if let Err(violations) = message.validate() {
        return Err(EncodeError::Invalid(violations));
    }
    match M::Codec::encode(message) {
        Ok(payload) => Ok(payload),
        Err(error) => Err(EncodeError::Codec(error)),
    }
}

/// Decodes a payload of `version`, upgrades it to the newest version, and validates it.
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

/// Decodes a payload as [`decode_message`] does, and also returns its version. A payload without a version is
/// read as the newest version whose codec can decode it, because older versions ignore fields that they do
/// not know. If the decoded message breaks a rule or cannot be converted, no older version is tried.
///
/// `media_type` is the payload's media type. A version whose codec writes another media type is not tried. A
/// payload without a media type may be read by every codec.
///
/// # Errors
/// See [`DecodeError`]. If no version can be decoded, the error of the newest version.
pub fn decode_any_version<M: QueueMessage>(
    version: Option<u32>,
    media_type: Option<&str>,
    payload: &[u8],
) -> Result<(u32, M), DecodeError> {
    let read = |version: u32| {
        check_media_type(media_type, M::content_type(version))?;
        match decode_message(version, payload) {
            Ok(message) => Ok((version, message)),
            Err(error) => Err(error),
        }
    };
    if let Some(version) = version {
        return read(version);
    }
    let mut failed = None;
    for version in M::versions().into_iter().rev() {
        match read(version) {
            Err(error @ (DecodeError::Codec(_) | DecodeError::MediaType { .. })) => {
                failed = failed.or(Some(error))
            }
            decoded => return decoded,
        }
    }
    Err(failed.unwrap_or_else(|| DecodeError::unreadable_version(0, M::VERSION)))
}

/// Returns whether a media type is JSON: `application/json`, `text/json` or `…+json`, with or without
/// parameters.
pub fn is_json(media_type: &str) -> bool {
    let subtype = essence(media_type).rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    subtype == "json" || subtype.ends_with("+json")
}

/// Returns a media type without its parameters.
fn essence(media_type: &str) -> &str {
    media_type.split(';').next().unwrap_or_default().trim()
}

fn check_media_type(found: Option<&str>, expected: Option<&'static str>) -> Result<(), DecodeError> {
    // Without an expected type, the version is unknown, and decoding reports that.
    let (Some(found), Some(expected)) = (found, expected) else { return Ok(()) };
    let is_same = found == expected
        || essence(found).eq_ignore_ascii_case(essence(expected))
        || is_json(found) && is_json(expected);
    if is_same {
        return Ok(());
    }
    // The producer wrote this text. Unless it has the form of a media type, it must not appear in errors and
    // logs.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/.+-_".contains(&byte);
    let found = Some(essence(found)).filter(|text| text.len() <= 64 && text.bytes().all(is_plain));
    let found = found.map_or_else(|| "of an unreadable media type".to_owned(), |found| format!("`{found}`"));
    Err(DecodeError::MediaType { found: found.into(), expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_are_compared_without_parameters_and_case() {
        let check = |found, expected| check_media_type(Some(found), Some(expected));
        assert!(check("application/json; charset=utf-8", Json::CONTENT_TYPE).is_ok());
        assert!(check("application/vnd.shop.order+JSON", Json::CONTENT_TYPE).is_ok());
        assert!(check("Application/MsgPack", "application/msgpack").is_ok());
        assert!(check_media_type(None, Some("application/msgpack")).is_ok());
        let error = check("application/xml;x=secret", Json::CONTENT_TYPE).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the payload is `application/xml`, the message type reads `application/json`"
        );
        let error = check("a secret\nline", Json::CONTENT_TYPE).unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
