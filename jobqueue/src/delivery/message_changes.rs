//! The changes of a leased message in the storage: deleting it and then its blobs, putting it back, saving a
//! checkpoint. Knows the message and its lease. `run` and `settle` decide which change is made.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::leased_job::{Content, LeasedJob, Rendered};
use super::order_position::extend_due;
use crate::claim_check::{MAX_CHECKPOINT_BYTES, PayloadError};
use crate::envelope::{Checkpoint, Deferral, Envelope, StoredReference};
use crate::error::{Error, ErrorKind};
use crate::job::Backoff;
use crate::job::outcome::printable;
use crate::lease::LeaseError;
use crate::queue_core::remove_blobs;
use crate::storage::{MAX_VISIBILITY, StoreError};

/// The minimum time for which a lease is renewed while its delivery is settled: two blobs may be written.
const MIN_SETTLE_TIME: Duration = Duration::from_secs(60);
/// The maximum time that a message is held after its handler because the result of an effect cannot be
/// recorded.
const MAX_EFFECT_WAIT: Duration = Duration::from_secs(15 * 60);
/// The pauses between the tries of a change.
const BACKOFF: Backoff = Backoff::exponential(Duration::from_millis(250), Duration::from_secs(5));

impl LeasedJob {
    /// Retries a change until `give_up`, while its errors are temporary and the lease is held. Returns the
    /// last result. A call that is cut short may or may not have been applied.
    pub(crate) async fn retry_until<T, F: Future<Output = Result<T, Error>>>(
        &self,
        give_up: Instant,
        mut change: impl FnMut() -> F,
    ) -> Result<T, Error> {
        let mut tries = 0;
        loop {
            let changed = tokio::select! {
                biased;
                changed = timeout_at(give_up, change()) => changed.unwrap_or_else(|_| Err(no_answer())),
                () = self.lease.ended() => return Err(no_answer()),
            };
            tries += 1;
            let again = Instant::now() + BACKOFF.delay(tries, self.core.runtime());
            if again > give_up || !matches!(&changed, Err(error) if may_succeed_soon(error)) {
                return changed;
            }
            tokio::select! {
                biased;
                () = self.lease.ended() => return changed,
                () = sleep_until(again) => {}
            }
        }
    }

    /// Deletes the message, then its blobs.
    pub(crate) async fn complete(&self) -> Result<(), LeaseError> {
        // A message that is not deleted still needs its blobs.
        self.lease.delete().await?;
        let references = self.references();
        if !references.is_empty() {
            Box::pin(remove_blobs(&self.core, &self.core.name, references)).await;
        }
        self.remove_superseded().await;
        Ok(())
    }

    /// Counts a failed attempt and puts the message back for `delay`, or for longer while the result of an
    /// effect may still be recorded. Returns the time of the put-back.
    pub(crate) async fn retry(&self, delay: Duration, error: &str) -> Result<Duration, Error> {
        self.put_back(delay, false, |envelope| {
            envelope.history.attempts = envelope.history.attempts.saturating_add(1);
            envelope.history.deferral = None;
            envelope.history.last_error = Some(printable(error, crate::envelope::MAX_ERROR_CHARS));
        })
        .await
    }

    /// Puts the message back without counting an attempt, for as long as [`retry`](Self::retry) does. Returns
    /// the time of the put-back.
    pub(crate) async fn release_uncounted(&self, delay: Duration) -> Result<Duration, Error> {
        self.put_back(delay, false, count_uncounted).await
    }

    /// Puts the message back as [`release_uncounted`](Self::release_uncounted) does, because its handler asked
    /// for that, and records the `cause`. Ends a wait for any other cause.
    pub(crate) async fn snooze(&self, delay: Duration, cause: Option<&str>) -> Result<Duration, Error> {
        self.put_back(delay, false, |envelope| {
            count_uncounted(envelope);
            envelope.history.deferral = None;
            if let Some(cause) = cause {
                envelope.history.last_error = Some(printable(cause, crate::envelope::MAX_ERROR_CHARS));
            }
        })
        .await
    }

    /// Puts the message back for `delay` without counting an attempt: it waits for a condition, which
    /// `deferral` may record, or its receiver leaves it to other workers. If its group log cannot be changed,
    /// the time is shorter. Returns the time of the put-back.
    pub(crate) async fn release_waiting(
        &self,
        delay: Duration,
        deferral: Option<Deferral>,
    ) -> Result<Duration, Error> {
        self.put_back(delay, true, |envelope| {
            count_uncounted(envelope);
            envelope.history.deferral = deferral.or(envelope.history.deferral.take());
        })
        .await
    }

    /// Records that the handler has finished, with its output (JSON), so that no later delivery runs the
    /// handler again. The next change of the message writes the record.
    pub(crate) fn handler_has_finished(&self, output: String) {
        self.change_event(|event| event.history.finished = Some(output));
    }

    /// Ends a wait for any cause, because its condition is met.
    pub(crate) fn end_wait(&self) {
        self.change_event(|event| event.history.deferral = None);
    }

    fn change_event(&self, change: impl FnOnce(&mut Envelope)) {
        if let Content::Event(envelope) = &mut *self.content() {
            change(envelope);
        }
    }

    /// Does the same as [`release_uncounted`](Self::release_uncounted) in the background. For `drop`.
    pub(crate) fn release_uncounted_later(&self) {
        let text = self.envelope().and_then(|mut envelope| {
            count_uncounted(&mut envelope);
            // A drop does not wait until a payload is stored in a blob.
            self.render(&mut envelope).ok().filter(|rendered| rendered.blobs.is_empty())
        });
        self.lease.release_later(Duration::ZERO, text.map(|rendered| rendered.text));
    }

    /// Renews the lease until the delivery is settled, also beyond the maximum run time: a blob may take
    /// longer than what is left of the lease.
    pub(super) fn renew_to_settle(&self) {
        self.lease.renew_for(MIN_SETTLE_TIME);
    }

    async fn put_back(
        &self,
        delay: Duration,
        may_come_sooner: bool,
        change: impl FnOnce(&mut Envelope),
    ) -> Result<Duration, Error> {
        self.renew_to_settle();
        // Until the lease ends, a pending record of an effect may still be written.
        let least = if self.is_recording() { self.lease.time_left() } else { Duration::ZERO };
        let _saving = self.saving.lock().await;
        let delay = delay.max(least).min(MAX_VISIBILITY);
        let delay = extend_due(self, delay, may_come_sooner).await;
        let Some(mut envelope) = self.envelope() else {
            self.lease.release(delay, None).await?;
            return Ok(self.lease.within_life(delay));
        };
        change(&mut envelope);
        let rendered = self.render_to_put_back(envelope).await?;
        let released = self.lease.release(delay, Some(rendered.text)).await;
        self.remove_unless_saved(rendered.blobs, &released).await;
        released?;
        self.remove_superseded().await;
        Ok(self.lease.within_life(delay))
    }

    /// Waits until the results of effects are recorded, because another run of the job would repeat the
    /// effects: for at most 15 minutes, and during a shutdown for as long as it leaves time.
    pub(super) async fn wait_for_effects(&self) {
        let Some(effects) = self.effects.get() else { return };
        effects.close();
        self.lease.renew_for(MAX_EFFECT_WAIT);
        tokio::select! {
            biased;
            () = effects.wait() => {}
            () = self.core.options.settle_now.cancelled() => {}
            () = self.lease.ended() => {}
            () = tokio::time::sleep(MAX_EFFECT_WAIT) => {}
        }
    }

    /// Returns whether the result of an effect is still being recorded.
    pub(super) fn is_recording(&self) -> bool {
        self.effects.get().is_some_and(|effects| !effects.is_empty())
    }

    /// Renders the text of a message that is put back. If one of its blobs cannot be stored, drops parts
    /// until the text needs no blob: first the last error, then a checkpoint that the storage has not
    /// accepted (the previous one is kept), then the mark that the handler has finished, unless the stored
    /// text has that mark. Without the mark the handler runs again; that costs no attempt, and no counted
    /// delivery.
    async fn render_to_put_back(&self, mut envelope: Envelope) -> Result<Rendered, Error> {
        let mut smallest = envelope.clone();
        let rendering = self.render_and_store_blobs(&mut envelope, self.expires);
        let rendered = self.core.options.call_before_end(rendering).await;
        let error = match rendered {
            Some(Ok(rendered)) => return Ok(rendered),
            Some(Err(error)) => error,
            None => Error::new(ErrorKind::Storage, "a blob was not stored in time"),
        };
        smallest.history.last_error = None;
        let rendered = self.render_without_blobs(&smallest).or_else(|| {
            self.checkpoints.restore(&mut smallest.history.checkpoint);
            self.render_without_blobs(&smallest)
        });
        if rendered.is_some() || self.end_is_stored.load(Ordering::Relaxed) {
            return rendered.ok_or(error);
        }
        smallest.history.finished = None;
        self.render_without_blobs(&smallest).ok_or(error)
    }

    fn render_without_blobs(&self, envelope: &Envelope) -> Option<Rendered> {
        self.render(&mut envelope.clone()).ok().filter(|rendered| rendered.blobs.is_empty())
    }

    /// Saves a checkpoint (JSON text of at most [`MAX_CHECKPOINT_BYTES`]) with the message, and renews the
    /// lease. If the answer is lost, or the storage refuses the change, the checkpoint still becomes part of
    /// the content, and the next change of the message writes it. After a lost answer its blob is already
    /// stored.
    pub(crate) async fn checkpoint(&self, json: String) -> Result<(), Error> {
        let _saving = self.saving.lock().await;
        let Some(mut envelope) = self.envelope() else {
            return Err(LeaseError::Closed.into());
        };
        let new = Checkpoint::Inline(json);
        let former = envelope.history.checkpoint.replace(new.clone());
        let rendered = self.render(&mut envelope)?;
        // Done first, because the caller may be dropped. Other parts of the content may change at the same
        // time: the handler may finish.
        self.change_event(|event| event.history.checkpoint = Some(new));
        self.checkpoints.supersede(former);
        let rendered = self.store_blobs(rendered, self.expires).await?;
        let saved = self.lease.save(rendered.text).await;
        self.remove_unless_saved(rendered.blobs, &saved).await;
        if matches!(saved, Ok(()) | Err(LeaseError::Uncertain(_))) {
            let Envelope { payload, history, .. } = envelope;
            self.change_event(|event| {
                (event.payload, event.history.checkpoint) = (payload, history.checkpoint)
            });
            self.checkpoints.accept();
        }
        saved?;
        self.remove_superseded().await;
        Ok(())
    }

    /// Deletes the blobs of earlier checkpoints, to which the message no longer refers.
    pub(super) async fn remove_superseded(&self) {
        let superseded = self.checkpoints.take_superseded();
        if !superseded.is_empty() {
            Box::pin(remove_blobs(&self.core, &self.core.name, superseded)).await;
        }
    }

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

    /// Renders a text and [stores](Self::store_blobs) its blobs, which are kept until `expires`.
    pub(super) async fn render_and_store_blobs(
        &self,
        envelope: &mut Envelope,
        expires: Option<SystemTime>,
    ) -> Result<Rendered, Error> {
        self.store_blobs(self.render(envelope)?, expires).await
    }

    /// Stores the blobs of a text. After an error, none of them is left behind.
    async fn store_blobs(&self, rendered: Rendered, expires: Option<SystemTime>) -> Result<Rendered, Error> {
        for (reference, data) in &rendered.blobs {
            if let Err(error) = self.core.claim_checks.store(reference, data.clone(), expires).await {
                let unused = rendered.blobs.into_iter().map(|(reference, _)| reference).collect();
                remove_blobs(&self.core, &self.core.name, unused).await;
                return Err(error.into());
            }
        }
        Ok(rendered)
    }

    /// Deletes the blobs that were stored for a text, if the text is certainly not stored.
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

fn count_uncounted(envelope: &mut Envelope) {
    envelope.history.uncounted = envelope.history.uncounted.saturating_add(1);
}

/// Returns whether the same call may succeed soon. A new try also finds out whether the change was applied.
pub(super) fn may_succeed_soon(error: &Error) -> bool {
    error.is_retryable() || error.is_outcome_unknown() || error.is_lease_uncertain()
}

pub(super) fn no_answer() -> Error {
    Error::new(ErrorKind::Storage, "no answer came in time").with_retryable(true)
}
