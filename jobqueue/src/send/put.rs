//! Puts messages until the storage has accepted them or their send budget is used up.
//!
//! Throttled messages are put again together while the budget lasts, after the longest wait that the storage
//! requested. A message whose answer was lost is put once more. All copies of a message have the same id; the
//! first two have payload blobs of their own.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::prepare::Prepared;
use super::resend::{payload_of, remove_payloads, resend_of};
use crate::envelope::StoredReference;
use crate::error::{Error, ErrorKind};
pub(super) use crate::group_log::SEND_BUDGET;
use crate::queue_core::{MAX_DOUBTS_WITH_OWN_BLOBS, QueueCore};
use crate::storage::{Certainty, PutMessage, PutOutcome, StoreError, StoreErrorKind, Tries};
use crate::undelivered::StoredMessage;

/// The maximum number of further attempts after a lost answer.
const MAX_RESENDS_IN_DOUBT: u32 = 1;
/// The maximum number of further attempts after a failure that certainly stored nothing.
const MAX_RESENDS: u32 = 4;

/// A message that is being put, with its attempts.
struct PendingPut<'p> {
    prepared: &'p Prepared,
    give_up: Instant,
    tries: Tries,
    /// The number of attempts that may have stored the message.
    doubts: u32,
}

impl<'p> PendingPut<'p> {
    fn new(core: &QueueCore, prepared: &'p Prepared, started: Instant) -> Self {
        let give_up = started + SEND_BUDGET;
        let tries = Tries::until(core.runtime(), give_up, MAX_RESENDS_IN_DOUBT, MAX_RESENDS);
        Self { prepared, give_up, tries, doubts: 0 }
    }

    fn stored(&self, outcome: PutOutcome) -> StoredMessage {
        self.prepared.stored(outcome.message, self.tries.is_in_doubt())
    }
}

/// Puts a message whose send began at `started`.
///
/// # Errors
/// [`Rejected`](ErrorKind::Rejected) if certainly no attempt stored the message,
/// [`Unknown`](ErrorKind::Unknown) if an attempt may have stored it.
pub(super) async fn put_with_retries(
    core: &QueueCore,
    prepared: &Prepared,
    started: Instant,
) -> Result<StoredMessage, Error> {
    let mut pending = PendingPut::new(core, prepared, started);
    let mut put = Cow::Borrowed(&prepared.put);
    loop {
        wait_while_throttled(core, started).await;
        match core.store().put(&core.name, (*put).clone()).await {
            Ok(outcome) => return Ok(pending.stored(outcome)),
            Err(error) => {
                let mut unsent = Vec::new();
                // Boxed, because most puts succeed.
                let failed = Box::pin(put_failed(core, &mut pending, &put, error, &mut unsent)).await;
                remove_payloads(core, unsent).await;
                let (wait, next) = failed?;
                put = Cow::Owned(next);
                Box::pin(tokio::time::sleep(wait)).await;
            }
        }
    }
}

/// Takes the messages, whose sends began at `started`, and puts them. Returns the answers in their order.
pub(crate) async fn put_all(
    core: &QueueCore,
    ready: &mut [&mut Prepared],
    started: Instant,
) -> Vec<Result<StoredMessage, Error>> {
    let mut puts: Arc<[PutMessage]> = ready.iter_mut().map(|prepared| prepared.take_put()).collect();
    let mut answers: Vec<_> = ready.iter().map(|_| None).collect();
    let pending = ready.iter().map(|prepared| PendingPut::new(core, prepared, started));
    let mut open: Vec<_> = pending.enumerate().collect();
    let mut unsent = Vec::new();
    while !open.is_empty() {
        wait_while_throttled(core, started).await;
        let mut outcomes = core.store().put_all(&core.name, Arc::clone(&puts)).await.into_iter();
        let (mut failed, mut next_puts, mut longest) = (Vec::new(), Vec::new(), Duration::ZERO);
        for ((place, mut pending), put) in open.into_iter().zip(&*puts) {
            match outcomes.next() {
                Some(Ok(outcome)) => answers[place] = Some(Ok(pending.stored(outcome))),
                Some(Err(error)) => {
                    match Box::pin(put_failed(core, &mut pending, put, error, &mut unsent)).await {
                        Ok((wait, next)) => {
                            longest = longest.max(wait);
                            failed.push((place, pending));
                            next_puts.push(next);
                        }
                        Err(error) => answers[place] = Some(Err(error)),
                    }
                }
                // A storage that returns fewer answers than messages leaves the rest unknown.
                None => {}
            }
        }
        (open, puts) = (failed, next_puts.into());
        if !longest.is_zero() {
            Box::pin(tokio::time::sleep(longest)).await;
        }
    }
    remove_payloads(core, unsent).await;
    answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(unanswered()))).collect()
}

/// Records a failed attempt to put a message. Returns the wait before the next attempt, and the message for
/// it. If none follows, adds the payload of a message that is certainly not stored to `unsent`.
async fn put_failed(
    core: &QueueCore,
    pending: &mut PendingPut<'_>,
    put: &PutMessage,
    error: StoreError,
    unsent: &mut Vec<StoredReference>,
) -> Result<(Duration, PutMessage), Error> {
    let in_doubt = error.is_ambiguous();
    pending.doubts += u32::from(in_doubt);
    let wait = match pending.tries.pause(error) {
        Ok(wait) => wait,
        Err(error) => {
            // The first two messages have blobs of their own, if this send has stored any.
            let is_own = pending.prepared.blob.is_some() && pending.doubts < MAX_DOUBTS_WITH_OWN_BLOBS;
            if is_own && !in_doubt {
                unsent.extend(payload_of(put));
            }
            let certainty = error.certainty();
            return Err(send_error(error, certainty));
        }
    };
    let next = if in_doubt {
        resend_of(core, pending.prepared, put, pending.doubts, pending.give_up).await?
    } else {
        put.clone()
    };
    Ok((wait, next))
}

/// Returns the error of a failed send; `message` says whether the message is stored all the same.
pub(crate) fn send_error(error: StoreError, message: Certainty) -> Error {
    let retryable = error.is_retryable();
    let (kind, text) = match error.kind() {
        _ if message != Certainty::NotApplied => {
            (ErrorKind::Unknown, "the outcome of the send is unknown; send again under the same id")
        }
        StoreErrorKind::TooLarge => (ErrorKind::TooLarge, "the message is too large for the storage"),
        _ => (ErrorKind::Rejected, "the message is not stored; send it again when the cause is fixed"),
    };
    Error::new(kind, text).with_retryable(retryable).with_source(error)
}

/// Returns the error of a message without an answer.
pub(crate) fn unanswered() -> Error {
    Error::new(
        ErrorKind::Unknown,
        "the storage gave no answer for this message: send it again under the same id",
    )
}

/// Waits while the storage throttles, so that it can serve lease renewals: for at most half of the send
/// budget.
async fn wait_while_throttled(core: &QueueCore, started: Instant) {
    if core.storage.throttle().left().is_zero() {
        return;
    }
    let limit = (SEND_BUDGET / 2).saturating_sub(started.elapsed());
    drop(tokio::time::timeout(limit, core.storage.throttle().until_ready()).await);
}
