//! Reads messages without leasing them.

use crate::codec::decode_any_version;
use crate::delivery::events;
use crate::envelope::{Envelope, Identity, Parsed, RAW_KIND, parse};
use crate::error::{Error, ErrorKind};
use crate::job::outcome::printable;
use crate::message::{DecodeError, QueueMessage};
use crate::queue_core::{Queue, QueueCore, payload_error};
use crate::storage::MAX_MESSAGES;

const MAX_KIND_CHARS: usize = 200;

impl<M: QueueMessage> Queue<M> {
    /// Returns up to 32 visible messages without leasing them.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the storage fails. A message that cannot be read is an error
    /// in the list.
    pub async fn peek(&self) -> Result<Vec<Result<M, Error>>, Error> {
        self.core().fresh_settings().await;
        let peeked = self.core().store().peek(&self.core().name, MAX_MESSAGES).await?;
        let mut messages = Vec::with_capacity(peeked.len());
        for message in peeked {
            messages.push(match &message.text {
                Ok(text) => read_text(self.core(), text).await,
                Err(problem) => Err(Error::new(ErrorKind::Undecodable, problem.clone())),
            });
        }
        Ok(messages)
    }
}

pub(crate) async fn read_text<M: QueueMessage>(core: &QueueCore, text: &str) -> Result<M, Error> {
    let envelope = match parse(text)? {
        Parsed::Bare(json) => {
            return Ok(read_payload(core, None, Some("application/json"), json.as_bytes())?);
        }
        Parsed::Event(envelope) => envelope,
    };
    if !has_kind_of::<M>(&envelope) {
        let kind = printable(&envelope.kind, MAX_KIND_CHARS);
        let text = format!(
            "the message has the kind `{kind}`, not `{}`: open the queue with the type of that kind",
            M::KIND
        );
        return Err(Error::new(ErrorKind::Undecodable, text));
    }
    let data = core.claim_checks.payload(&core.name, &envelope.payload).await;
    let media_type = envelope.media_type();
    Ok(read_payload(core, envelope.version, media_type.as_deref(), &data.map_err(payload_error)?)?)
}

/// Returns whether a text is an event of a kind that `M` does not have.
pub(crate) fn is_of_another_kind<M: QueueMessage>(text: &str) -> bool {
    matches!(parse(text), Ok(Parsed::Event(envelope)) if !has_kind_of::<M>(&envelope))
}

fn has_kind_of<M: QueueMessage>(envelope: &Envelope) -> bool {
    M::kinds().contains(&&*envelope.kind) || *envelope.kind == *RAW_KIND
}

fn read_payload<M: QueueMessage>(
    core: &QueueCore,
    version: Option<u32>,
    media_type: Option<&str>,
    data: &[u8],
) -> Result<M, DecodeError> {
    let version = version.or(core.settings().raw_version);
    decode_any_version(version, media_type, data).map(|(_, message)| message)
}

/// Returns whether a peek returns a message of this job.
#[cfg_attr(not(feature = "schedule"), allow(dead_code, reason = "only schedules need it"))]
pub(crate) async fn is_waiting(core: &QueueCore, job: &Identity) -> bool {
    let Ok(visible) = core.store().peek(&core.name, MAX_MESSAGES).await else { return false };
    events(&visible).any(|found| found.identity() == *job)
}
