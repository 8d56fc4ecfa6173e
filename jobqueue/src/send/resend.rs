//! Sends a message again after the outcome of its first request is unknown. Two messages of the job may then
//! exist, and each needs its own payload.
//!
//! A blob belongs to one message: the process that ends a message may delete its blob without checking for
//! other messages. A busy storage may leave the outcome of many requests unknown, so the third and all
//! further messages share one blob, which no message deletes.

use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{StreamExt as _, stream};
use tokio::time::{Instant, timeout};

use super::prepare::Prepared;
use super::put::send_error;
use crate::envelope::headers::batch::COPY;
use crate::envelope::{
    Envelope, EnvelopeError, Parsed, Payload, StoredReference, encoding_of, parse, to_wire,
};
use crate::error::{Error, ErrorKind};
use crate::group_log::restamp;
use crate::queue_core::{MAX_DOUBTS_WITH_OWN_BLOBS, QueueCore, remove_blobs};
use crate::storage::{Certainty, PutMessage};

/// The maximum number of payloads that are deleted at the same time.
const CONCURRENT_DELETIONS: usize = 4;
/// The time limit for the deletion of all payloads of a send.
const DELETION_TIMEOUT: Duration = Duration::from_secs(5);

/// Marks a child of a batch as a possible copy: an earlier message of it may exist. Returns whether the event
/// is a child.
pub(crate) fn mark_copy(event: &mut Envelope) -> Result<bool, EnvelopeError> {
    let is_child = event.extensions.contains_key(COPY);
    if is_child {
        event.insert_header(COPY, "1")?;
    }
    Ok(is_child)
}

/// Returns the message to put after `put`, the last of `doubts` messages that may or may not be stored: the
/// same event, with its payload in another blob, which is stored before `give_up`, or in the one that further
/// messages share. A message of a FIFO group gets another copy number, and a child of a batch is marked as a
/// copy.
///
/// # Errors
/// The payload cannot be stored again; the first message may or may not be stored.
pub(super) async fn resend_of(
    core: &QueueCore,
    first: &Prepared,
    put: &PutMessage,
    doubts: u32,
    give_up: Instant,
) -> Result<PutMessage, Error> {
    let Parsed::Event(mut event) = parse(&put.text)? else {
        return Err(Error::new(ErrorKind::Unknown, "the message that was sent is not an event"));
    };
    if !mark_copy(&mut event)? && first.blob.is_none() && first.announcement.is_none() {
        return Ok(put.clone());
    }
    if let Some((_, data)) = first.blob.as_deref().filter(|_| doubts <= MAX_DOUBTS_WITH_OWN_BLOBS) {
        let own = core.claim_checks.reference(&core.name, data);
        let reference = if doubts == MAX_DOUBTS_WITH_OWN_BLOBS { own.shared() } else { own };
        let stored = core.claim_checks.store_by(give_up, &reference, data.clone(), first.expires).await;
        if let Err(error) = stored {
            remove_payloads(core, vec![reference]).await;
            return Err(send_error(error, Certainty::Unknown));
        }
        event.payload = Payload::Stored(reference);
    }
    restamp(&mut event, core.runtime());
    let text = to_wire(event.to_json()?, encoding_of(&put.text));
    let mut next = put.clone();
    next.text = text;
    Ok(next)
}

/// Deletes the payloads of messages that are certainly not stored, as far as the storage answers: a sweep
/// deletes the others.
pub(super) fn remove_unsent<'c, 'p>(
    core: &'c QueueCore,
    unsent: impl IntoIterator<Item = &'p Prepared>,
) -> BoxFuture<'c, ()> {
    let payloads = unsent.into_iter().filter_map(|prepared| prepared.blob.as_deref());
    remove_payloads(core, payloads.map(|(reference, _)| reference.clone()).collect())
}

/// Returns the payload of a message if it is in a blob.
pub(super) fn payload_of(put: &PutMessage) -> Option<StoredReference> {
    match parse(&put.text).ok()? {
        Parsed::Event(event) => match event.payload {
            Payload::Stored(reference) => Some(reference),
            _ => None,
        },
        Parsed::Bare(_) => None,
    }
}

/// Deletes payloads as [`remove_unsent`] does.
pub(super) fn remove_payloads(core: &QueueCore, payloads: Vec<StoredReference>) -> BoxFuture<'_, ()> {
    let delete = |payload| remove_blobs(core, &core.name, vec![payload]);
    Box::pin(async move {
        if !payloads.is_empty() {
            let deletions = stream::iter(payloads).for_each_concurrent(CONCURRENT_DELETIONS, delete);
            let _ = timeout(DELETION_TIMEOUT, deletions).await;
        }
    })
}
