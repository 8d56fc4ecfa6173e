//! Moving a message to the dead-letter queue: copy, then delete.
//!
//! After a crash between the two the job is in both queues; it is never in neither. The next delivery finds the copy
//! and only deletes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::decode::Rejection;
use super::leased_job::{Content, LeasedJob, references};
use super::queue_core::{QueueCore, ensure};
use super::send::rfc3339;
use crate::envelope::{
    Checkpoint, DeadLetterNote, Envelope, JsonText, Parsed, Payload, StoredReference, parse,
};
use crate::error::{Error, ErrorKind};
use crate::job::outcome::{chain, printable};
use crate::lease::LeaseError;
use crate::name::QueueName;
use crate::settings::metadata::Metadata;
use crate::storage::{Certainty, MAX_MESSAGES, PutMessage, QueueStore, StoreErrorKind};

/// The kind of dead letters whose text is no event: the text stands in `data`, byte for byte.
pub(crate) const UNREADABLE_KIND: &str = "jobqueue.unreadable";

/// How long a message that could not be moved waits before the next try.
pub(crate) const DEAD_LETTER_RETRY: Duration = Duration::from_secs(30);

impl LeasedJob {
    /// Records in the message that its last attempt has failed and that it is to be dead-lettered, so that no later delivery runs it,
    /// whatever becomes of the dead letter. Does nothing for a message that was not run.
    ///
    /// # Errors
    /// The lease is lost. What the storage refuses is written together with the next change of the message.
    pub(crate) async fn record_end(&self, rejection: &mut Rejection) -> Result<(), Error> {
        if !std::mem::take(&mut rejection.attempted) {
            return Ok(());
        }
        let _saving = self.saving.lock().await;
        let mut envelope = self.dead_envelope(rejection, 1)?;
        *self.content() = Content::Event(Box::new(envelope.clone()));
        let saved = match self.render_and_store_blobs(&mut envelope).await {
            Ok(rendered) => self.lease.save(rendered.text).await,
            Err(error) => {
                tracing::debug!(queue = %self.core.name, error = %chain(&error), "the failed attempt is not recorded yet");
                return Ok(());
            }
        };
        match saved {
            Ok(()) => *self.content() = Content::Event(Box::new(envelope)),
            Err(error @ (LeaseError::Lost | LeaseError::Closed)) => return Err(error.into()),
            // The copy and the deletion tell more.
            Err(error) => {
                tracing::debug!(queue = %self.core.name, %error, "the failed attempt is perhaps not recorded")
            }
        }
        Ok(())
    }

    /// Dead-letters a message that was received by hand: what the worker's hooks do, no one else does.
    pub(crate) async fn dead_letter_by_hand(&self, mut rejection: Rejection) -> Result<(), Error> {
        self.record_end(&mut rejection).await?;
        self.give_up_turn().await?;
        self.dead_letter(&rejection).await.map(drop)
    }

    /// Copies the message to the dead-letter queue, with reason and history, then deletes it.
    ///
    /// If the copy cannot be stored the message stays where it is. If it is unknown whether the message was deleted, it may be in both.
    pub(crate) async fn dead_letter(&self, rejection: &Rejection) -> Result<Certainty, Error> {
        let _saving = self.saving.lock().await;
        let dead_letter_queue = self.core.name.dead_letter()?;
        let mut envelope = self.dead_envelope(rejection, u32::from(rejection.attempted))?;
        let mut outlived = Vec::new();
        // The copy of an earlier delivery has blobs of its own or shares ours.
        if !self.is_dead_lettered(&dead_letter_queue, &envelope.id).await {
            outlived = self.make_blobs_permanent(&mut envelope).await?;
            let rendered = self.render(&mut envelope)?;
            for (reference, data) in rendered.blobs {
                self.core.claim_checks.store(&reference, data, None).await?;
            }
            self.put_into(&dead_letter_queue, rendered.text).await?;
        }
        match self.lease.delete().await {
            Ok(()) => {
                self.remove(outlived).await;
                Ok(Certainty::Applied)
            }
            Err(LeaseError::Uncertain(_)) => Ok(Certainty::Unknown),
            Err(error) => Err(error.into()),
        }
    }

    fn dead_envelope(&self, rejection: &Rejection, attempts: u32) -> Result<Envelope, Error> {
        let mut envelope = match &*self.content() {
            Content::Event(envelope) => (**envelope).clone(),
            Content::Unreadable(text) => self.wrap_unreadable(text.as_deref())?,
        };
        envelope.history.attempts = envelope.history.attempts.saturating_add(attempts);
        envelope.history.last_error = Some(printable(&rejection.detail, crate::envelope::MAX_ERROR_CHARS));
        envelope.dead_letter = Some(DeadLetterNote {
            reason: rejection.reason.as_str().to_owned(),
            queue: self.core.name.as_str().to_owned(),
            time: rfc3339(Some(self.core.options.clock.now()))?,
            deliveries: self.dequeue_count,
            worker: Some(self.core.options.source.to_string()),
        });
        Ok(envelope)
    }

    fn wrap_unreadable(&self, text: Option<&str>) -> Result<Envelope, Error> {
        let payload = match text {
            None => Payload::None,
            Some(text) => {
                let json = serde_json::to_vec(text).map_err(|e| {
                    Error::new(ErrorKind::Undecodable, "the text cannot be kept").with_source(e)
                })?;
                Payload::Json(JsonText::written_by_serde_json(json))
            }
        };
        let id = self.lease.message_id().to_string();
        let mut envelope = Envelope::new(id, Arc::clone(&self.core.options.source), UNREADABLE_KIND, payload);
        envelope.content_type = Some("text/plain".into());
        Ok(envelope)
    }

    /// Dead letters never expire, so what they refer to must not either. Returns the blobs that the copy does not need.
    async fn make_blobs_permanent(&self, envelope: &mut Envelope) -> Result<Vec<StoredReference>, Error> {
        if self.expires.is_none() {
            return Ok(Vec::new());
        }
        let mut outlived = Vec::new();
        for old in references(envelope) {
            // What cannot be read now is not made readable by waiting; the reference is kept as evidence.
            let Ok(data) = self.core.claim_checks.load(&self.core.name, &old).await else { continue };
            let new = self.core.claim_checks.reference(&self.core.name, &data);
            self.core.claim_checks.store(&new, data, None).await?;
            match (&mut envelope.payload, &mut envelope.history.checkpoint) {
                (Payload::Stored(reference), _) if *reference == old => *reference = new,
                (_, Some(Checkpoint::Stored(reference))) if *reference == old => *reference = new,
                _ => {}
            }
            outlived.push(old);
        }
        Ok(outlived)
    }

    /// Whether a copy lies in the dead-letter queue already, as far as a peek shows.
    async fn is_dead_lettered(&self, dead_letter_queue: &QueueName, id: &str) -> bool {
        if self.dequeue_count <= 1 {
            return false;
        }
        shows(self.core.store(), dead_letter_queue, id).await
    }

    async fn put_into(&self, dead_letter_queue: &QueueName, text: String) -> Result<(), Error> {
        let store = self.core.store();
        for _ in 0..2 {
            match store.put(dead_letter_queue, PutMessage::new(text.clone())).await {
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == StoreErrorKind::QueueNotFound => {
                    ensure(store, dead_letter_queue, &Metadata::new()).await?;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::new(
            ErrorKind::Storage,
            format!("the dead-letter queue `{dead_letter_queue}` is deleted again and again"),
        ))
    }
}

/// Whether a message with this job id is among the first that a peek shows.
async fn shows(store: &dyn QueueStore, queue: &QueueName, id: &str) -> bool {
    let Ok(lying) = store.peek(queue, MAX_MESSAGES).await else { return false };
    let texts = lying.iter().filter_map(|message| message.text.as_deref().ok());
    texts.into_iter().any(|text| matches!(parse(text), Ok(Parsed::Event(found)) if *found.id == *id))
}

impl QueueCore {
    /// Whether a message with this job id is among the first that a peek shows.
    pub(crate) async fn shows(&self, id: &str) -> bool {
        shows(self.store(), &self.name, id).await
    }
}

/// A text that was kept as it was, of a dead letter of [`UNREADABLE_KIND`].
pub(crate) fn unwrap_unreadable(envelope: &Envelope, data: &Bytes) -> Option<String> {
    (*envelope.kind == *UNREADABLE_KIND).then(|| serde_json::from_slice(data).ok()).flatten()
}
