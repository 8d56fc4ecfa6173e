//! The changes of a leased message in the storage: delete it and then its blobs, put it back, save a checkpoint. Knows the message and its
//! lease. `run` and `settle` decide which of them is made.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::leased_job::{Content, LeasedJob, Rendered};
use super::order_position::extend_due;
use crate::claim_check::{MAX_CHECKPOINT_BYTES, PayloadError};
use crate::envelope::{Checkpoint, Deferral, Envelope, History, StoredReference};
use crate::error::{Error, ErrorKind};
use crate::job::outcome::printable;
use crate::lease::LeaseError;
use crate::queue_core::{MAX_COPIED_BYTES, remove_blobs};
use crate::storage::{MAX_VISIBILITY, StoreError};

impl LeasedJob {
    /// Deletes the message, then its blobs.
    pub(crate) async fn complete(&self) -> Result<(), LeaseError> {
        // If the message is not deleted, it still needs its blobs.
        self.lease.delete().await?;
        let references = self.references();
        if !references.is_empty() {
            Box::pin(remove_blobs(&self.core, &self.core.name, references)).await;
        }
        Ok(())
    }

    /// Deletes the message of a job that has a dead letter, then the blobs that the letter has certainly copied. The others stay, because
    /// the letter refers to them.
    pub(super) async fn complete_beside_letter(&self) -> Result<(), LeaseError> {
        let copied = self.copied_by_every_letter().await;
        self.lease.delete().await?;
        remove_blobs(&self.core, &self.core.name, copied).await;
        Ok(())
    }

    /// Returns the blobs that each letter of the message has copied, whichever worker has written it. The text of an event without room is
    /// kept as it came by a worker of a former release, so its letter may refer to the blobs themselves.
    async fn copied_by_every_letter(&self) -> Vec<StoredReference> {
        let (checks, queue) = (&self.core.claim_checks, &self.core.name);
        let mut copied = Vec::new();
        for reference in self.references() {
            let is_copied = !self.is_unwritable
                // Above that, a worker copies what its own limit allows.
                && reference.size <= MAX_COPIED_BYTES
                && checks.load_for_copy(queue, &reference, MAX_COPIED_BYTES).await.is_ok();
            if is_copied {
                copied.push(reference);
            }
        }
        copied
    }

    /// Counts a failed attempt and puts the message back for `delay`.
    pub(crate) async fn retry(&self, delay: Duration, error: &str) -> Result<(), Error> {
        self.put_back(delay, false, |envelope| {
            envelope.history.attempts = envelope.history.attempts.saturating_add(1);
            envelope.history.deferral = None;
            envelope.history.last_error = Some(printable(error, crate::envelope::MAX_ERROR_CHARS));
        })
        .await
        .map(drop)
    }

    /// Puts the message back for `delay` without counting an attempt.
    pub(crate) async fn release_uncounted(&self, delay: Duration) -> Result<(), Error> {
        self.put_back(delay, false, uncounted).await.map(drop)
    }

    /// Puts the message back for `delay` without counting an attempt, because it waits for a condition, which `deferral` records, or
    /// because its receiver leaves it to others. If its group log cannot be changed, the time is shorter. Returns the time.
    pub(crate) async fn release_waiting(
        &self,
        delay: Duration,
        deferral: Option<Deferral>,
    ) -> Result<Duration, Error> {
        self.put_back(delay, true, |envelope| {
            uncounted(envelope);
            envelope.history.deferral = deferral.or(envelope.history.deferral.take());
        })
        .await
    }

    /// Records that the handler has finished, with its output (JSON), so that a later delivery does not run the
    /// handler again. The next change of the message writes the record.
    pub(crate) fn handler_has_finished(&self, output: String) {
        if let Content::Event(envelope) = &mut *self.content() {
            envelope.history.finished = Some(output);
        }
    }

    /// Ends a wait of any cause: its condition is met.
    pub(crate) fn end_wait(&self) {
        if let Content::Event(envelope) = &mut *self.content() {
            envelope.history.deferral = None;
        }
    }

    /// Like [`release_uncounted`](Self::release_uncounted), but in the background and without waiting. For drops.
    pub(crate) fn release_uncounted_later(&self) {
        let text = self.envelope().and_then(|mut envelope| {
            uncounted(&mut envelope);
            // A drop does not wait for a payload that would have to move out first.
            self.render(&mut envelope).ok().filter(|rendered| rendered.blobs.is_empty())
        });
        self.lease.release_later(Duration::ZERO, text.map(|rendered| rendered.text));
    }

    async fn put_back(
        &self,
        delay: Duration,
        may_come_sooner: bool,
        change: impl FnOnce(&mut Envelope),
    ) -> Result<Duration, Error> {
        let _saving = self.saving.lock().await;
        let delay = extend_due(self, delay.min(MAX_VISIBILITY), may_come_sooner).await;
        let Some(mut envelope) = self.envelope().filter(|_| !self.is_unwritable) else {
            return Ok(self.lease.release(delay, None).await.map(|()| delay)?);
        };
        change(&mut envelope);
        let rendered = self.render_to_put_back(envelope).await?;
        let released = self.lease.release(delay, Some(rendered.text)).await;
        self.remove_unless_saved(rendered.blobs, &released).await;
        Ok(released.map(|()| delay)?)
    }

    /// Renders the text of a message that is put back. If a blob for it cannot be stored, leaves out the last error instead; if that is not
    /// enough, also that the handler has finished, unless the stored text says so already. It runs again, which costs no attempt, and no
    /// delivery of those that are counted.
    async fn render_to_put_back(&self, mut envelope: Envelope) -> Result<Rendered, Error> {
        let mut smallest = envelope.clone();
        match self.render_and_store_blobs(&mut envelope, self.expires).await {
            Ok(rendered) => Ok(rendered),
            Err(error) => {
                let mut render = |leave_out: fn(&mut History)| {
                    leave_out(&mut smallest.history);
                    self.render(&mut smallest.clone()).ok().filter(|rendered| rendered.blobs.is_empty())
                };
                let rendered = render(|history| history.last_error = None);
                if rendered.is_some() || self.end_is_stored.load(Ordering::Relaxed) {
                    return rendered.ok_or(error);
                }
                render(|history| history.finished = None).ok_or(error)
            }
        }
    }

    /// Saves a checkpoint (JSON text) with the message, and renews the lease.
    pub(crate) async fn checkpoint(&self, json: String) -> Result<(), Error> {
        if json.len() as u64 > MAX_CHECKPOINT_BYTES {
            let text = format!("the checkpoint has {} bytes; {MAX_CHECKPOINT_BYTES} are allowed", json.len());
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        let _saving = self.saving.lock().await;
        let Some(mut envelope) = self.envelope() else {
            return Err(LeaseError::Closed.into());
        };
        if self.lease.is_uncertain() {
            return Err(LeaseError::Uncertain(None).into());
        }
        let former = envelope.history.checkpoint.replace(Checkpoint::Inline(json));
        let rendered = self.render_and_store_blobs(&mut envelope, self.expires).await?;
        let saved = self.lease.save(rendered.text).await;
        self.remove_unless_saved(rendered.blobs, &saved).await;
        saved?;
        *self.content() = Content::Event(Box::new(envelope));
        if let Some(Checkpoint::Stored(reference)) = former {
            remove_blobs(&self.core, &self.core.name, vec![reference]).await;
        }
        Ok(())
    }

    /// Returns the latest checkpoint, from the message or its blob.
    pub(crate) async fn load_checkpoint(&self) -> Result<Option<String>, Error> {
        let checkpoint = self.with_envelope(|envelope| envelope.history.checkpoint.clone()).flatten();
        match checkpoint {
            None => Ok(None),
            Some(Checkpoint::Inline(json)) => Ok(Some(json)),
            Some(Checkpoint::Stored(reference)) => {
                let undecodable = |text: &str| Error::new(ErrorKind::Undecodable, text);
                let checks = &self.core.claim_checks;
                let data = match checks.load(&self.core.name, &reference, MAX_CHECKPOINT_BYTES).await {
                    Ok(data) => data,
                    Err(PayloadError::Unreadable(failed)) => return Err(unreadable(failed)),
                    Err(error) => return Err(undecodable("the checkpoint cannot be read").with_source(error)),
                };
                let text = String::from_utf8(data.into());
                Ok(Some(text.map_err(|e| undecodable("the checkpoint is not text").with_source(e))?))
            }
        }
    }

    /// Renders a text whose blobs are kept until `expires`, and stores these. No blob is left behind by an error.
    pub(super) async fn render_and_store_blobs(
        &self,
        envelope: &mut Envelope,
        expires: Option<SystemTime>,
    ) -> Result<Rendered, Error> {
        let rendered = self.render(envelope)?;
        for (reference, data) in &rendered.blobs {
            if let Err(error) = self.core.claim_checks.store(reference, data.clone(), expires).await {
                let unused = rendered.blobs.into_iter().map(|(reference, _)| reference).collect();
                remove_blobs(&self.core, &self.core.name, unused).await;
                return Err(error.into());
            }
        }
        Ok(rendered)
    }

    /// Deletes the blobs that were stored for a text if the text is certainly not stored.
    pub(super) async fn remove_unless_saved(
        &self,
        blobs: Vec<(StoredReference, Bytes)>,
        saved: &Result<(), LeaseError>,
    ) {
        if let Err(LeaseError::Refused(_) | LeaseError::Lost | LeaseError::Closed) = saved {
            let unused = blobs.into_iter().map(|(reference, _)| reference).collect();
            remove_blobs(&self.core, &self.core.name, unused).await;
        }
    }
}

/// Returns the error of a checkpoint that exists but cannot be read now, because the storage failed.
fn unreadable(failed: StoreError) -> Error {
    Error::new(ErrorKind::Storage, "the checkpoint cannot be read now")
        .with_retryable(true)
        .with_source(failed)
}

fn uncounted(envelope: &mut Envelope) {
    envelope.history.uncounted = envelope.history.uncounted.saturating_add(1);
}
