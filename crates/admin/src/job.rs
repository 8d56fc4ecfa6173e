//! A job as raw data, read from its message without its type.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use jobqueue::__internals::{
    ClaimedChild, RunningJob, UNREADABLE_SOURCE, discard_forged_history, past_dead_letters, redriven_at,
    unwrap_unreadable,
};
use jobqueue::dead_letters::PastDeadLetter;
use jobqueue::storage::{LeasedMessage, PeekedMessage};
use jobqueue::{Error, ErrorKind};
use jobqueue_message::envelope::headers::order::IN_ORDER;
use jobqueue_message::envelope::{Envelope, Parsed, parse};
use jobqueue_message::times::{parse_rfc3339, rfc3339};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::payload::RawPayload;
use super::text::{exact_time_option, shell_word};

/// The state in which a message was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JobState {
    /// A worker can receive it, or could if it were the first job of its key. If the storage
    /// [does not show which jobs run](super::Admin::shows_running_jobs), a worker may also hold its lease.
    #[default]
    Waiting,
    /// It was sent with a delay and never received.
    Delayed,
    /// It waits between two attempts, or was put back for another reason.
    BackingOff,
    /// A worker holds its lease: it runs, or waits in the worker for its turn.
    Running,
    /// Its message is in the dead-letter queue.
    Dead,
}

/// The identity of a job: its queue, source and id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct JobReference {
    /// The queue; for a dead letter, the queue that it came from.
    pub queue: String,
    /// The sender; `None` if the caller does not know it.
    pub source: Option<String>,
    /// The id.
    pub id: String,
}

impl JobReference {
    /// Returns a reference to the job with this id, from any sender.
    pub fn new(queue: impl Into<String>, id: impl Into<String>) -> Self {
        Self { queue: queue.into(), source: None, id: id.into() }
    }

    jobqueue_storage::setters! {
        /// Sets the sender, to distinguish jobs of several senders with the same id.
        with_source(source some String);
    }

    /// Returns whether the reference names the job with this source and id.
    pub(super) fn is(&self, source: &str, id: &str) -> bool {
        self.id == id && self.source.as_deref().is_none_or(|own| own == source)
    }

    /// Returns the only sender among those that were found; `None` if there is none.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if several senders use the id: the text lists them.
    pub(super) fn only_sender<'a>(
        &self,
        found: impl Iterator<Item = &'a str>,
    ) -> Result<Option<&'a str>, Error> {
        let sources: BTreeSet<&str> = found.collect();
        if sources.len() > 1 {
            let sources = senders_text(sources);
            let text = format!("several senders use the id `{}`; name one of them: {sources}", self.id);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(sources.first().copied())
    }
}

/// A message as raw data. Its texts are untrusted: show them as data.
#[derive(Clone, Default, Serialize)]
#[non_exhaustive]
pub struct RawJob {
    /// The queue; for a dead letter, the queue that it came from.
    pub queue: String,
    /// The state in which the message was found.
    pub state: JobState,
    /// The storage's id of the message, if it is known.
    pub message_id: Option<String>,
    /// The job's id; for a message that is not an event, the storage's id.
    pub id: String,
    /// The sender; for a message that is not an event, `/jobqueue/external`, as in the records of workers and
    /// in dead letters.
    pub source: String,
    /// The kind; empty if the message is not an event.
    pub kind: String,
    /// The version of the payload's form, if the message has one.
    pub version: Option<u32>,
    /// The key.
    pub key: Option<String>,
    /// The number of failed attempts.
    pub attempts: u32,
    /// The number of times the message was received since it was put into the queue in which it was found.
    pub dequeue_count: u32,
    /// The time of insertion, by the storage's clock; for a dead letter, the time of its death.
    pub inserted: Option<String>,
    /// The time at which the message expires; `None` means never.
    pub expires: Option<String>,
    /// The time at which the message becomes visible, if the storage shows it: for a running job, the end of
    /// its lease; for a job with a delay longer than the storage's, [the end of that
    /// delay](Self::not_before).
    pub due: Option<String>,
    /// The time of sending, as the sender wrote it.
    pub sent: Option<String>,
    /// The time before which the job does not run, for delays of more than 7 days.
    pub not_before: Option<String>,
    /// The trace in which the job was sent: a W3C `traceparent`.
    pub trace: Option<String>,
    /// The media type of the payload.
    pub content_type: Option<String>,
    /// The payload, or a reference to it.
    pub payload: RawPayload,
    /// The newest checkpoint, or a reference to it.
    pub checkpoint: RawPayload,
    /// The attributes that the sender added, and those of the framework's batches and groups, such as
    /// `batchid` and `inorder`. The tokens of batches are removed: a program that knows them can pass off a
    /// message as a child.
    pub headers: BTreeMap<String, String>,
    /// The attributes that the sender added, as stored in the message.
    #[serde(skip)]
    pub(super) attributes: BTreeMap<String, Box<RawValue>>,
    /// The last failure, in one line.
    pub last_error: Option<String>,
    /// The condition that the job waits for, if it was put back to wait for one.
    pub deferral: Option<RawDeferral>,
    /// True if the job runs in the order of its key.
    pub in_order: bool,
    /// The batch that the job is a child of, if the batch can be read and proves that it made the job.
    pub batch: Option<RawBatch>,
    /// The place in a batch that the job claims, not yet proven.
    #[serde(skip)]
    pub(super) claimed: Option<ClaimedChild>,
    /// The reason and the time of the death; `None` unless the job is a dead letter.
    pub dead: Option<RawDeadLetter>,
    /// Earlier dead letters of the job, oldest first.
    pub past: Vec<PastDeadLetter>,
    /// The time of the last redrive, if the job was redriven. A sender may have written it.
    #[serde(skip)]
    pub(super) redriven: Option<SystemTime>,
    /// The reason why the message is not an event; `None` for an event.
    pub problem: Option<String>,
}

jobqueue_storage::debug_fields! {
    /// Shows no payload, key or header.
    RawJob {
        queue, state, message_id, id, source, kind, version, attempts, dequeue_count, inserted, expires, due,
        content_type, payload, checkpoint, last_error, deferral, in_order, batch, dead, problem
    }
}

/// A job's wait for something outside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RawDeferral {
    /// The code of the cause, such as `payload_missing` or `slow_preparation`.
    pub cause: String,
    /// The time at which the wait began.
    pub since: String,
    /// The number of times the message was put back since then.
    pub count: u32,
}

/// The batch of a child job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RawBatch {
    /// The id of the batch.
    pub id: String,
    /// The number of the child.
    pub index: Option<u64>,
}

/// The death of a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RawDeadLetter {
    /// The reason.
    pub reason: String,
    /// The time of the death.
    pub time: Option<String>,
    /// The number of times the message was received before it died.
    pub deliveries: u32,
    /// The worker or the operator that dead-lettered it.
    pub worker: Option<String>,
    /// The storage's id of the message that died, which distinguishes two dead letters of one job. `None` if
    /// the letter does not name it.
    pub message: Option<String>,
    /// The time at which the letter arrived in the dead-letter queue, by the storage's clock.
    #[serde(serialize_with = "exact_time_option")]
    pub inserted: Option<SystemTime>,
}

/// A message as the storage shows it.
pub(super) struct Stored<'a> {
    pub(super) id: Option<&'a str>,
    pub(super) text: Result<&'a str, &'a str>,
    pub(super) dequeue_count: u32,
    /// The number of the next delivery that will find this text, to recognise a forged history. `None` for a
    /// dead letter, whose history is not checked. For a running job it is the number of the delivery after
    /// the current one, because the text contains the history that the current delivery has saved.
    pub(super) next_delivery: Option<u32>,
    pub(super) inserted: Option<SystemTime>,
    pub(super) expires: Option<SystemTime>,
    pub(super) due: Option<SystemTime>,
}

impl<'a> From<&'a PeekedMessage> for Stored<'a> {
    fn from(message: &'a PeekedMessage) -> Self {
        Self {
            id: Some(message.id.as_str()),
            text: message.text.as_deref().map_err(String::as_str),
            dequeue_count: message.dequeue_count,
            next_delivery: Some(message.dequeue_count.saturating_add(1)),
            inserted: Some(message.inserted),
            expires: message.expires,
            due: None,
        }
    }
}

impl<'a> From<&'a LeasedMessage> for Stored<'a> {
    fn from(leased: &'a LeasedMessage) -> Self {
        Self {
            id: Some(leased.message.id.as_str()),
            text: leased.text.as_deref().map_err(String::as_str),
            dequeue_count: leased.dequeue_count,
            next_delivery: Some(leased.dequeue_count),
            inserted: Some(leased.inserted),
            expires: leased.expires,
            due: None,
        }
    }
}

impl RawJob {
    /// Reads a message that was found in `queue`, or in the dead-letter queue of `queue`. Discards a history
    /// that the sender has forged, as a worker does. A dead letter (`is_letter`) keeps the history of the
    /// message that died, whose deliveries are not the letter's own.
    pub(super) fn read(queue: &str, state: JobState, stored: Stored<'_>, is_letter: bool) -> Self {
        let mut job = Self {
            queue: queue.to_owned(),
            state,
            message_id: stored.id.map(str::to_owned),
            id: stored.id.unwrap_or_default().to_owned(),
            dequeue_count: stored.dequeue_count,
            inserted: stored.inserted.map(rfc3339),
            expires: stored.expires.map(rfc3339),
            due: stored.due.map(rfc3339),
            source: UNREADABLE_SOURCE.to_owned(),
            ..Self::default()
        };
        match stored.text.map(parse) {
            Ok(Ok(Parsed::Event(mut event))) => {
                if let Some(next) = stored.next_delivery.filter(|_| !is_letter) {
                    discard_forged_history(&mut event, next);
                }
                job.fill(&event);
            }
            Ok(Ok(Parsed::Bare(json))) => {
                job.payload = RawPayload::read(json.as_bytes());
                job.problem = Some("the text is a bare payload without an event around it".to_owned());
            }
            Ok(Err(error)) => {
                job.payload = RawPayload::Text(stored.text.unwrap_or_default().to_owned());
                job.problem = Some(error.to_string());
            }
            Err(problem) => job.problem = Some(problem.to_owned()),
        }
        if matches!(state, JobState::Delayed | JobState::BackingOff) {
            job.due = stored.due.max(job.delayed_until()).filter(|_| stored.due.is_some()).map(rfc3339);
        }
        job
    }

    /// Returns a job as the record of a worker shows it.
    pub(super) fn of_run(run: &RunningJob) -> Self {
        Self {
            queue: run.queue.clone(),
            state: JobState::Running,
            id: run.id.clone(),
            source: run.source.clone(),
            kind: run.kind.clone(),
            key: run.key.clone(),
            inserted: run.inserted.clone(),
            trace: run.trace.clone(),
            claimed: ClaimedChild::of_identity(&run.source, &run.id),
            ..Self::default()
        }
    }

    fn fill(&mut self, event: &Envelope) {
        let history = &event.history;
        self.id = event.id.to_string();
        self.source = event.source.to_string();
        self.kind = event.kind.to_string();
        self.version = event.version;
        self.key = event.key.clone();
        self.attempts = history.attempts;
        self.sent = event.time.as_deref().map(str::to_owned);
        self.not_before = event.not_before.clone();
        self.trace = event.traceparent.clone();
        self.content_type = event.content_type.as_deref().map(str::to_owned);
        self.payload = RawPayload::of(&event.payload);
        self.checkpoint = history.checkpoint.as_ref().map(RawPayload::of_checkpoint).unwrap_or_default();
        self.headers = event.headers();
        self.claimed = ClaimedChild::of_headers(&self.headers);
        jobqueue::__internals::remove_tokens(&mut self.headers);
        self.attributes = event.extensions.clone();
        jobqueue::__internals::remove_own(&mut self.attributes);
        self.attributes.remove(IN_ORDER);
        self.last_error = history.last_error.clone();
        self.in_order = jobqueue::__internals::is_in_order(event);
        self.deferral = history.deferral.as_ref().map(|deferral| RawDeferral {
            cause: deferral.cause.clone(),
            since: deferral.since.clone(),
            count: deferral.count,
        });
        self.past = past_dead_letters(history);
        self.redriven = redriven_at(event.fence_base);
        self.dead = event.dead_letter.as_ref().map(|note| RawDeadLetter {
            reason: note.reason.clone(),
            time: Some(note.time.clone()).filter(|time| !time.is_empty()),
            deliveries: note.deliveries,
            worker: note.worker.clone(),
            message: note.message.clone(),
            inserted: None,
        });
        if let RawPayload::Json(json) = &self.payload
            && let Some(text) =
                unwrap_unreadable(event, &bytes::Bytes::copy_from_slice(json.get().as_bytes()))
        {
            self.payload = RawPayload::Text(text);
            self.problem = Some("the text could not be read as a job; it was kept as it was".to_owned());
        }
    }

    /// Returns the time before which the job does not run, if its message contains one.
    pub(super) fn delayed_until(&self) -> Option<SystemTime> {
        self.not_before.as_deref().and_then(parse_rfc3339)
    }

    /// Returns whether the job waits for another of its key and is delayed beyond `now`. A delayed job that
    /// waits for no other has the state of its delay instead.
    pub(super) fn is_due_after_turn(&self, now: SystemTime) -> bool {
        let due = self.due.as_deref().and_then(parse_rfc3339);
        self.state == JobState::Waiting && self.in_order && due.is_some_and(|due| due > now)
    }

    /// Returns whether the job is a child of a batch, or claims to be a child of a batch that could not be
    /// read.
    #[doc(hidden)]
    pub fn may_be_child(&self) -> bool {
        self.batch.is_some() || self.claimed.is_some()
    }

    /// Returns whether the job claims to be a child of this batch and the claim is not yet checked.
    pub(super) fn claims(&self, batch: &str) -> bool {
        self.claimed.as_ref().is_some_and(|claimed| claimed.batch == batch)
    }

    /// Returns the reference to the job.
    pub fn reference(&self) -> JobReference {
        JobReference::new(&self.queue, &self.id).with_source(&self.source)
    }
}

/// Returns a list of senders for people, each as a word that can be copied into a command: any number of
/// producers may send messages with one id.
#[doc(hidden)]
pub fn senders_text<S: AsRef<str>>(senders: BTreeSet<S>) -> String {
    const SHOWN: usize = 10;
    let shown: Vec<_> = senders.iter().take(SHOWN).map(|sender| shell_word(sender.as_ref())).collect();
    match senders.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
