//! A dead letter, as an operator sees it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use crate::clock::{parse_rfc3339, rfc3339};
use crate::delivery::{DeathOf, PastDeadLetter, UNREADABLE_SOURCE, past_dead_letters, unwrap_unreadable};
use crate::envelope::{Envelope, Parsed, Payload, parse};
use crate::job::outcome::Reason;
use crate::storage::{DeadLetterCause, MessageId, QueueName};

/// The reason of a message whose text the storage cannot return. No worker writes it.
const NO_TEXT: &str = "unreadable";

/// A message in a dead-letter queue.
///
/// It keeps the text of the message, at most 64 KiB, for
/// [`DeadLetters::message`](super::DeadLetters::message).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use jobqueue::{JobError, QueueMessage, Storage, Worker}; use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize, QueueMessage)] #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
/// # let storage = Storage::memory();
/// # async fn refuse(_: Mail) -> Result<(), JobError> { Err(JobError::dead_letter("no such address")) }
/// let mails = storage.queue::<Mail>().await?;
/// mails.send(&Mail { to: "lost@example.org".into() }).await?;
/// let _ = Worker::builder(storage.clone()).handle(refuse).build()?.run_until_idle().await?;
///
/// let letters = mails.dead_letters()?.list().await?.letters;
/// assert_eq!(letters[0].reason.as_str(), "rejected");
/// assert_eq!(letters[0].error.as_deref(), Some("no such address"));
/// assert_eq!(mails.dead_letters()?.message(&letters[0]).await?.to, "lost@example.org");
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The job's id. For a text that is not an event, the storage's id of the message: its id in the original
    /// queue if the storage returns that.
    pub id: String,
    /// The sender. Jobs with the same id from two sources are different jobs.
    pub source: String,
    /// The kind.
    pub kind: String,
    /// The reason for dead-lettering; [`Reason::UNKNOWN`] if another program put the message there and gave
    /// none. For a message that Service Bus itself has moved, the service's reason, such as
    /// `max_delivery_count_exceeded`.
    pub reason: Reason,
    /// The queue that the job came from.
    pub queue: String,
    /// The time of dead-lettering, by the storage's clock; `None` if the dead letter does not contain it. For
    /// a message of another program, the time of its insertion. While Service Bus has not shown its time to
    /// the worker, it is by the clock of the worker's machine.
    pub time: Option<SystemTime>,
    /// The error with its causes.
    pub error: Option<String>,
    /// The number of failed attempts, including the last delivery.
    pub attempts: u32,
    /// The dequeue count when the message was dead-lettered.
    pub deliveries: u32,
    /// The worker that dead-lettered the message.
    pub worker: Option<String>,
    /// The trace in which the job was sent.
    pub trace: Option<String>,
    /// The key of the job.
    pub key: Option<String>,
    /// The earlier dead letters of the same job, before it was redriven: at most 10, the oldest first.
    pub past: Vec<PastDeadLetter>,
    pub(crate) text: String,
    /// The original text of a message that could not be read as a job, if the dead letter itself contains it.
    unreadable: Option<String>,
    /// Identifies this dead-lettering of the job; copies of this dead letter share it.
    pub(crate) death: Option<DeathOf>,
    /// The time at which the letter was put into its queue, by the storage's clock.
    pub(super) inserted: Option<SystemTime>,
}

impl DeadLetter {
    /// Returns the dead letter that a worker has stored. `envelope` was read from `text`.
    pub(crate) fn of(envelope: &Envelope, text: &str) -> Self {
        let note = envelope.dead_letter.as_ref();
        Self {
            id: envelope.id.to_string(),
            source: envelope.source.to_string(),
            kind: envelope.kind.to_string(),
            reason: note.map_or(Reason::UNKNOWN, |note| Reason::new(&note.reason)),
            queue: note.map(|note| note.queue.clone()).unwrap_or_default(),
            time: note.and_then(|note| parse_rfc3339(&note.time)),
            error: envelope.history.last_error.clone(),
            attempts: envelope.history.attempts,
            deliveries: note.map_or(0, |note| note.deliveries),
            worker: note.and_then(|note| note.worker.clone()),
            trace: envelope.traceparent.clone(),
            key: envelope.key.clone(),
            past: past_dead_letters(&envelope.history),
            text: text.to_owned(),
            unreadable: unreadable(envelope),
            death: DeathOf::of(envelope),
            inserted: None,
        }
    }

    /// Returns the dead letter for a text that is not an event, with the storage's data.
    pub(crate) fn external(
        id: &MessageId,
        inserted: SystemTime,
        kind: &str,
        queue: &QueueName,
        text: &str,
    ) -> Self {
        Self {
            id: id.as_str().to_owned(),
            source: UNREADABLE_SOURCE.to_owned(),
            kind: kind.to_owned(),
            reason: Reason::UNKNOWN,
            queue: queue.to_string(),
            time: Some(inserted),
            error: None,
            attempts: 0,
            deliveries: 0,
            worker: None,
            trace: None,
            key: None,
            past: Vec::new(),
            text: text.to_owned(),
            unreadable: Some(text.to_owned()),
            death: None,
            inserted: Some(inserted),
        }
    }

    /// Returns the dead letter for a message whose text the storage cannot return: the letter can be deleted,
    /// but not put back.
    pub(super) fn without_text(
        id: &MessageId,
        inserted: SystemTime,
        kind: &str,
        queue: &QueueName,
        problem: &str,
    ) -> Self {
        Self {
            reason: Reason::new(NO_TEXT),
            error: Some(problem.to_owned()),
            unreadable: None,
            ..Self::external(id, inserted, kind, queue, "")
        }
    }

    /// Returns why the text cannot be read, if the storage cannot return it.
    pub fn text_problem(&self) -> Option<&str> {
        self.error.as_deref().filter(|_| self.reason.as_str() == NO_TEXT && self.text.is_empty())
    }

    /// Adds the storage's data to a letter without a reason: the storage itself, or another program, has
    /// moved the message to the dead-letter queue.
    pub(super) fn moved_by_storage(
        mut self,
        cause: &DeadLetterCause,
        queue: &QueueName,
        inserted: SystemTime,
    ) -> Self {
        if self.reason == Reason::UNKNOWN {
            self.reason = Reason::new(&in_snake_case(&cause.reason));
            self.error = cause.description.clone().or(self.error);
            self.queue = queue.to_string();
            self.time = self.time.or(Some(inserted));
        }
        self
    }

    /// Returns the storage's id of the message that was dead-lettered; a job that is dead-lettered again has
    /// another id. Returns `None` if the letter does not contain the id.
    pub fn message_id(&self) -> Option<&str> {
        self.death.as_ref().map(|death| death.message.as_str())
    }

    /// Returns the time at which the letter was put into the dead-letter queue, by the storage's clock. A
    /// storage that itself moves messages there, such as Service Bus, may return the time at which the
    /// message was sent.
    pub fn inserted(&self) -> Option<SystemTime> {
        self.inserted
    }

    /// Returns the headers of the job, as [`JobInfo::headers`](crate::JobInfo::headers) has them; none for a
    /// text that is not an event. Each call reads the text. The headers may be confidential, as the token is
    /// that proves a job to be the child of its batch.
    ///
    /// ```
    /// use jobqueue::dead_letters::DeadLetterOptions;
    ///
    /// let of_blue = DeadLetterOptions::new()
    ///     .filter(|letter| letter.headers().get("tenant").is_some_and(|tenant| tenant == "blue"));
    /// # drop(of_blue);
    /// ```
    pub fn headers(&self) -> BTreeMap<String, String> {
        event_of(&self.text).map(|event| event.headers()).unwrap_or_default()
    }

    /// Returns the text as stored in the dead-letter queue.
    pub fn raw_text(&self) -> &str {
        &self.text
    }

    /// Returns [`time`](Self::time) in the format of RFC 3339, in UTC: `2026-11-22T06:15:00.000Z`.
    pub fn time_text(&self) -> Option<String> {
        self.time.map(rfc3339)
    }

    /// Returns the original text of a message that could not be read as a job, byte for byte as it was
    /// received.
    ///
    /// Returns `None` for a job: read its message with [`DeadLetters::message`](super::DeadLetters::message).
    /// Also returns `None` if the text is so large that it is in a blob:
    /// [`DeadLetters::text`](super::DeadLetters::text) reads it.
    ///
    /// Any program that can write to the queue may have written this text: treat it as untrusted data.
    pub fn unreadable_text(&self) -> Option<&str> {
        self.unreadable.as_deref()
    }
}

/// Returns the original text that a dead letter keeps.
fn unreadable(envelope: &Envelope) -> Option<String> {
    let Payload::Json(data) = &envelope.payload else { return None };
    unwrap_unreadable(envelope, data.as_bytes())
}

/// Leaves out the message: it may be confidential.
impl fmt::Debug for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetter")
            .field("id", &self.id)
            .field("source", &self.source)
            .field("kind", &self.kind)
            .field("reason", &self.reason)
            .field("error", &self.error)
            .field("attempts", &self.attempts)
            .field("deliveries", &self.deliveries)
            .field("queue", &self.queue)
            .field("time", &self.time_text())
            .finish_non_exhaustive()
    }
}

/// Converts a reason such as `TTLExpiredException` to snake case: `ttl_expired_exception`.
fn in_snake_case(reason: &str) -> String {
    let chars: Vec<char> = reason.chars().collect();
    let mut code = String::with_capacity(reason.len() + 8);
    for (place, c) in chars.iter().enumerate() {
        let before = place.checked_sub(1).and_then(|before| chars.get(before));
        let after = chars.get(place + 1);
        let begins_word = before.is_some_and(|before| {
            before.is_ascii_lowercase()
                || before.is_ascii_digit()
                || before.is_ascii_uppercase() && after.is_some_and(char::is_ascii_lowercase)
        });
        if c.is_ascii_uppercase() && begins_word {
            code.push('_');
        }
        code.push(c.to_ascii_lowercase());
    }
    code
}

/// Returns the event that a worker has stored; `None` for a message of another program, for instance a
/// WebJobs host that shares the queue.
pub(super) fn event_of(text: &str) -> Option<Box<Envelope>> {
    match parse(text) {
        Ok(Parsed::Event(event)) => Some(event),
        _ => None,
    }
}
