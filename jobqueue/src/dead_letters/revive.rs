//! Puts a dead letter back into its queue, or deletes it. `pass.rs` leases and selects the letters.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, timeout_at};

use super::held::HeldLetter;
use super::untyped::DeadLetterQueue;
use crate::delivery::{add_past_dead_letter, event_of_raw, fit_shortened, record_redrive, unwrap_unreadable};
use crate::envelope::{
    DeadLetterNote, Envelope, Parsed, Payload, RAW_KIND, StoredReference, UNREADABLE_KIND, parse,
};
use crate::error::{Error, ErrorKind};
use crate::group_log::{forget_message, is_in_order, renumber, restamp};
use crate::queue_core::{
    CopyName, MAX_COPIED_BYTES, MAX_DOUBTS_WITH_OWN_BLOBS, copy_blobs, payload_error, remove_blobs,
};
use crate::send::send_error;
use crate::storage::{
    Certainty, ExpiredReceipt, MessageId, MessageRef, PutMessage, StoreError, StoreErrorKind, Tries,
};

/// The time that must be left of the lease of a letter when its job is put back, so that the letter can be
/// deleted.
const DELETION_RESERVE: Duration = Duration::from_secs(2);
/// The largest integer that JSON carries exactly to every language.
const MAX_FENCE_BASE: u64 = (1 << 53) - 1;
/// The number of bits in a fence for the deliveries of one message.
const DELIVERY_BITS: u32 = 10;

/// The new message of a redriven job, and the blobs that were written for it.
struct RevivedJob {
    text: String,
    key: Option<String>,
    /// The group that the job joins at its end, if the storage itself keeps the order.
    group: Option<String>,
    blobs: Vec<StoredReference>,
}

enum LetterContent {
    Job(Box<Envelope>),
    /// A text that is put back unchanged, except for its copy number.
    Text(String),
}

impl DeadLetterQueue {
    /// Puts a job back into its queue, with copies of its blobs, and then deletes its dead letter. Returns
    /// the error if a blob of the dead letter is not deleted.
    ///
    /// # Errors
    /// The error, and the certainty that the job is in its queue.
    pub(crate) async fn put_back(&self, held: &HeldLetter) -> Result<Option<Error>, (Certainty, Error)> {
        let (mut tries, mut doubts) = (Tries::brief(self.core.runtime(), 1, 2), 0);
        // Not the id of the job: a storage that detects duplicates would drop a job that was sent shortly
        // before.
        let id: Arc<str> = self.core.runtime().uuid_v4().to_string().into();
        loop {
            let certainty = if tries.is_in_doubt() { Certainty::Unknown } else { Certainty::NotApplied };
            // A busy storage may leave the outcome of many puts unknown.
            let is_shared = doubts >= MAX_DOUBTS_WITH_OWN_BLOBS;
            let name = if is_shared { CopyName::SharedFor(held.message.id.as_str()) } else { CopyName::New };
            let revived = self.revive(held, name).await;
            let RevivedJob { text, key, group, blobs } = revived.map_err(|error| (certainty, error))?;
            if Instant::now() + DELETION_RESERVE >= held.until {
                remove_blobs(&self.core, &self.core.name, blobs).await;
                let text = "the dead letter was held for too long: another pass may have it";
                return Err((certainty, Error::new(ErrorKind::LeaseLost, text)));
            }
            let put = PutMessage::new(text).with_shard_key(key).with_group(group);
            let put = put.with_job(Arc::clone(&self.core.options.source), Arc::clone(&id));
            let error = match self.core.store().put(&self.core.name, put).await {
                Ok(_) => break,
                Err(error) => error,
            };
            doubts += u32::from(error.is_ambiguous());
            // Otherwise a stored message may need the blobs.
            if error.certainty() == Certainty::NotApplied {
                remove_blobs(&self.core, &self.core.name, blobs).await;
            }
            tries.failed(error).await.map_err(|error| {
                let certainty = error.certainty();
                (certainty, send_error(error, certainty))
            })?;
        }
        // The record must leave enough of the lease for the deletion. If the deletion fails, the record is
        // needed nevertheless: it tells a later pass that the job was put back.
        let stored = held.stored();
        let mut recording = pin!(record_redrive(&self.core, &stored));
        let is_recorded = timeout_at(held.until - DELETION_RESERVE / 2, recording.as_mut()).await.is_ok();
        let discarded = self.discard(held).await;
        if !is_recorded && discarded.is_err() {
            recording.await;
        }
        discarded.map_err(|(_, error)| {
            let text = "the job is put back, but its dead letter may not be deleted";
            (Certainty::Applied, Error::new(error.kind(), text).with_source(error))
        })
    }

    /// Deletes a dead letter, then its blobs. Returns the error if a blob is not deleted.
    ///
    /// # Errors
    /// The error, and the certainty that the dead letter is deleted.
    pub(crate) async fn discard(&self, held: &HeldLetter) -> Result<Option<Error>, (Certainty, Error)> {
        self.delete_with(held, held.references()).await
    }

    /// Deletes a copy of a letter that may still exist. Their blobs stay, because both letters refer to them.
    pub(super) async fn discard_copy(&self, held: &HeldLetter) -> Result<Option<Error>, (Certainty, Error)> {
        self.delete_with(held, Vec::new()).await
    }

    async fn delete_with(
        &self,
        held: &HeldLetter,
        blobs: Vec<StoredReference>,
    ) -> Result<Option<Error>, (Certainty, Error)> {
        let deleted = self.delete(&held.message).await;
        let deleted = deleted.map_err(|error| (error.certainty(), Error::from(error)))?;
        let mut payload_left = None;
        for reference in blobs.into_iter().filter(|_| deleted) {
            if let Err(error) = self.core.claim_checks.remove(&self.name, &reference).await {
                let text = "the dead letter is deleted, but its payload is not";
                payload_left = Some(Error::new(ErrorKind::Storage, text).with_source(error));
            }
        }
        Ok(payload_left)
    }

    /// Deletes a message. Returns false if another client has deleted it.
    ///
    /// # Errors
    /// The storage's error. If another client has leased the message, it still exists.
    async fn delete(&self, message: &MessageRef) -> Result<bool, StoreError> {
        let mut tries = Tries::brief(self.core.runtime(), 1, 2);
        loop {
            match self.core.store().delete(&self.name, message, ExpiredReceipt::Allow).await {
                Ok(()) => return Ok(true),
                // An earlier attempt deleted the message, and its answer was lost.
                Err(e) if e.kind() == StoreErrorKind::MessageNotFound && tries.is_in_doubt() => {
                    return Ok(true);
                }
                Err(e) if e.kind() == StoreErrorKind::MessageNotFound => return Ok(false),
                Err(e) => tries.failed(e).await?,
            }
        }
    }

    /// Returns the original text of a message that could not be read as a job; `None` for a job.
    pub(crate) async fn original_text(&self, envelope: &Envelope) -> Result<Option<String>, Error> {
        if *envelope.kind != *UNREADABLE_KIND {
            return Ok(None);
        }
        let data = match &envelope.payload {
            Payload::Stored(text) => self.core.claim_checks.load(&self.name, text, MAX_COPIED_BYTES).await,
            inline => Ok(inline.inline().cloned().unwrap_or_default()),
        };
        let text = unwrap_unreadable(envelope, &data.map_err(payload_error)?);
        text.map(Some).ok_or_else(|| {
            Error::new(ErrorKind::Undecodable, "the text of an unreadable message was not kept")
        })
    }

    async fn revive(&self, held: &HeldLetter, name: CopyName<'_>) -> Result<RevivedJob, Error> {
        // Another program may have set the group on the message, and not in the text.
        let stored_group = held.group.clone().filter(|_| self.core.orders_groups);
        let mut envelope = match self.content(held).await? {
            LetterContent::Text(text) => {
                return Ok(RevivedJob { text, key: None, group: stored_group, blobs: Vec::new() });
            }
            LetterContent::Job(dead) => self.reset(*dead, held),
        };
        let copied = copy_blobs(&self.core, &self.name, &mut envelope, u64::MAX, name).await?;
        let mut blobs = copied.new;
        let fitted = match copied.lacking {
            Some(lacking) => Err(payload_error(lacking)),
            None => self.fit(&mut envelope, &mut blobs).await,
        };
        match fitted {
            Ok(text) => {
                let keeps_order = self.core.orders_groups && is_in_order(&envelope);
                let group = envelope.key.clone().filter(|_| keeps_order).or(stored_group);
                Ok(RevivedJob { text, key: envelope.key, group, blobs })
            }
            Err(error) => {
                remove_blobs(&self.core, &self.core.name, blobs).await;
                Err(error)
            }
        }
    }

    /// Returns the content of a letter. A raw payload is a job if the id of its message is known: under
    /// another id, its handler would not find the effects that it has recorded.
    async fn content(&self, held: &HeldLetter) -> Result<LetterContent, Error> {
        let (text, id) = match &held.event {
            None => (held.letter.text.clone(), held.original_id.as_ref().map(MessageId::as_str)),
            Some(event) => {
                self.check_home(event)?;
                match self.original_text(event).await? {
                    None => return Ok(LetterContent::Job(event.clone())),
                    // The text was refused unread, so it is put back unchanged.
                    Some(text) => (text, None),
                }
            }
        };
        Ok(match (parse(&text), id) {
            // Each put of the text is another message of its job.
            (Ok(Parsed::Event(mut event)), _) => {
                let is_renumbered = renumber(&mut event, self.core.runtime());
                LetterContent::Text(if is_renumbered { event.to_json()? } else { text })
            }
            (Ok(Parsed::Bare(json)), Some(id)) => {
                LetterContent::Job(Box::new(event_of_raw(id, RAW_KIND, json)))
            }
            _ => LetterContent::Text(text),
        })
    }

    /// Refuses a dead letter that names another queue as its origin: a letter returns only to the queue of
    /// its dead-letter queue.
    fn check_home(&self, envelope: &Envelope) -> Result<(), Error> {
        let queue = envelope.dead_letter.as_ref().map_or("", |note| &note.queue);
        if queue.is_empty() || queue == self.core.name.as_str() {
            return Ok(());
        }
        let text = format!("the dead letter names another queue than `{}` as its origin", self.core.name);
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Returns the event as a new message with all its attempts.
    fn reset(&self, mut envelope: Envelope, held: &HeldLetter) -> Envelope {
        let letter = &held.letter;
        // A message that the storage or another program has moved has no note. Without a past dead letter,
        // its checkpoint would look as if a producer had written it.
        let note = envelope.dead_letter.take().unwrap_or_else(|| DeadLetterNote {
            reason: letter.reason.to_string(),
            queue: letter.queue.clone(),
            message: None,
            time: letter.time_text().unwrap_or_default(),
            deliveries: letter.deliveries,
            worker: None,
        });
        envelope.fence_base = fence_base(envelope.fence_base, note.deliveries, held.now());
        add_past_dead_letter(&mut envelope.history, note);
        // The new message must be distinguishable from the old one, which may still exist.
        forget_message(&mut envelope);
        restamp(&mut envelope, self.core.runtime());
        // The deliveries of the new message are counted from zero.
        envelope.history.attempts = 0;
        envelope.history.uncounted = 0;
        envelope.history.delivery = 0;
        envelope.history.deferral = None;
        // The handler runs again.
        envelope.history.finished = None;
        envelope
    }

    /// Renders the text like a send. Stores the payload in a blob first if the message has no room for it.
    async fn fit(&self, envelope: &mut Envelope, blobs: &mut Vec<StoredReference>) -> Result<String, Error> {
        let encoding = self.core.fresh_settings().await.encoding;
        let (text, blob) = fit_shortened(&self.core, envelope, encoding, |_| false)?;
        if let Some((reference, data)) = blob {
            blobs.push(reference.clone());
            self.core.claim_checks.store(&reference, data, None).await?;
        }
        Ok(text)
    }
}

/// Returns the number above which the fences of a redriven job begin.
///
/// The dead-lettered message may be delivered once more, and two dead letters of a job may be redriven one
/// after the other: the time in the number separates their fences. Two machines may redrive them, so the time
/// is the storage's. The former number keeps the fence growing if the clock is wrong.
pub(super) fn fence_base(former: u64, deliveries: u32, now: SystemTime) -> u64 {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    let now = u64::try_from(now).unwrap_or(0).saturating_mul(1 << DELIVERY_BITS);
    let least = former.saturating_add(deliveries.into()).saturating_add(1 << DELIVERY_BITS);
    least.max(now).min(MAX_FENCE_BASE)
}

/// Returns the time of the redrive that gave a message this fence base, by the storage's clock, or a later
/// time if a clock was set back; `None` for a message that was not redriven. A sender may have written the
/// base.
pub fn redriven_at(fence_base: u64) -> Option<SystemTime> {
    let millis = Some(fence_base >> DELIVERY_BITS).filter(|millis| *millis > 0)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fence_base_has_the_time_of_its_redrive() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        assert_eq!(redriven_at(fence_base(0, 20, at)), Some(at));
        assert_eq!(redriven_at(0), None);
    }

    #[test]
    fn fence_grows_whatever_the_clock_says() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let first = fence_base(0, 20, at(1_700_000_000));
        let second = fence_base(first, 5_000, at(1_700_000_001));
        assert!(second > first + 5_000, "{first} {second}");
        let clock_set_back = fence_base(second, 3, at(0));
        assert!(clock_set_back > second + 3);
        assert!(fence_base(u64::MAX, u32::MAX, at(u32::MAX.into())) < 1 << 53);
    }
}
