//! Sending a job without its type.

use bytes::Bytes;
use jobqueue::__internals::{UntypedQueue, is_in_order, time_of};
use jobqueue::{Error, ErrorKind, QueueName, SendOptions};
use jobqueue_message::envelope::{Envelope, JsonText, MAX_ID_BYTES, Parsed, Payload, parse};

use super::event::{ActionResult, ActionTarget};
use super::{Action, Admin, JobReference, RawJob, RawPayload};

/// A job to be sent by [`Admin::send`]: a valid event. Only the worker knows whether its payload fits the
/// message type, unless [`check_payloads_of`](super::AdminBuilder::check_payloads_of) names the type.
///
/// ```
/// # fn main() -> Result<(), jobqueue::Error> {
/// use jobqueue_admin::RawSend;
///
/// let by_hand = RawSend::json("mail", r#"{"to":"ada@example.org"}"#)?.version(2).key("ada");
/// let as_event = RawSend::event(
///     r#"{"specversion":"1.0","id":"1","source":"/shop","type":"mail","data":{"to":"ada@example.org"}}"#,
/// )?;
/// # let _ = (by_hand, as_event);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct RawSend {
    envelope: Envelope,
    options: SendOptions,
    /// The job that this is a copy of, for the audit.
    copied: Option<JobReference>,
}

impl RawSend {
    /// Returns a job of a kind, with a JSON payload. Without a [version](Self::version), workers decode it as
    /// the newest version that fits.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a payload that is not JSON, or an empty kind.
    pub fn json(kind: &str, payload: &str) -> Result<Self, Error> {
        let not_json = |e| Error::new(ErrorKind::Invalid, "the payload is not JSON").with_source(e);
        let json = JsonText::check(Bytes::copy_from_slice(payload.as_bytes())).map_err(not_json)?;
        let mut job = Self::of(kind, Payload::Json(json))?;
        job.envelope.content_type = Some("application/json".into());
        Ok(job)
    }

    /// Returns a job of a kind, with a payload of another media type. Without a [version](Self::version),
    /// workers decode it as the newest version that fits.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for an empty kind.
    pub fn bytes(kind: &str, content_type: &str, payload: impl Into<Bytes>) -> Result<Self, Error> {
        let mut job = Self::of(kind, Payload::Binary(payload.into()))?;
        job.envelope.content_type = Some(content_type.to_owned().into());
        Ok(job)
    }

    fn of(kind: &str, payload: Payload) -> Result<Self, Error> {
        if kind.is_empty() || kind.len() > MAX_ID_BYTES {
            return Err(Error::new(ErrorKind::Invalid, "a kind has 1 to 1,024 bytes"));
        }
        let mut envelope = Envelope::new("", "/jobqueue/admin", kind, payload);
        envelope.version = None;
        Ok(Self { envelope, options: SendOptions::new(), copied: None })
    }

    /// Reads a CloudEvent in JSON. It keeps its id, source, kind, version, key, payload, trace and headers,
    /// the time before which it does not run, and its place in the order of its key. Attributes that
    /// deliveries write into a message, such as attempts and checkpoints, are left out.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a text that is not an event, for an event that refers to a blob,
    /// and for a time that cannot be read.
    pub fn event(text: &str) -> Result<Self, Error> {
        let invalid = |text: &str| Error::new(ErrorKind::Invalid, text);
        let parsed = parse(text).map_err(|e| invalid("the text is not an event").with_source(e))?;
        let Parsed::Event(event) = parsed else {
            return Err(invalid("the text is JSON but not an event: it has no `specversion`"));
        };
        if matches!(event.payload, Payload::Stored(_)) {
            return Err(invalid("the event refers to a blob; send its payload itself"));
        }
        event.not_before.as_deref().map(time_of).transpose()?;
        let envelope = Envelope { time: None, ..event.into_sent() };
        Ok(Self { envelope, options: SendOptions::new(), copied: None })
    }

    /// Returns a new job like this one, for instance like a dead letter, with this payload: the one that
    /// [`Admin::payload`] returns, or another. It has a new id, unless an [id](Self::id) is set: after an
    /// error that leaves open whether it was sent, send it again under the same id. It keeps sender, kind,
    /// version, key, trace, headers and order, and belongs to no batch.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{QueueMessage, Storage}; use serde::{Deserialize, Serialize}; use std::time::Duration;
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
    /// use jobqueue_admin::{AccessLevel, Admin, DeadLetterFilter, RawPayload, RawSend};
    ///
    /// # let storage = Storage::memory();
    /// # let mails = storage.queue::<Mail>().await?;
    /// # mails.send(&Mail { to: "ada@exmaple.org".into() }).await?;
    /// # mails.receive(Duration::ZERO).await?.ok_or("none")?.dead_letter(jobqueue::Reason::REJECTED, "no such host").await?;
    /// let admin = Admin::builder(storage).access(AccessLevel::Operate).build();
    /// let letters = admin.dead_letters("mails", &DeadLetterFilter::new()).await?.letters;
    /// let mended = RawPayload::Json(serde_json::from_str(r#"{"to":"ada@example.org"}"#)?);
    /// let sent = admin.send("mails", RawSend::copy_of(&letters[0], mended)?).await?;
    /// assert_ne!(sent.id, letters[0].id); // The dead letter stays until it is purged.
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a message that is not an event, and for a payload that is a text
    /// or in a blob.
    pub fn copy_of(job: &RawJob, payload: RawPayload) -> Result<Self, Error> {
        let invalid = |text: &str| Error::new(ErrorKind::Invalid, text);
        if job.kind.is_empty() {
            return Err(invalid("the message is no event: send its text"));
        }
        let payload = match payload {
            RawPayload::None => Payload::None,
            RawPayload::Bytes(bytes) => Payload::Binary(bytes),
            RawPayload::Json(json) => {
                let text = Bytes::copy_from_slice(json.get().as_bytes());
                Payload::Json(
                    JsonText::check(text).map_err(|e| invalid("the payload is not JSON").with_source(e))?,
                )
            }
            RawPayload::Text(_) => return Err(invalid("the payload is a text and not JSON")),
            RawPayload::Blob(_) => return Err(invalid("the payload is in a blob: read it before")),
        };
        let mut envelope = Envelope::new("", job.source.as_str(), job.kind.as_str(), Payload::None);
        envelope.key.clone_from(&job.key);
        envelope.content_type = job.content_type.clone().map(Into::into);
        envelope.version = job.version;
        envelope.payload = payload;
        let options = if job.in_order { SendOptions::new().in_order() } else { SendOptions::new() };
        Ok(Self { envelope, options, copied: None }.in_context_of(job))
    }

    /// Takes over the trace and the headers of another job, and names that job in the audit as the original.
    /// Leaves out its order and its batch: the new job may have another key, and a batch counts only the
    /// children that it has made.
    #[must_use]
    pub fn in_context_of(mut self, job: &RawJob) -> Self {
        self.envelope.traceparent.clone_from(&job.trace);
        self.envelope.extensions.clone_from(&job.attributes);
        let payload = self.envelope.payload.clone();
        // Removes a second payload from the headers.
        self.envelope.set_payload(payload);
        self.copied = Some(job.reference());
        self
    }

    jobqueue_storage::setters! {
        /// Sets the version of the payload's form.
        version(version: u32) => envelope.version = Some(version.max(1));

        /// Sets the media type of the payload. The payload itself stays as it is.
        content_type(media_type: &str) => envelope.content_type = Some(media_type.to_owned().into());

        /// Sets the id. The default is a new id.
        id(id: &str) => envelope.id = id.into();

        /// Sets the sender. The default is `/jobqueue/admin`, or the event's own.
        source(source: &str) => envelope.source = source.into();

        /// Sets the key.
        key(key: &str) => envelope.key = Some(key.to_owned()).filter(|key| !key.is_empty());
    }

    /// Returns whether the event is in the order of its key: jobs of one key must be sent one after another.
    pub fn is_in_order(&self) -> bool {
        is_in_order(&self.envelope)
    }

    jobqueue_storage::setters! {
        /// Sets delay, time to live, order and headers. An id, a source, a key and a delay in these options
        /// take precedence.
        with(options: SendOptions);
    }
}

impl Admin {
    /// Fails for a queue that jobs must not be sent to. For programs that check a send before they make it.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a dead-letter queue.
    #[doc(hidden)]
    pub fn check_target(queue: &str) -> Result<(), Error> {
        if QueueName::new(queue).is_ok_and(|queue| queue.is_dead_letter()) {
            let text = format!(
                "`{queue}` has dead letters: a job that is sent there is one of them, and no worker runs it"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(())
    }

    /// Sends a job. Costs two requests, one of them to read the settings of the queue, and one more for a
    /// payload that is too large for the queue. A job in order costs more where a log keeps the order: each
    /// call asks the storage for its time, by a listing, and reads the log, and writes it twice. To send many
    /// jobs, use a [`Queue`](jobqueue::Queue), which reads them once. Checks the payload before, if its kind
    /// is one of the [`checked_kinds`](Self::checked_kinds).
    ///
    /// # Errors
    /// [`Forbidden`](ErrorKind::Forbidden); [`NotFound`](ErrorKind::NotFound) if there is no such queue,
    /// which is not created; [`Invalid`](ErrorKind::Invalid) for a dead-letter queue, and for a payload
    /// that is checked and does not fit its message type; the errors of
    /// [`Queue::send`](jobqueue::Queue::send).
    ///
    /// # Cancel safety
    /// If the future is dropped, the job may or may not be sent.
    pub async fn send(&self, queue: &str, job: RawSend) -> Result<JobReference, Error> {
        // Chosen before the first request: the audit, and the error of a send in doubt, contain the id under
        // which the send can be repeated.
        let event = UntypedQueue::identify(self.storage.runtime(), job.envelope, &job.options)?;
        let reference = JobReference::new(queue, &*event.id).with_source(event.source.to_string());
        let copied = job.copied.map(|copied| format!("a copy of {:?} of {}", copied.id, copied.queue));
        let selection = copied.unwrap_or_default();
        let target =
            ActionTarget { selection, jobs: vec![reference.clone()], ..format!("queue {queue}").into() };
        let work = async {
            Self::check_target(queue)?;
            let opened = self.open(queue).await?;
            self.checked.check(queue, &event, opened.raw_version().await)?;
            match opened.send(event, job.options).await {
                Err(error) if error.is_outcome_unknown() => {
                    let id = reference.id.escape_debug();
                    let named = Error::new(ErrorKind::Unknown, format!("the job `{id}` may have been sent"));
                    Err(named.with_retryable(error.is_retryable()).with_source(error))
                }
                sent => sent.map(|_| reference),
            }
        };
        let to_result = |sent: &JobReference| ActionResult {
            detail: format!("sent {}", sent.id.escape_debug()),
            jobs: vec![sent.clone()],
        };
        self.act_on_jobs(Action::Send, target, work, to_result).await
    }
}
