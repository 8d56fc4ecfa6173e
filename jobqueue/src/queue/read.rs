//! Reads a peeked message.

use super::queue_core::QueueCore;
use crate::claim_check::PayloadError;
use crate::codec::decode_any_version;
use crate::envelope::{Parsed, parse};
use crate::error::{Error, ErrorKind};
use crate::message::{DecodeError, QueueMessage};

/// Decodes a text as `M`.
pub(crate) async fn read_text<M: QueueMessage>(core: &QueueCore, text: &str) -> Result<M, Error> {
    let envelope = match parse(text)? {
        Parsed::Bare(json) => return Ok(read_payload(core, None, json.as_bytes())?),
        Parsed::Event(envelope) => envelope,
    };
    if !M::accepts(&envelope.kind) {
        return Err(Error::new(ErrorKind::Undecodable, "the message is of another kind"));
    }
    let data = core.claim_checks.payload(&core.name, &envelope.payload).await;
    Ok(read_payload(core, envelope.version, &data.map_err(payload_error)?)?)
}

fn read_payload<M: QueueMessage>(
    core: &QueueCore,
    version: Option<u32>,
    data: &[u8],
) -> Result<M, DecodeError> {
    let version = version.or(core.settings().raw_version);
    decode_any_version(version, data).map(|(_, message)| message)
}

pub(crate) fn payload_error(error: PayloadError) -> Error {
    match error {
        PayloadError::Unreadable(failed) => Error::from(failed),
        error => {
            Error::new(ErrorKind::Undecodable, "the payload of the message cannot be read").with_source(error)
        }
    }
}
