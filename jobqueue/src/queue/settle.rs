//! Ending a delivery: complete, retry, excuse, checkpoint.

use std::sync::Arc;
use std::time::Duration;

use super::claimed::{Claimed, Content, Rendered};
use crate::envelope::{Checkpoint, Envelope, StoredReference};
use crate::lease::{Deleted, Lease, TouchError};
use crate::vocabulary::error::Error;
use crate::vocabulary::outcome::printable;
use crate::vocabulary::retry::MAX_DELAY;

/// What became of an attempt to settle.
#[derive(Debug)]
pub(crate) enum Settled {
    /// The storage said so.
    Certainly,
    /// Whether it took effect is unknown.
    Perhaps,
}

impl From<Deleted> for Settled {
    fn from(deleted: Deleted) -> Self {
        match deleted {
            Deleted::Certainly => Self::Certainly,
            Deleted::Perhaps => Self::Perhaps,
        }
    }
}

/// What a release is excused by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Excuse {
    /// A snooze, a shutdown, a drop.
    Plain,
    /// No handler knows the kind or version.
    Unknown,
}

impl Claimed {
    /// Deletes the message, then its blobs.
    pub(crate) async fn complete(&self) -> Result<Settled, TouchError> {
        let deleted = self.lease.delete().await?;
        let references = self.references();
        // A message that may come back needs its blobs.
        if matches!(deleted, Deleted::Certainly) && !references.is_empty() {
            Box::pin(self.remove(references)).await;
        }
        Ok(deleted.into())
    }

    /// Deletes messages without blobs, all of one channel, by one request; the answers stand in their order.
    pub(crate) async fn complete_all<'c>(
        claimed: impl Iterator<Item = &'c Self>,
    ) -> Vec<Result<Settled, TouchError>> {
        let leases: Vec<_> = claimed.map(|claimed| Arc::clone(&claimed.lease)).collect();
        let deleted = Lease::delete_all(&leases).await;
        deleted.into_iter().map(|deleted| deleted.map(Settled::from)).collect()
    }

    /// Counts a failed attempt and puts the message back for `delay`.
    pub(crate) async fn retry(&self, delay: Duration, error: &str) -> Result<(), Error> {
        self.put_back(delay, |envelope| {
            envelope.history.attempts = envelope.history.attempts.saturating_add(1);
            envelope.history.last_error = Some(printable(error, crate::envelope::MAX_ERROR_CHARS));
        })
        .await
    }

    /// Puts the message back for `delay` without counting an attempt.
    pub(crate) async fn excuse(&self, delay: Duration, excuse: Excuse) -> Result<(), Error> {
        self.put_back(delay, |envelope| excused(envelope, excuse)).await
    }

    /// The same in the background, as far as it can be done without waiting; for drops.
    pub(crate) fn excuse_later(&self) {
        let text = self.envelope().and_then(|mut envelope| {
            excused(&mut envelope, Excuse::Plain);
            // A payload that would have to move out first is no affair of a drop.
            self.render(&mut envelope).ok().filter(|rendered| rendered.blobs.is_empty())
        });
        self.lease.release_later(Duration::ZERO, text.map(|rendered| rendered.text));
    }

    async fn put_back(&self, delay: Duration, change: impl FnOnce(&mut Envelope)) -> Result<(), Error> {
        let _saving = self.saving.lock().await;
        let delay = delay.min(MAX_DELAY);
        let Some(mut envelope) = self.envelope() else {
            return Ok(self.lease.release(delay, None).await?);
        };
        change(&mut envelope);
        let rendered = self.render_and_store_blobs(&mut envelope).await?;
        Ok(self.lease.release(delay, Some(rendered.text)).await?)
    }

    /// Saves a checkpoint (JSON text) with the message, and renews the lease.
    pub(crate) async fn checkpoint(&self, json: String) -> Result<(), Error> {
        let _saving = self.saving.lock().await;
        let Some(mut envelope) = self.envelope() else {
            return Err(TouchError::Closed.into());
        };
        if self.lease.is_uncertain() {
            return Err(TouchError::Uncertain(None).into());
        }
        let former = envelope.history.checkpoint.replace(Checkpoint::Inline(json));
        let rendered = self.render_and_store_blobs(&mut envelope).await?;
        let saved = self.lease.save(rendered.text).await;
        if let Err(TouchError::Refused(_)) = &saved {
            // Certainly not referred to: the blobs are orphans.
            self.remove(rendered.blobs.into_iter().map(|(reference, _)| reference).collect()).await;
        }
        saved?;
        *self.content() = Content::Event(Box::new(envelope));
        if let Some(Checkpoint::Stored(reference)) = former {
            self.remove(vec![reference]).await;
        }
        Ok(())
    }

    /// The newest checkpoint, from the message or its blob.
    pub(crate) async fn load_checkpoint(&self) -> Result<Option<String>, Error> {
        let checkpoint = self.with_envelope(|envelope| envelope.history.checkpoint.clone()).flatten();
        match checkpoint {
            None => Ok(None),
            Some(Checkpoint::Inline(json)) => Ok(Some(json)),
            Some(Checkpoint::Stored(reference)) => {
                let undecodable = |text: &str| Error::new(crate::ErrorKind::Undecodable, text);
                let data = self.channel.claim_checks.load(&self.channel.name, &reference).await;
                let data = data.map_err(|e| undecodable("the checkpoint cannot be read").with_source(e))?;
                let text = String::from_utf8(data.into());
                Ok(Some(text.map_err(|e| undecodable("the checkpoint is not text").with_source(e))?))
            }
        }
    }

    pub(super) async fn render_and_store_blobs(&self, envelope: &mut Envelope) -> Result<Rendered, Error> {
        let rendered = self.render(envelope)?;
        for (reference, data) in &rendered.blobs {
            self.channel.claim_checks.store(reference, data.clone(), self.expires).await?;
        }
        Ok(rendered)
    }

    /// Deletes blobs that no message refers to any more. What fails is left to the sweeper.
    pub(super) async fn remove(&self, references: Vec<StoredReference>) {
        for reference in references {
            if let Err(error) = self.channel.claim_checks.remove(&reference).await {
                tracing::debug!(queue = %self.channel.name, %error, "payload not removed; a sweep will");
            }
        }
    }
}

fn excused(envelope: &mut Envelope, excuse: Excuse) {
    envelope.history.excused = envelope.history.excused.saturating_add(1);
    if excuse == Excuse::Unknown {
        envelope.history.deferred = envelope.history.deferred.saturating_add(1);
    }
}
