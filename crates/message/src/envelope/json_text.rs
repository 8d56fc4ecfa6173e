//! JSON text that has been checked.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::EnvelopeError;

/// JSON text that is known to be well-formed, and can be copied into an event unchanged. Clones share the
/// bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct JsonText(Bytes);

impl JsonText {
    /// Checks a text of unknown origin.
    ///
    /// # Errors
    /// An error if the text is not UTF-8 or not JSON.
    pub fn check(text: Bytes) -> Result<Self, EnvelopeError> {
        let utf8 = std::str::from_utf8(&text).map_err(|_| super::text::TextError::NotUtf8)?;
        serde_json::from_str::<&RawValue>(utf8).map_err(EnvelopeError::json)?;
        Ok(Self(text))
    }

    /// Wraps text that serde_json has just written.
    pub fn written_by_serde_json(text: impl Into<Bytes>) -> Self {
        Self(text.into())
    }

    /// Returns the bytes of the text.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// Returns the text.
    ///
    /// # Errors
    /// An error if the text is not UTF-8, which serde_json never writes.
    pub(super) fn as_str(&self) -> Result<&str, EnvelopeError> {
        std::str::from_utf8(&self.0).map_err(|_| super::text::TextError::NotUtf8.into())
    }
}

jobqueue_storage::debug_fields! {
    /// Shows no payload.
    JsonText { bytes = as_bytes().len() }
}

/// Wraps text that a parser has already checked.
impl From<&RawValue> for JsonText {
    fn from(raw: &RawValue) -> Self {
        Self(Bytes::copy_from_slice(raw.get().as_bytes()))
    }
}
