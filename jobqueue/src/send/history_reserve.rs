//! Space in a message for the history of its deliveries. A message without free space could be neither
//! retried nor dead-lettered.

use crate::envelope::{Envelope, Payload, fits_with_room};
use crate::error::{Error, ErrorKind};
use crate::queue_core::QueueCore;
use crate::settings::MessageEncoding;

/// The maximum number of bytes that deliveries add to an event whose payload and checkpoint are in blobs.
/// Error texts are shortened to fit.
const HISTORY_RESERVE: usize = 2_048;

/// Attributes of up to this many bytes leave room in any encoding, even if every character must be escaped.
const SMALL_ATTRIBUTES: usize = 16_000;

/// Checks that an event has space for its history. `attributes` is the approximate size of its attributes in
/// bytes.
///
/// # Errors
/// [`TooLarge`](ErrorKind::TooLarge). The size of the payload does not matter: it can move to a blob.
pub(super) fn reserve_history_space(
    core: &QueueCore,
    envelope: &Envelope,
    attributes: usize,
    encoding: MessageEncoding,
) -> Result<(), Error> {
    if attributes <= SMALL_ATTRIBUTES {
        return Ok(());
    }
    let mut fullest = envelope.clone();
    if !matches!(fullest.payload, Payload::Stored(_)) {
        fullest.payload = Payload::Stored(core.claim_checks.reference(&core.name, &[]));
    }
    if fits_with_room(&fullest.to_json()?, HISTORY_RESERVE, encoding) {
        return Ok(());
    }
    let text = format!(
        "the event's attributes are too large: {HISTORY_RESERVE} bytes of each message are reserved for the framework's attributes"
    );
    Err(Error::new(ErrorKind::TooLarge, text))
}
