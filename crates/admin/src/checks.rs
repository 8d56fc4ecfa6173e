//! Checks of payloads against the message types of a program.

use std::panic::{AssertUnwindSafe, catch_unwind};

use jobqueue::{Error, ErrorKind};
use jobqueue_message::codec::decode_any_version;
use jobqueue_message::envelope::Envelope;
use jobqueue_message::message::{DecodeError, QueueMessage};

/// Decodes and validates a payload of the given version, or of an unknown version, and its media type.
type Check = fn(Option<u32>, Option<&str>, &[u8]) -> Result<(), DecodeError>;

/// The message types whose payloads are checked.
#[derive(Clone, Default)]
pub(super) struct CheckedTypes(Vec<CheckedType>);

#[derive(Clone)]
struct CheckedType {
    queue: &'static str,
    kinds: Vec<&'static str>,
    check: Check,
}

impl CheckedTypes {
    pub(super) fn add<M: QueueMessage>(&mut self) {
        self.0.push(CheckedType {
            queue: M::QUEUE,
            kinds: M::kinds(),
            check: |version, media_type, payload| {
                decode_any_version::<M>(version, media_type, payload).map(drop)
            },
        });
    }

    /// Returns all kinds of the types, in alphabetical order.
    pub(super) fn kinds(&self) -> Vec<&'static str> {
        let mut kinds: Vec<_> = self.0.iter().flat_map(|checked| &checked.kinds).copied().collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Checks an event that is sent to `queue`, where payloads without a version have `raw_version`. An event
    /// of another kind passes.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) with the [`DecodeError`] of a payload that is not of its type;
    /// retryable where another release, or this program later, may read it.
    pub(super) fn check(&self, queue: &str, event: &Envelope, raw_version: Option<u32>) -> Result<(), Error> {
        let of_kind = |checked: &&CheckedType| checked.kinds.contains(&&*event.kind);
        // Two queues may have two types of one kind.
        let own = self.0.iter().filter(of_kind).find(|checked| checked.queue == queue);
        let Some(checked) = own.or_else(|| self.0.iter().find(of_kind)) else { return Ok(()) };
        // A worker reads a missing payload as `null`.
        let payload = event.payload.inline().map_or(&b"null"[..], |payload| &payload[..]);
        let version = event.version.or(raw_version);
        let media_type = event.media_type();
        let check = || (checked.check)(version, media_type.as_deref(), payload).map_err(refused);
        // The type's own decoding and rules, which must not end the operator's request.
        catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|_| {
            let text = "nothing was sent: the message type of its kind panicked while it read the payload";
            Err(Error::new(ErrorKind::Invalid, text))
        })
    }
}

fn refused(error: DecodeError) -> Error {
    let is_retryable = error.is_retryable();
    let text = match is_retryable {
        true => "nothing was sent: this program cannot read the payload now",
        false => "nothing was sent: the payload does not fit the message type of its kind",
    };
    Error::new(ErrorKind::Invalid, text).with_retryable(is_retryable).with_source(error)
}
