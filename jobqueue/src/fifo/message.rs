//! Defines what a message says about its position, and what those do who receive messages by hand.

use std::sync::Arc;
use std::time::Duration;

use super::entry::{EntryRef, How, Turn};
use super::log::{GRACE, Millis};
use crate::entropy;
use crate::envelope::Envelope;
use crate::error::{Error, ErrorKind};
use crate::queue::LeasedJob;
use crate::task;

/// The attribute of events that keep to the order of their key.
pub(super) const HEADER: &str = "inorder";
/// The attribute that tells several messages of one job apart.
const COPY: &str = "fifocopy";
/// From how long a put-back on it is noted that the message stays away: less than those behind it wait at least.
const NOTED: Duration = Duration::from_secs(60);

/// The interval at which a worker confirms that the message it works on exists.
const HEARTBEAT: Duration = Duration::from_secs(GRACE.as_secs() / 3);

/// A delivered message that keeps to the order of its key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InOrder {
    pub(super) entry: EntryRef,
    pub(super) turn: Turn,
}

/// Gives an event that keeps to an order a number of its own, before it is stored as a message; returns the number.
pub(crate) fn restamp(envelope: &mut Envelope) -> Option<u64> {
    if !envelope.extensions.contains_key(HEADER) {
        return None;
    }
    // As many digits as every reader of JSON keeps.
    let copy = entropy::random::<u64>() >> 11;
    envelope.insert_header(COPY, &format!("{copy:014x}")).ok()?;
    Some(copy)
}

impl InOrder {
    /// Returns what the event of a delivery says; `None` if it keeps to no order.
    fn of(envelope: &Envelope, delivery: u32) -> Option<Self> {
        if !envelope.extensions.contains_key(HEADER) {
            return None;
        }
        let entry = EntryRef::new(envelope.subject.as_deref()?, envelope.digest());
        let copy = envelope.extensions.get(COPY);
        let copy = copy.and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
        let copy = copy.and_then(|text| u64::from_str_radix(&text, 16).ok()).unwrap_or(0);
        Some(Self { entry, turn: Turn { copy, delivery } })
    }
}

/// For messages that are received by hand, in whatever order: the next of the key is not to wait for them for ever.
impl LeasedJob {
    /// The entry and the turn of this delivery, if it keeps to an order.
    pub(crate) fn in_order(&self) -> Option<InOrder> {
        let read = || self.with_envelope(|envelope| InOrder::of(envelope, self.dequeue_count)).flatten();
        *self.in_order.get_or_init(read)
    }

    /// The job is done: its position ends, if it keeps to an order.
    pub(crate) async fn end_turn(&self) -> Result<(), Error> {
        self.end_position(How::Done).await
    }

    /// The message is to be dead-lettered: it gives up its position, if it keeps to an order.
    pub(crate) async fn give_up_turn(&self) -> Result<(), Error> {
        self.end_position(How::DeadLettered).await
    }

    pub(super) async fn end_position(&self, how: How) -> Result<(), Error> {
        let Some(InOrder { entry, turn }) = self.in_order() else { return Ok(()) };
        let now = Millis::from(self.core.options.clock.now());
        let ended = self.core.fifo.of(&entry)?.change(move |log| log.end(&entry, turn, how, now)).await?;
        ended.then_some(()).ok_or_else(superseded)
    }

    /// While the message is worked on for long, says now and then that it exists.
    pub(crate) fn keep_expected(&self) {
        let Some(InOrder { entry, .. }) = self.in_order() else { return };
        let Ok(log) = self.core.fifo.of(&entry) else { return };
        let lease = Arc::downgrade(&self.lease);
        let clock = Arc::clone(&self.core.options.clock);
        task::spawn(async move {
            loop {
                tokio::time::sleep(HEARTBEAT).await;
                if lease.upgrade().is_none_or(|lease| lease.loss().is_some()) {
                    return;
                }
                let due = Millis::from(clock.now()).after(GRACE);
                if let Err(error) = log.change(move |log| log.extend(&entry, due)).await {
                    tracing::debug!(%error, "that a job is worked on is not noted; it may lose its position");
                }
            }
        });
    }

    /// The message is about to be put back for `delay`: for so long nobody behind it expects it.
    pub(crate) async fn note_absence(&self, delay: Duration) {
        let Some(InOrder { entry, .. }) = self.in_order().filter(|_| delay >= NOTED) else { return };
        let due = Millis::from(self.core.options.clock.now()).after(delay + GRACE);
        let noted = match self.core.fifo.of(&entry) {
            Ok(log) => log.change(move |log| log.extend(&entry, due)).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = noted {
            tracing::debug!(queue = %self.core.name, %error, "that a message stays away is not noted; it may lose its position");
        }
    }
}

/// The error of a former delivery.
pub(super) fn superseded() -> Error {
    Error::new(ErrorKind::LeaseLost, "a newer delivery of this message has its turn")
}
