//! Converts between JSON and the text of a message, plain or base64, within the characters and the size that
//! XML allows.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use jobqueue_storage::MAX_TEXT_BYTES;
use jobqueue_storage::rules::MAX_ESCAPED_BYTES;

use crate::settings::MessageEncoding;

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::URL_SAFE, LENIENT);

/// The reason why a text is not an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The text is neither JSON nor base64.
    #[error("the text is neither JSON nor base64")]
    NeitherJsonNorBase64,
    /// The text is base64 of bytes that are not UTF-8.
    #[error("the text is base64, but its content is not UTF-8")]
    NotUtf8,
}

/// Returns the message text for this JSON.
pub fn to_wire(json: String, encoding: MessageEncoding) -> String {
    match encoding {
        MessageEncoding::Plain => json,
        MessageEncoding::Base64 => STANDARD.encode(json),
    }
}

/// Returns the encoding of a message's text.
pub fn encoding_of(text: &str) -> MessageEncoding {
    if is_plain(trimmed(text)) { MessageEncoding::Plain } else { MessageEncoding::Base64 }
}

/// Returns whether a text begins with a character that can begin JSON but not base64.
fn is_plain(text: &str) -> bool {
    text.starts_with(['{', '[', '"', '-'])
}

/// Trims white space and byte order marks from both ends of a text.
pub(super) fn trimmed(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || c == '\u{feff}')
}

/// Reads the text of a message, plain or base64. Accepted base64: standard or URL-safe alphabet, padded or
/// not, with white space anywhere.
///
/// # Errors
/// [`TextError`] if the text is neither JSON nor base64 of UTF-8 text.
pub(super) fn from_wire(text: &str) -> Result<Cow<'_, str>, TextError> {
    let text = trimmed(text);
    if text.is_empty() {
        return Err(TextError::NeitherJsonNorBase64);
    }
    // Numbers and `true`, `false` and `null` are valid base64 as well as JSON. Their decoded bytes are never
    // UTF-8 JSON.
    if is_plain(text) || serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() {
        return Ok(Cow::Borrowed(text));
    }
    let packed: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let bytes = STANDARD.decode(&packed).or_else(|_| URL_SAFE.decode(&packed));
    let bytes = bytes.map_err(|_| TextError::NeitherJsonNorBase64)?;
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| TextError::NotUtf8)
}

/// Returns whether JSON fits into a message in this encoding.
pub fn fits(json: &str, encoding: MessageEncoding) -> bool {
    fits_with_room(json, 0, encoding)
}

/// Returns whether JSON and `room` more bytes fit into a message in this encoding, if up to a fifth of these
/// bytes need escapes.
pub fn fits_with_room(json: &str, room: usize, encoding: MessageEncoding) -> bool {
    match encoding {
        // An escaped byte has at most six bytes, so short texts need no counting.
        MessageEncoding::Plain if 6 * json.len() + 2 * room <= MAX_ESCAPED_BYTES.min(MAX_TEXT_BYTES) => true,
        MessageEncoding::Plain => {
            json.len() + room <= MAX_TEXT_BYTES && escaped_len(json) + 2 * room <= MAX_ESCAPED_BYTES
        }
        MessageEncoding::Base64 => (json.len() + room).div_ceil(3) * 4 <= MAX_TEXT_BYTES,
    }
}

/// Returns whether an event with a payload of this size may fit into a message. If not, the event need not be
/// written to find out.
pub fn may_fit(payload_bytes: usize) -> bool {
    payload_bytes <= MAX_TEXT_BYTES
}

/// Returns the length of the text after XML escaping by the escaper that escapes the most characters.
fn escaped_len(text: &str) -> usize {
    let cost = |b: u8| match b {
        b'"' | b'\'' => 6,
        b'&' => 5,
        b'<' | b'>' => 4,
        _ => 1,
    };
    text.bytes().map(cost).sum()
}

/// Replaces characters that XML 1.0 cannot carry by JSON escapes. serde_json has already escaped control
/// characters, and the two other characters occur only inside strings.
pub(super) fn xml_safe(json: String) -> String {
    if needs_escapes(&json) { escaped(&json) } else { json }
}

/// Replaces characters that XML 1.0 cannot carry by JSON escapes, in the bytes of JSON text.
pub(super) fn xml_safe_bytes(json: &[u8]) -> Cow<'_, [u8]> {
    match std::str::from_utf8(json) {
        Ok(text) if needs_escapes(text) => Cow::Owned(escaped(text).into_bytes()),
        _ => Cow::Borrowed(json),
    }
}

fn needs_escapes(json: &str) -> bool {
    // Both characters begin with 0xEF in UTF-8, a byte that few texts have. The loop has no early exit, so
    // that the compiler can vectorise it.
    let suspect = json.bytes().fold(false, |suspect, byte| suspect | (byte == 0xEF));
    suspect && json.contains(['\u{fffe}', '\u{ffff}'])
}

fn escaped(json: &str) -> String {
    json.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff")
}
