//! The default codec: JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Codec, CodecError};

/// A codec that writes payloads as JSON text. Nesting is limited to 128 levels.
#[derive(Debug, Clone, Copy, Default)]
pub struct Json;

impl Codec for Json {
    const CONTENT_TYPE: &'static str = "application/json";

    fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
        // Most messages fit, and then nothing is copied to a larger buffer while they are written.
        let mut text = Vec::with_capacity(512);
        match serde_json::to_writer(&mut text, value) {
            Ok(()) => Ok(text),
            Err(error) => Err(no_form(error)),
        }
    }

    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
        // The whole payload is checked at once: serde_json would check each string by itself.
        match std::str::from_utf8(bytes) {
            Ok(text) => match serde_json::from_str(text) {
                Ok(value) => Ok(value),
                Err(error) => Err(unreadable(&error)),
            },
            Err(_) => Err(CodecError::new("the payload is not UTF-8")),
        }
    }
}

// Both error paths are functions of their own, so that they are not compiled again for each type of message.

fn no_form(error: serde_json::Error) -> CodecError {
    CodecError::with_source("the message cannot be written as JSON", error)
}

fn unreadable(error: &serde_json::Error) -> CodecError {
    CodecError::new(describe(error))
}

/// Returns the place and the kind of an error in the JSON. serde's own text can quote the offending value, and payloads
/// must not reach a log.
fn describe(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        serde_json::error::Category::Io => "cannot be read",
        serde_json::error::Category::Syntax => "is not JSON",
        serde_json::error::Category::Data => "does not have the fields or types of the message",
        serde_json::error::Category::Eof => "ends too early",
    };
    match missing_field(&error.to_string()) {
        Some(field) => format!("the payload lacks the field `{field}`"),
        None => format!("the payload {what} (line {}, column {})", error.line(), error.column()),
    }
}

/// Returns the name of a missing field. Names of fields come from the program, not from the payload, so they may be
/// shown.
fn missing_field(text: &str) -> Option<&str> {
    text.strip_prefix("missing field `")?.split('`').next()
}
