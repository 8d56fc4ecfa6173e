//! A leased message and its content.

use std::borrow::Cow;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::checkpoint::CheckpointState;
use super::message_changes::no_answer;
use super::receipt_times::ReceiptTimes;
use super::shrink_history::fit_shortened;
use crate::envelope::{Checkpoint, Envelope, EventDigest, Payload, StoredReference, state_of};
use crate::error::Error;
use crate::group_log::InOrder;
use crate::job::JobInfo;
use crate::job::outcome::{Reason, printable};
use crate::lease::Lease;
use crate::log::MAX_ID_CHARS;
use crate::queue_core::QueueCore;
use crate::settings::{JobLimits, QueueSettings};
use crate::storage::LeasedMessage;
use crate::sync::lock;
use crate::trace::{OpenSpan, Step, TraceContext};

/// The maximum size of a checkpoint inside the message, in bytes. A larger checkpoint is stored in a blob.
const MAX_INLINE_CHECKPOINT: usize = 16 * 1024;
/// The delay before a failed confirmation of the turn is retried.
const CONFIRM_RETRY_DELAY: Duration = Duration::from_secs(5);

/// One delivery: the lease, and the content as it is stored or as the next change will store it.
#[derive(Debug)]
pub(crate) struct LeasedJob {
    pub(crate) core: Arc<QueueCore>,
    pub(crate) lease: Arc<Lease>,
    /// The number of this delivery, from 1: the dequeue count, or one more than the recorded number if the
    /// storage does not count deliveries.
    pub(crate) dequeue_count: u32,
    pub(crate) times: ReceiptTimes,
    pub(crate) expires: Option<SystemTime>,
    /// The queue's settings when the message was received.
    pub(crate) settings: Arc<QueueSettings>,
    pub(super) limits: JobLimits,
    content: Mutex<Content>,
    /// True if the stored text says that the handler has finished. No text without that mark may replace it.
    pub(super) end_is_stored: AtomicBool,
    /// The content that the handler's transaction has written.
    pub(super) in_transaction: Mutex<Option<Content>>,
    /// Locked from a change of the content until its text is stored, so that texts are stored in order.
    pub(crate) saving: tokio::sync::Mutex<()>,
    /// The position of a FIFO job in its group, computed once.
    pub(crate) in_order: OnceLock<Option<InOrder>>,
    pub(super) checkpoints: CheckpointState,
    /// The tasks that record the results of effects.
    pub(super) effects: OnceLock<TaskTracker>,
    heartbeat: OnceLock<DropGuard>,
}

#[derive(Debug, Clone)]
pub(crate) enum Content {
    Event(Box<Envelope>),
    Unreadable(Box<UnreadableText>),
}

#[derive(Debug, Clone)]
pub(crate) struct UnreadableText {
    /// `None` if the storage could not read the text at all.
    pub(super) text: Option<String>,
    pub(super) reason: Reason,
    pub(super) problem: String,
}

/// A text to store, and the blobs to store before it.
#[derive(Debug)]
pub(super) struct Rendered {
    pub(crate) text: String,
    pub(crate) blobs: Vec<(StoredReference, Bytes)>,
}

impl LeasedJob {
    #[allow(clippy::too_many_arguments, reason = "each is a field of its own")]
    pub(crate) fn new(
        core: Arc<QueueCore>,
        lease: Arc<Lease>,
        leased: &LeasedMessage,
        dequeue_count: u32,
        settings: Arc<QueueSettings>,
        limits: JobLimits,
        content: Content,
    ) -> Self {
        Self {
            core,
            lease,
            dequeue_count,
            times: ReceiptTimes::new(leased, settings.timeout),
            expires: leased.expires,
            settings,
            limits,
            end_is_stored: AtomicBool::new(
                matches!(&content, Content::Event(event) if event.history.finished.is_some()),
            ),
            in_transaction: Mutex::new(None),
            content: Mutex::new(content),
            saving: tokio::sync::Mutex::new(()),
            in_order: OnceLock::new(),
            checkpoints: CheckpointState::default(),
            effects: OnceLock::new(),
            heartbeat: OnceLock::new(),
        }
    }

    /// Renews the delivery's turn among other messages every `interval`, first after `pause`, until the
    /// delivery is dropped or its lease ends. Runs on the renewer's runtime, which a handler cannot block.
    /// `confirm` returns the new time until which no other message takes the turn, or `None` if another
    /// message has it. The lease ends if the turn is lost, or is not confirmed before that time; `until` is
    /// the first such time.
    pub(crate) fn keep_turn<F>(
        &self,
        interval: Duration,
        mut pause: Duration,
        mut until: Instant,
        mut confirm: impl FnMut() -> F + Send + 'static,
    ) where
        F: Future<Output = Result<Option<Instant>, Error>> + Send + 'static,
    {
        let (lease, queue) = (Arc::downgrade(&self.lease), self.core.name.clone());
        let beats = async move {
            let mut reason = "it could not be confirmed in time";
            while Instant::now() < until {
                tokio::time::sleep(pause).await;
                // An application may keep the delivery for longer than its lease.
                if lease.upgrade().is_none_or(|lease| lease.check_not_ended().is_err()) {
                    return;
                }
                let confirmed = timeout_at(until, confirm()).await;
                match confirmed.unwrap_or_else(|_| Err(no_answer())) {
                    Ok(Some(kept)) => (until, pause) = (kept, interval),
                    Ok(None) => {
                        reason = "another message has it";
                        break;
                    }
                    Err(error) => {
                        crate::log::debug!(%error, "the turn of a job among other messages was not confirmed");
                        pause = CONFIRM_RETRY_DELAY.min(until.saturating_duration_since(Instant::now()));
                    }
                }
            }
            if let Some(lease) = lease.upgrade() {
                crate::log::warn!(%queue, reason, "a job has lost its turn, and with it its lease");
                lease.expire();
            }
        };
        let end = CancellationToken::new();
        // A delivery has one turn: a second call changes nothing.
        let _ = self.heartbeat.set(end.clone().drop_guard());
        self.core.leased_queue.renewer.spawn(async move {
            let _ = end.run_until_cancelled_owned(beats).await;
        });
    }

    pub(crate) fn sender(&self) -> (Option<TraceContext>, Option<String>) {
        let sender = |envelope: &Envelope| (sender_of(envelope), state_of(envelope));
        self.with_envelope(sender).unwrap_or_default()
    }

    /// Returns whether the job has had no attempt before, not even before a redrive.
    pub(crate) fn is_first_attempt(&self) -> bool {
        let is_first = |envelope: &Envelope| {
            let history = &envelope.history;
            history.attempts == 0 && history.past.is_none() && envelope.fence_base == 0
        };
        self.with_envelope(is_first).unwrap_or(true)
    }

    /// Starts the tracer's span for settling this delivery, whose handler ran in `process`.
    pub(crate) fn settle_span(&self, process: Option<TraceContext>) -> OpenSpan {
        let observers = self.core.observers();
        if !observers.trace() {
            return OpenSpan::none();
        }
        let sender = if process.is_some() { None } else { self.sender().0 };
        let id = self.with_envelope(|event| Arc::clone(&event.id));
        observers.span(|| Step::Settle {
            queue: &self.core.name,
            id: id.as_deref(),
            messages: 1,
            process,
            messages_of: sender.as_slice(),
        })
    }

    pub(crate) fn content(&self) -> MutexGuard<'_, Content> {
        lock(&self.content)
    }

    /// Returns a copy of the event; `None` if the message is not an event.
    pub(crate) fn envelope(&self) -> Option<Envelope> {
        match &*self.content() {
            Content::Event(envelope) => Some((**envelope).clone()),
            Content::Unreadable(_) => None,
        }
    }

    /// Calls `read` with the event; `None` if the message is not an event.
    pub(crate) fn with_envelope<T>(&self, read: impl FnOnce(&Envelope) -> T) -> Option<T> {
        match &*self.content() {
            Content::Event(envelope) => Some(read(envelope)),
            Content::Unreadable(_) => None,
        }
    }

    /// Returns the id for the log, in one line; `None` if the message is not an event.
    pub(super) fn logged_id(&self) -> Option<String> {
        self.with_envelope(|event| printable(&event.id, MAX_ID_CHARS))
    }

    /// Returns the version and the media type of the payload, if known.
    pub(crate) fn payload_form(&self) -> (Option<u32>, Option<Cow<'static, str>>) {
        self.with_envelope(|event| (self.version_of(event), event.media_type())).unwrap_or_default()
    }

    /// Returns the version of the payload: from the event, or else from the queue's settings. The latter is
    /// not written into the message, so that operators can correct it.
    pub(super) fn version_of(&self, event: &Envelope) -> Option<u32> {
        event.version.or(self.settings.raw_version)
    }

    /// Returns the digest that identifies copies of this event; `None` if the message is not an event.
    pub(crate) fn event(&self) -> Option<EventDigest> {
        self.with_envelope(Envelope::digest)
    }

    /// Returns whether this is certainly the first delivery of the job, also counting those before a redrive.
    /// If the storage may miss deliveries, it is never certain.
    pub(crate) fn is_certainly_first(&self) -> bool {
        self.core.store().guarantees().counts_deliveries && self.fence() == 1
    }

    /// Returns whether the message has half of its deliveries left. A delivery that waits is counted if its
    /// process is killed, also by another job; a delivery that is put back is not.
    pub(crate) fn has_deliveries_left(&self) -> bool {
        self.deliveries() <= self.limits.deliveries / 2
    }

    /// Returns the number of deliveries, including this one, without those that put the message back
    /// uncounted.
    pub(crate) fn deliveries(&self) -> u32 {
        let uncounted = self.with_envelope(|envelope| envelope.history.uncounted).unwrap_or(0);
        self.dequeue_count.saturating_sub(uncounted)
    }

    /// Returns a fencing token: it grows with every delivery of the job, also across redrives.
    pub(crate) fn fence(&self) -> u64 {
        let base = self.with_envelope(|envelope| envelope.fence_base).unwrap_or(0);
        base.saturating_add(self.dequeue_count.into())
    }

    /// Returns the facts that handlers receive; `None` if the message is not an event.
    pub(crate) fn info(&self) -> Option<JobInfo> {
        self.with_envelope(|envelope| {
            let sender = sender_of(envelope);
            let runtime = self.core.runtime();
            let trace = sender.map_or_else(|| TraceContext::root(runtime), |sender| sender.child(runtime));
            let mut job = envelope.job(self.core.name.clone(), trace);
            job.max_attempts = self.limits.attempts;
            job.dequeue_count = self.dequeue_count;
            job.inserted = self.times.inserted;
            job.expires = self.expires;
            job
        })
    }

    /// Renders the event as it would be stored now. If the text is too large, first a large checkpoint moves
    /// to a blob, then the payload. If it is still too large, the framework's own notes are shortened.
    pub(super) fn render(&self, envelope: &mut Envelope) -> Result<Rendered, Error> {
        envelope.history.delivery = self.dequeue_count;
        let mut blobs = Vec::new();
        let large = |json: &String| json.len() > MAX_INLINE_CHECKPOINT;
        if matches!(&envelope.history.checkpoint, Some(Checkpoint::Inline(json)) if large(json)) {
            self.move_checkpoint_out(envelope, &mut blobs);
        }
        let (text, blob) = fit_shortened(&self.core, envelope, self.settings.encoding, |envelope| {
            self.move_checkpoint_out(envelope, &mut blobs)
        })?;
        blobs.extend(blob);
        Ok(Rendered { text, blobs })
    }

    /// Moves the checkpoint from the message to a blob. Returns false if there is none to move.
    fn move_checkpoint_out(
        &self,
        envelope: &mut Envelope,
        blobs: &mut Vec<(StoredReference, Bytes)>,
    ) -> bool {
        let Some(Checkpoint::Inline(json)) = &mut envelope.history.checkpoint else { return false };
        let data = Bytes::from(std::mem::take(json));
        let reference = self.core.claim_checks.reference(&self.core.name, &data);
        envelope.history.checkpoint = Some(Checkpoint::Stored(reference.clone()));
        blobs.push((reference, data));
        true
    }

    pub(crate) fn has_blobs(&self) -> bool {
        let refers = |envelope: &Envelope| {
            matches!(envelope.payload, Payload::Stored(_))
                || matches!(envelope.history.checkpoint, Some(Checkpoint::Stored(_)))
        };
        self.with_envelope(refers).unwrap_or(false) || self.checkpoints.has_superseded()
    }

    pub(crate) fn references(&self) -> Vec<StoredReference> {
        self.with_envelope(Envelope::references).unwrap_or_default()
    }
}

fn sender_of(envelope: &Envelope) -> Option<TraceContext> {
    envelope.traceparent.as_deref().and_then(TraceContext::parse)
}
