//! The operations on a leased message: renew, save the text, release, [delete](super::removal). Each waits
//! for the previous one.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::owner::{Lease, Loss, Phase, TransactionState};
use super::terms::LeasedQueue;
use crate::event::Event;
use crate::job::outcome::chain;
use crate::storage::{Queues, StoreError, StoreErrorKind, Tries, UpdateMessage, Updated};

/// The maximum duration of a single request, however long the lease.
const MAX_REQUEST_TIME: Duration = Duration::from_secs(30);
/// The maximum time between the last pause of a settlement and the end of the lease.
const SETTLE_MARGIN: Duration = Duration::from_secs(5);

/// The reason why an operation on a lease failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    /// The lease is lost; this call changed nothing.
    #[error("the lease on the message is lost; another worker may have it")]
    Lost,
    /// An answer was lost: the change may have been applied, and no further change is possible.
    #[error("an answer of the storage was lost; whether the lease is still held is unknown")]
    Uncertain(#[source] Option<StoreError>),
    /// Every attempt failed, and certainly changed nothing; the lease is still held.
    #[error("the change was not made")]
    Refused(#[source] StoreError),
    /// The message was settled before this call.
    #[error("the message was already settled")]
    Closed,
}

impl LeaseError {
    /// Returns the error of a change that has failed for good; `error` covers all its tries.
    pub(super) fn of_change(error: StoreError) -> Self {
        if error.is_ambiguous() { Self::Uncertain(Some(error)) } else { Self::Refused(error) }
    }
}

impl Lease {
    /// Sends a renewal, and a second one if the first fails and there is time. Called by the renewer.
    pub(super) async fn renew(&self) {
        let _turn = self.turn.lock().await;
        let LeasedQueue { name: queue, observers, .. } = &*self.queue;
        // The operation before may have ended the lease: then no request is sent, and no renewal fails.
        if let Err(error) = self.check_held() {
            self.schedule(&mut self.state());
            crate::log::trace!(%queue, message = %self.id, %error, "no renewal sent");
            return;
        }
        let renewal = LeaseChange::keeping(self.terms.visibility, None);
        let outcome = self.change(&self.queue.renewer_store, renewal, self.few_tries()).await;
        // After a refusal or a lost answer, schedules another renewal after a part of the remaining time.
        self.schedule(&mut self.state());
        match outcome {
            Ok(()) => {
                crate::log::trace!(%queue, message = %self.id, "lease renewed");
                observers.emit(|| Event::Renewed { queue: queue.clone() });
            }
            Err(error) => {
                match &error {
                    // While a transaction of the handler is open, a refusal may only mean that the
                    // transaction has changed the message.
                    LeaseError::Refused(refusal) if !self.is_in_transaction() => {
                        crate::log::warn!(%queue, message = %self.id, error = %chain(refusal), "the storage refused to renew a lease; if it goes on, the job runs again");
                    }
                    _ => crate::log::debug!(%queue, message = %self.id, %error, "lease not renewed"),
                }
                observers.emit(|| Event::NotRenewed { queue: queue.clone(), error: chain(&error) });
            }
        }
    }

    /// Replaces the text and renews the lease. Runs to completion on the renewer's runtime, even if the
    /// caller is dropped.
    pub(crate) async fn save(&self, text: String) -> Result<(), LeaseError> {
        let lease = self.strong()?;
        let saved = async move { lease.save_by(&lease.queue.renewer_store, text).await };
        // The process is ending, and the outcome of the request is unknown.
        self.queue.renewer.run(saved).await.unwrap_or(Err(LeaseError::Uncertain(None)))
    }

    /// Like [`save`](Self::save), but on the caller's runtime. For settling: dropping the caller drops the
    /// whole delivery.
    pub(crate) async fn save_here(&self, text: String) -> Result<(), LeaseError> {
        self.save_by(&self.queue.store, text).await
    }

    async fn save_by(&self, store: &Queues, text: String) -> Result<(), LeaseError> {
        let _turn = self.turn.lock().await;
        if self.is_uncertain() {
            return Err(LeaseError::Uncertain(None));
        }
        if self.resolve_transaction(store).await? {
            return Err(LeaseError::Closed);
        }
        let change = LeaseChange::keeping(self.terms.visibility, Some(text));
        let outcome = self.change(store, change, self.few_tries()).await;
        let mut state = self.state();
        self.schedule(&mut state);
        outcome
    }

    /// Makes the message visible after `delay`, with a new text if `text` is set, and ends the lease.
    pub(crate) async fn release(&self, delay: Duration, text: Option<String>) -> Result<(), LeaseError> {
        self.release_by(&self.queue.store, delay, text).await
    }

    async fn release_by(
        &self,
        store: &Queues,
        delay: Duration,
        text: Option<String>,
    ) -> Result<(), LeaseError> {
        let _turn = self.turn.lock().await;
        let tries = self.settling_tries();
        // The committed text of a transaction says that the job is done, and must stay.
        let text = text.filter(|_| !matches!(self.state().transaction, TransactionState::Tried));
        let change = LeaseChange { visibility: delay, text, ends_lease: true };
        let outcome = self.change(store, change, tries).await;
        let mut state = self.state();
        if matches!(state.phase, Phase::Held | Phase::Uncertain) {
            self.close(&mut state);
        }
        outcome
    }

    /// Releases the message on the renewer's runtime, in the background. For `drop`.
    pub(crate) fn release_later(&self, delay: Duration, text: Option<String>) {
        let Ok(lease) = self.strong() else { return };
        self.queue.renewer.spawn(async move {
            if let Err(error) = lease.release_by(&lease.queue.renewer_store, delay, text).await {
                crate::log::debug!(queue = %lease.queue.name, message = %lease.id, %error, "message not released");
            }
        });
    }

    /// Returns the tries of a change during the lease: few, because the operations behind it need time, too.
    pub(super) fn few_tries(&self) -> Tries {
        let left = self.deadline().saturating_duration_since(Instant::now());
        Tries::until(self.queue.renewer.runtime(), Instant::now() + left / 4, 1, 1).insisting()
    }

    /// Returns the tries of a settlement. After an outage the message would otherwise stay hidden, and may
    /// hold up its key, until the lease ends. The tries end a little before the lease, so that a durable
    /// completion can be recorded before another worker has the message.
    pub(super) fn settling_tries(&self) -> Tries {
        let deadline = self.deadline();
        let left = deadline.saturating_duration_since(Instant::now());
        Tries::persistent_until(self.queue.renewer.runtime(), deadline - (left / 4).min(SETTLE_MARGIN))
    }

    /// Sends an update with the current receipt. If the answer is "not found" after an earlier answer was
    /// lost, the earlier request was applied: this process has lost the receipt, but no other worker has the
    /// message.
    pub(super) async fn change(
        &self,
        store: &Queues,
        change: LeaseChange,
        mut tries: Tries,
    ) -> Result<(), LeaseError> {
        self.check_held()?;
        let LeaseChange { visibility: asked, mut text, ends_lease } = change;
        loop {
            // In a later try, less of the message's life is left.
            let visibility = self.within_life(asked);
            if visibility.is_zero() && !asked.is_zero() {
                // The message is about to expire, and the update would make it visible until then.
                return self.leave_to_expire(ends_lease, tries.is_in_doubt());
            }
            let sent = Instant::now();
            let mut change = UpdateMessage::new(visibility).with_text(text.clone());
            change.ends_lease = ends_lease;
            let message = self.message();
            let limit = share_of(self.deadline(), 3);
            let in_flight = InFlight { lease: self, hidden_until: Some(sent + visibility) };
            let answer = self.with_timeout(limit, store.update(&self.queue.name, &message, change)).await;
            in_flight.answered();
            let error = match answer {
                Ok(updated) => {
                    self.record_applied(updated, sent, visibility);
                    return Ok(());
                }
                Err(error) if error.is_lease_lost() && self.try_receipt_of_transaction() => {
                    // This text is older than the transaction's, which says that the handler has finished.
                    if text.take().is_some() && !ends_lease {
                        return Err(LeaseError::Closed);
                    }
                    continue;
                }
                Err(error) if error.is_lease_lost() => {
                    if error.is_ambiguous() {
                        self.record_unanswered(sent + visibility);
                    }
                    return Err(self.not_found());
                }
                Err(error) => error,
            };
            if error.is_ambiguous() {
                self.record_unanswered(sent + visibility);
            }
            tries.failed(error).await.map_err(LeaseError::of_change)?;
            if Instant::now() >= self.deadline() {
                return Err(if tries.is_in_doubt() { LeaseError::Uncertain(None) } else { LeaseError::Lost });
            }
        }
    }

    fn leave_to_expire(&self, ends_lease: bool, is_in_doubt: bool) -> Result<(), LeaseError> {
        if is_in_doubt {
            return Err(LeaseError::Uncertain(None));
        }
        if ends_lease {
            return Ok(());
        }
        self.lose(self.state(), Loss::Expired);
        Err(LeaseError::Lost)
    }

    fn check_held(&self) -> Result<(), LeaseError> {
        self.check_deletable()?;
        let state = self.state();
        // An answer "not found" would be taken for a loss, although this process has deleted the message.
        let may_be_deleted = state.undecided_deletion.as_ref().is_some_and(StoreError::is_ambiguous);
        match state.phase {
            Phase::Uncertain => Err(LeaseError::Uncertain(None)),
            _ if may_be_deleted => Err(LeaseError::Uncertain(None)),
            _ => Ok(()),
        }
    }

    fn record_applied(&self, updated: Updated, sent: Instant, visibility: Duration) {
        let granted = updated.granted.filter(|granted| *granted < visibility);
        let mut state = self.state();
        state.receipt = updated.receipt;
        state.deadline = sent + granted.unwrap_or(visibility);
        state.length = granted.unwrap_or(self.terms.visibility);
        // The receipt was still valid, so no unanswered update was applied.
        state.unanswered_until = None;
    }

    /// Records that an update got no answer. If it was applied, the message is hidden until `hidden_until`.
    fn record_unanswered(&self, hidden_until: Instant) {
        let mut state = self.state();
        let first = state.unanswered_until.unwrap_or(hidden_until);
        state.unanswered_until = Some(first.min(hidden_until));
    }

    fn not_found(&self) -> LeaseError {
        let mut state = self.state();
        match (state.unanswered_until, state.phase) {
            (Some(hidden_until), Phase::Held | Phase::Uncertain) => {
                state.phase = Phase::Uncertain;
                state.deadline = hidden_until;
                LeaseError::Uncertain(None)
            }
            // A lost lease stays lost, whatever a late answer says about the change.
            (Some(_), Phase::Lost(_) | Phase::Closed) => LeaseError::Uncertain(None),
            (None, _) => {
                self.lose(state, Loss::Taken);
                LeaseError::Lost
            }
        }
    }

    pub(super) async fn with_timeout<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        timeout(limit, call).await.unwrap_or_else(|_| Err(self.no_answer()))
    }

    /// Returns the error of a request that ran out of time.
    pub(super) fn no_answer(&self) -> StoreError {
        let queue = &self.queue.name;
        StoreError::new(StoreErrorKind::Timeout, "change leased message", queue).with_ambiguous(true)
    }

    fn strong(&self) -> Result<std::sync::Arc<Self>, LeaseError> {
        self.weak().upgrade().ok_or(LeaseError::Closed)
    }
}

pub(super) struct LeaseChange {
    visibility: Duration,
    text: Option<String>,
    ends_lease: bool,
}

impl LeaseChange {
    pub(super) fn keeping(visibility: Duration, text: Option<String>) -> Self {
        Self { visibility, text, ends_lease: false }
    }
}

/// An update in flight. If it is dropped without an answer, for example together with its caller's future,
/// the lease becomes uncertain.
struct InFlight<'l> {
    lease: &'l Lease,
    hidden_until: Option<Instant>,
}

impl InFlight<'_> {
    fn answered(mut self) {
        self.hidden_until = None;
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(hidden_until) = self.hidden_until {
            self.lease.record_unanswered(hidden_until);
        }
    }
}

/// Returns the time limit of a request: one `share`-th of the remaining time, so that another try fits.
pub(super) fn share_of(until: Instant, share: u32) -> Duration {
    let left = until.saturating_duration_since(Instant::now());
    (left / share).clamp(Duration::from_millis(10), MAX_REQUEST_TIME)
}

#[cfg(test)]
mod tests;
