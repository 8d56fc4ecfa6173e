//! The trait that turns payloads into bytes and back. Implementations are in [`crate::codec`].

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A format for the payloads of message types.
///
/// `#[message(codec = …)]` sets the codec of a type; the default is [`Json`](crate::codec::Json). A payload
/// whose [`CONTENT_TYPE`](Codec::CONTENT_TYPE) is JSON is readable in the message. Any other payload is
/// stored in base64 (`data_base64` of CloudEvents).
///
/// A codec may encode a value differently each time, for example with a random nonce: no job is identified by
/// the bytes of its payload.
///
/// The input of a codec is untrusted. The codec must return an error for input that it cannot read, and bound
/// its recursion and allocation by the size of the input.
///
/// ```
/// use jobqueue::codec::{Codec, CodecError};
/// use jobqueue::QueueMessage;
/// use serde::{Deserialize, Serialize, de::DeserializeOwned};
///
/// /// JSON with line breaks, for people who look into queues.
/// struct Pretty;
///
/// impl Codec for Pretty {
///     const CONTENT_TYPE: &'static str = "application/json";
///
///     fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
///         serde_json::to_vec_pretty(value).map_err(|e| CodecError::with_source("no JSON form", e))
///     }
///
///     fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
///         // serde's own text can quote the payload.
///         serde_json::from_slice(bytes).map_err(|_| CodecError::new("the payload is not of its type"))
///     }
/// }
///
/// #[derive(Serialize, Deserialize, QueueMessage)]
/// #[message(queue = "notes", kind = "note", codec = Pretty)]
/// struct Note { text: String }
/// ```
pub trait Codec: 'static {
    /// The media type of encoded values, such as `application/json`. It is stored with every message. A
    /// message with another media type is dead-lettered as `decode_error`, and this codec does not read it.
    const CONTENT_TYPE: &'static str;

    /// Encodes a value.
    ///
    /// # Errors
    /// [`CodecError`] if the codec cannot represent the value. JSON, for example, has no maps with keys other
    /// than strings.
    fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError>;

    /// Decodes a value.
    ///
    /// # Errors
    /// [`CodecError`] if the bytes are not a `T`, and a [retryable](CodecError::retryable) one if the codec
    /// lacks what it needs to find out, such as a key.
    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError>;
}

/// The reason why a codec could not write or read a payload. Its text never quotes the payload.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct CodecError {
    text: Box<str>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    is_retryable: bool,
}

impl CodecError {
    /// Returns an error with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into().into_boxed_str(), source: None, is_retryable: false }
    }

    /// Returns an error with this text and cause. The text of the cause must not quote the payload.
    pub fn with_source(
        text: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { source: Some(source.into()), ..Self::new(text) }
    }

    /// Says that another worker, or this one later, may read the payload: a key is not installed yet, or the
    /// service that keeps it does not answer.
    ///
    /// A worker puts the message back without counting an attempt, as it does a message of a newer version,
    /// and dead-letters it as `decode_error` when no worker could read it for as long as `unknownkindseconds`
    /// of the queue's metadata allows: a day by default. Without this mark the message is dead-lettered at
    /// once.
    ///
    /// A send whose codec returns a marked error is `Rejected`, and is retryable. If a handler passes this
    /// error on by `?`, the delivery costs no attempt, as with an outage of the storage.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.is_retryable = true;
        self
    }

    /// Returns whether the error is marked as [`retryable`](Self::retryable).
    pub fn is_retryable(&self) -> bool {
        self.is_retryable
    }
}
