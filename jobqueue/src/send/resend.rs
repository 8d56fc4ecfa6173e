//! Sends a message again after its first request got no answer. There may then be two messages, and each needs its
//! own payload.
//!
//! A blob belongs to one message: the process that ends that message may delete the blob without asking whether another
//! message refers to it.

use tokio::time::Instant;

use super::errors::send_error;
use super::prepare::Prepared;
use crate::envelope::headers::batch::COPY;
use crate::envelope::{Envelope, EnvelopeError, Parsed, Payload, encoding_of, parse, to_wire};
use crate::error::{Error, ErrorKind};
use crate::group_log::restamp;
use crate::queue_core::{QueueCore, remove_blobs};
use crate::storage::{Certainty, PutMessage};

/// Notes in a child of a batch that an earlier message of it may exist. Returns whether the event is one.
pub(crate) fn mark_copy(event: &mut Envelope) -> Result<bool, EnvelopeError> {
    let is_child = event.extensions.contains_key(COPY);
    if is_child {
        event.insert_header(COPY, "1")?;
    }
    Ok(is_child)
}

/// Returns the message to put after `put`, which may or may not be stored: the same event, with its payload stored in
/// another blob before `give_up`, and with another copy number if it belongs to a FIFO group, and a note that it is a copy if it is a child of a batch.
///
/// # Errors
/// The payload cannot be stored again; the first message may or may not be stored.
pub(super) async fn resend_of(
    core: &QueueCore,
    first: &Prepared,
    put: &PutMessage,
    give_up: Instant,
) -> Result<PutMessage, Error> {
    let Parsed::Event(mut event) = parse(&put.text)? else {
        return Err(Error::new(ErrorKind::Unknown, "the message that was sent is not an event"));
    };
    if !mark_copy(&mut event)? && first.blob.is_none() && first.announcement.is_none() {
        return Ok(put.clone());
    }
    if let Some((_, data)) = first.blob.as_deref() {
        let own = core.claim_checks.reference(&core.name, data);
        let stored = core.claim_checks.store_by(give_up, &own, data.clone(), first.expires).await;
        stored.map_err(|error| send_error(error, Certainty::Unknown))?;
        event.payload = Payload::Stored(own);
    }
    restamp(&mut event, core.runtime());
    let text = to_wire(event.to_json()?, encoding_of(&put.text));
    let mut next = put.clone();
    next.text = text;
    Ok(next)
}

/// Deletes the payload of a message that is certainly not stored.
pub(super) async fn remove_unsent(core: &QueueCore, unsent: &Prepared) {
    if let Some((reference, _)) = unsent.blob.as_deref() {
        remove_blobs(core, &core.name, vec![reference.clone()]).await;
    }
}
