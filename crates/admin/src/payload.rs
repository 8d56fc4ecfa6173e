//! Payloads and checkpoints as raw data.

use bytes::Bytes;
use jobqueue_message::codec::is_json;
use jobqueue_message::envelope::{Checkpoint, Payload, StoredReference};
use serde::Serialize;
use serde_json::value::RawValue;

use super::text::base64;

/// The payload or the checkpoint of a job as stored. It is untrusted: show it as data.
#[derive(Clone, Default, Serialize)]
#[serde(tag = "form", content = "value", rename_all = "snake_case")]
#[non_exhaustive]
pub enum RawPayload {
    /// The job has no payload or checkpoint.
    #[default]
    None,
    /// JSON text.
    Json(Box<RawValue>),
    /// Bytes of another media type: base64 in JSON.
    Bytes(#[serde(serialize_with = "base64")] Bytes),
    /// A text that is not JSON, from a message that is not an event.
    Text(String),
    /// A reference to a blob; [`Admin::payload`](super::Admin::payload) or
    /// [`Admin::checkpoint`](super::Admin::checkpoint) reads it.
    Blob(BlobReference),
}

/// A reference to a blob with a payload or a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BlobReference {
    /// The name of the blob in the container `jobqueue-payloads`.
    pub name: String,
    /// The number of bytes.
    pub bytes: u64,
    /// The SHA-256 of the content, as hexadecimal digits.
    pub sha256: String,
}

impl BlobReference {
    fn of(reference: &StoredReference) -> Self {
        let (name, sha256) = (reference.to_string(), reference.sha256.to_string());
        Self { name, bytes: reference.size, sha256 }
    }

    /// Returns the reference for a claim check; `None` if a caller has changed it to something else.
    pub(super) fn stored(&self) -> Option<StoredReference> {
        StoredReference::parse(&self.name, Some(self.bytes), Some(&self.sha256)).ok()
    }
}

impl RawPayload {
    pub(super) fn of(payload: &Payload) -> Self {
        match payload {
            Payload::None => Self::None,
            Payload::Json(json) => Self::read(json.as_bytes()),
            Payload::Binary(bytes) => Self::Bytes(bytes.clone()),
            Payload::Stored(reference) => Self::Blob(BlobReference::of(reference)),
        }
    }

    pub(super) fn of_checkpoint(checkpoint: &Checkpoint) -> Self {
        match checkpoint {
            Checkpoint::Inline(json) => Self::read(&Bytes::copy_from_slice(json.as_bytes())),
            Checkpoint::Stored(reference) => Self::Blob(BlobReference::of(reference)),
        }
    }

    /// Returns the content of a blob in the form that a message would carry: as bytes unless its media type
    /// is JSON.
    pub(super) fn of_blob(content_type: Option<&str>, data: Bytes) -> Self {
        if content_type.is_none_or(is_json) { Self::read(&data) } else { Self::Bytes(data) }
    }

    /// Returns the data as JSON if it is JSON, else as text if it is UTF-8, else as bytes.
    pub(super) fn read(data: &Bytes) -> Self {
        match (serde_json::from_slice(data), std::str::from_utf8(data)) {
            (Ok(json), _) => Self::Json(json),
            (_, Ok(text)) => Self::Text(text.to_owned()),
            _ => Self::Bytes(data.clone()),
        }
    }

    /// Returns the number of bytes, inline or in the blob.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Json(json) => json.get().len() as u64,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Text(text) => text.len() as u64,
            Self::Blob(reference) => reference.bytes,
        }
    }
}

jobqueue_storage::debug_fields! {
    /// Shows no payload.
    RawPayload { bytes = bytes() }
}
