//! JSON that needs no second look.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::EnvelopeError;

/// JSON text that is known to be well-formed, so that it can stand in an event as it is. Shared, not copied, when cloned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonText(Bytes);

impl JsonText {
    /// Looks through a text that anybody may have written.
    ///
    /// # Errors
    /// When it is not UTF-8 or not JSON.
    pub fn check(text: Bytes) -> Result<Self, EnvelopeError> {
        let utf8 = std::str::from_utf8(&text).map_err(|_| super::text::TextError::NotUtf8)?;
        serde_json::from_str::<&RawValue>(utf8).map_err(EnvelopeError::json)?;
        Ok(Self(text))
    }

    /// Takes over what serde_json has just written.
    pub fn written_by_serde_json(text: impl Into<Bytes>) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, shared.
    pub fn to_bytes(&self) -> Bytes {
        self.0.clone()
    }
}

/// A parser has been through it.
impl From<&RawValue> for JsonText {
    fn from(raw: &RawValue) -> Self {
        Self(Bytes::copy_from_slice(raw.get().as_bytes()))
    }
}
