//! The FIFO attributes of a message, and the turn of messages that an application receives by hand, in any order: the
//! next job of the key must not wait forever.

use std::sync::Arc;
use std::time::Duration;

use super::entry::{EntryRef, How, Turn};
use super::log::{GRACE, Millis};
use crate::entropy;
use crate::envelope::Envelope;
use crate::error::{Error, ErrorKind};
use crate::queue::LeasedJob;
use crate::task;

/// The attribute that marks events of a FIFO group.
pub(super) const HEADER: &str = "inorder";
/// The attribute that tells several messages of one job apart.
const COPY: &str = "fifocopy";
/// A put-back of at least this length is recorded in the log. It is shorter than the jobs behind it wait at least.
const NOTED: Duration = Duration::from_secs(60);

/// The interval at which a worker confirms that the message of a running job exists.
const HEARTBEAT: Duration = Duration::from_secs(GRACE.as_secs() / 3);

/// A delivered message of a FIFO group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InOrder {
    pub(super) entry: EntryRef,
    pub(super) turn: Turn,
}

/// Gives a FIFO event a copy number of its own before it is stored as a message. Returns the number.
pub(crate) fn restamp(envelope: &mut Envelope) -> Option<u64> {
    if !envelope.extensions.contains_key(HEADER) {
        return None;
    }
    // 53 bits: every JSON reader keeps all their digits.
    let copy = entropy::random::<u64>() >> 11;
    envelope.insert_header(COPY, &format!("{copy:014x}")).ok()?;
    Some(copy)
}

/// Returns whether an event keeps to the order of its key.
pub(crate) fn is_in_order(envelope: &Envelope) -> bool {
    envelope.extensions.contains_key(HEADER) && envelope.key.is_some()
}

impl InOrder {
    /// Returns the group, job and turn of a delivery; `None` if the event belongs to no FIFO group.
    fn of(envelope: &Envelope, delivery: u32) -> Option<Self> {
        if !envelope.extensions.contains_key(HEADER) {
            return None;
        }
        let entry = EntryRef::new(envelope.key.as_deref()?, envelope.digest());
        let copy = envelope.extensions.get(COPY);
        let copy = copy.and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
        let copy = copy.and_then(|text| u64::from_str_radix(&text, 16).ok()).unwrap_or(0);
        Some(Self { entry, turn: Turn { copy, delivery } })
    }
}

/// Returns the entry and the turn of this delivery if it belongs to a FIFO group that has a log.
pub(crate) fn in_order(job: &LeasedJob) -> Option<InOrder> {
    if job.core.orders_groups {
        return None;
    }
    let read = || job.with_envelope(|envelope| InOrder::of(envelope, job.dequeue_count)).flatten();
    *job.in_order.get_or_init(read)
}

/// Ends the position of a completed job, if it belongs to a FIFO group.
pub(crate) async fn end_turn(job: &LeasedJob) -> Result<(), Error> {
    end_position(job, How::Done).await
}

/// Gives up the position of a job that is about to be dead-lettered, if it belongs to a FIFO group.
pub(crate) async fn give_up_turn(job: &LeasedJob) -> Result<(), Error> {
    end_position(job, How::DeadLettered).await
}

pub(super) async fn end_position(job: &LeasedJob, how: How) -> Result<(), Error> {
    let Some(InOrder { entry, turn }) = in_order(job) else { return Ok(()) };
    let now = Millis::from(job.core.options.clock.now());
    let ended = job.core.fifo.of(&entry)?.change(move |log| log.end(&entry, turn, how, now)).await?;
    ended.then_some(()).ok_or_else(superseded)
}

/// Confirms at intervals, while the handler runs, that the message exists.
pub(crate) fn keep_expected(job: &LeasedJob) {
    let Some(InOrder { entry, .. }) = in_order(job) else { return };
    let Ok(log) = job.core.fifo.of(&entry) else { return };
    let lease = Arc::downgrade(&job.lease);
    let clock = Arc::clone(&job.core.options.clock);
    task::spawn(async move {
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            if lease.upgrade().is_none_or(|lease| lease.loss().is_some()) {
                return;
            }
            let due = Millis::from(clock.now()).after(GRACE);
            if let Err(error) = log.change(move |log| log.extend(&entry, due)).await {
                tracing::debug!(%error, "the group log does not show that the job is running; it may lose its position");
            }
        }
    });
}

/// Records that the message is about to be put back for `delay`, so that the jobs behind it do not call it
/// overdue.
pub(crate) async fn note_absence(job: &LeasedJob, delay: Duration) {
    let Some(InOrder { entry, .. }) = in_order(job).filter(|_| delay >= NOTED) else { return };
    let due = Millis::from(job.core.options.clock.now()).after(delay + GRACE);
    let noted = match job.core.fifo.of(&entry) {
        Ok(log) => log.change(move |log| log.extend(&entry, due)).await,
        Err(error) => Err(error.into()),
    };
    if let Err(error) = noted {
        tracing::debug!(queue = %job.core.name, %error, "the group log does not show that the message is delayed; it may lose its position");
    }
}

/// Returns the error of a delivery that a newer one has replaced.
pub(super) fn superseded() -> Error {
    Error::new(ErrorKind::LeaseLost, "a newer delivery of this message has its turn")
}
