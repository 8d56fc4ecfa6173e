//! Room for what deliveries write into a message. A message that is full when it is sent could neither be retried nor dead-lettered.

use super::queue_core::QueueCore;
use crate::envelope::{Envelope, Payload, fits_with_room};
use crate::error::{Error, ErrorKind};
use crate::settings::MessageEncoding;

/// The most bytes that deliveries add to an event whose payload and checkpoint are in blobs. Texts of errors are shortened to fit.
const ROOM: usize = 2_048;

/// Attributes of at most so many bytes leave room in any encoding, whatever has to be escaped in them.
const SMALL: usize = 16_000;

impl QueueCore {
    /// Checks that an event leaves room; `attributes` is about the number of their bytes.
    ///
    /// # Errors
    /// [`TooLarge`](ErrorKind::TooLarge). The payload does not matter: it can move to a blob.
    pub(super) fn check_room(
        &self,
        envelope: &Envelope,
        attributes: usize,
        encoding: MessageEncoding,
    ) -> Result<(), Error> {
        if attributes <= SMALL {
            return Ok(());
        }
        let mut fullest = envelope.clone();
        if !matches!(fullest.payload, Payload::Stored(_)) {
            fullest.payload = Payload::Stored(self.claim_checks.reference(&self.name, &[]));
        }
        if fits_with_room(&fullest.to_json()?, ROOM, encoding) {
            return Ok(());
        }
        let text = format!(
            "the event's attributes are too large: {ROOM} bytes of a message are left to what deliveries write"
        );
        Err(Error::new(ErrorKind::TooLarge, text))
    }
}
