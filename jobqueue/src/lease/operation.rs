//! Defines what can be done to a leased message: renew, save text, release, delete. Each waits for its turn.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::owner::{Lease, Loss, Phase};
use crate::storage::{ExpiredReceipt, QueueStore, StoreError, StoreErrorKind, Tries, UpdateMessage, Updated};

/// The longest a single request may take, however long the lease.
const MAX_CALL: Duration = Duration::from_secs(30);

/// The reason why an operation on a lease failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    /// The lease is lost: nothing was changed by this call.
    #[error("the lease on the message is lost; another worker may have it")]
    Lost,
    /// An answer is missing: the change may have been made, and no further one can be.
    #[error("an answer of the storage was lost; whether the lease is still held is unknown")]
    Uncertain(#[source] Option<StoreError>),
    /// The storage refused every try; the lease is still held.
    #[error("the storage refused the change")]
    Refused(#[source] StoreError),
    /// The message was settled before.
    #[error("the message is settled already")]
    Closed,
}

impl LeaseError {
    /// The error of a change that failed for good; `error` knows of all its tries.
    pub(super) fn of_change(error: StoreError) -> Self {
        if error.is_ambiguous() { Self::Uncertain(Some(error)) } else { Self::Refused(error) }
    }
}

impl Lease {
    /// Sends a renewal, and once more if there is time. The renewer calls it.
    pub(super) async fn renew(&self) {
        let _turn = self.turn.lock().await;
        let tries = self.few_tries();
        let outcome = self.change(&*self.renewer_store, self.terms.visibility, None, tries).await;
        let mut state = self.state();
        match outcome {
            Ok(()) => tracing::trace!(queue = %self.queue, message = %self.id, "lease renewed"),
            Err(error) => {
                tracing::debug!(queue = %self.queue, message = %self.id, %error, "lease not renewed");
            }
        }
        // Refused or unanswered: again after a part of the time left.
        self.schedule(&mut state);
    }

    /// Replaces the text and renews. Runs on the renewer's runtime to its end even if the caller is dropped.
    pub(crate) async fn save(&self, text: String) -> Result<(), LeaseError> {
        let lease = self.strong()?;
        let saved = self.renewer.run(async move { lease.save_by(&*lease.renewer_store, text).await });
        // The process is ending: what the request did is not known.
        saved.await.unwrap_or(Err(LeaseError::Uncertain(None)))
    }

    /// The same on the caller's runtime, for those that settle: if the caller is dropped, so is the delivery.
    pub(crate) async fn save_here(&self, text: String) -> Result<(), LeaseError> {
        self.save_by(&*self.store, text).await
    }

    async fn save_by(&self, store: &dyn QueueStore, text: String) -> Result<(), LeaseError> {
        let _turn = self.turn.lock().await;
        if self.is_uncertain() {
            return Err(LeaseError::Uncertain(None));
        }
        let outcome = self.change(store, self.terms.visibility, Some(text), self.few_tries()).await;
        let mut state = self.state();
        self.schedule(&mut state);
        outcome
    }

    /// Makes the message visible after `delay`, with a new text if given, and ends the lease.
    pub(crate) async fn release(&self, delay: Duration, text: Option<String>) -> Result<(), LeaseError> {
        let _turn = self.turn.lock().await;
        let tries = Tries::until(self.deadline(), 1, 1).insisting();
        let outcome = self.change(&*self.store, delay, text, tries).await;
        let mut state = self.state();
        if matches!(state.phase, Phase::Held | Phase::Uncertain) {
            self.close(&mut state);
        }
        outcome
    }

    /// Releases in the background, for drops.
    pub(crate) fn release_later(&self, delay: Duration, text: Option<String>) {
        let Ok(lease) = self.strong() else { return };
        self.renewer.spawn(async move {
            if let Err(error) = lease.release(delay, text).await {
                tracing::debug!(queue = %lease.queue, message = %lease.id, %error, "message not released");
            }
        });
    }

    /// Deletes the message and ends the lease.
    ///
    /// # Errors
    /// [`LeaseError::Uncertain`] if no answer tells whether the message is deleted; with all others it is not.
    pub(crate) async fn delete(&self) -> Result<(), LeaseError> {
        let _turn = self.turn.lock().await;
        self.check_deletable()?;
        let outcome = self.try_delete(None).await;
        self.deleted(&outcome);
        outcome
    }

    /// Checks whether the message may still be deleted, as far as this side knows.
    pub(super) fn check_deletable(&self) -> Result<(), LeaseError> {
        let may_be_late = self.terms.expired == ExpiredReceipt::Allow;
        let mut state = self.state();
        match state.phase {
            Phase::Closed => Err(LeaseError::Closed),
            Phase::Lost(Loss::Expired) if may_be_late => Ok(()),
            Phase::Lost(_) => Err(LeaseError::Lost),
            Phase::Held if !may_be_late && Instant::now() >= state.deadline => {
                self.lose(&mut state, Loss::Expired);
                Err(LeaseError::Lost)
            }
            Phase::Held | Phase::Uncertain => Ok(()),
        }
    }

    /// Ends the lease after a deletion.
    pub(super) fn deleted(&self, outcome: &Result<(), LeaseError>) {
        let mut state = self.state();
        match outcome {
            Err(LeaseError::Lost) => self.lose(&mut state, Loss::Taken),
            _ => self.close(&mut state),
        }
    }

    /// Deletes; `first` is the answer to the first try if it was made already.
    pub(super) async fn try_delete(&self, first: Option<StoreError>) -> Result<(), LeaseError> {
        let outdated = self.is_uncertain();
        let delete_by = self.delete_by();
        let mut tries = Tries::until(delete_by, 1, 1).insisting();
        let mut failed = first;
        loop {
            let error = match failed.take() {
                Some(error) => error,
                None => match self.delete_once(delete_by).await {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                },
            };
            if error.is_lease_lost() {
                return self.not_there(error.kind(), tries.is_in_doubt(), outdated);
            }
            tries.failed(error).await.map_err(LeaseError::of_change)?;
            // A process that was stopped meanwhile is no owner any more.
            if Instant::now() >= delete_by {
                return Err(if tries.is_in_doubt() { LeaseError::Uncertain(None) } else { LeaseError::Lost });
            }
        }
    }

    async fn delete_once(&self, delete_by: Instant) -> Result<(), StoreError> {
        let message = self.message();
        let limit = share_of(delete_by, 2);
        self.within(limit, self.store.delete(&self.queue, &message, self.terms.expired)).await
    }

    /// Returns until when the message may be deleted: as long as it is leased; if lateness is allowed, for a request's time more.
    pub(super) fn delete_by(&self) -> Instant {
        match self.terms.expired {
            ExpiredReceipt::Refuse => self.deadline(),
            ExpiredReceipt::Allow => {
                self.deadline().max(Instant::now() + self.terms.visibility.min(MAX_CALL))
            }
        }
    }

    /// Interprets the answer that there is no such message, or not under this receipt. An earlier try may be the reason (`in_doubt`), or an
    /// update without answer that has `outdated` the receipt.
    fn not_there(&self, kind: StoreErrorKind, in_doubt: bool, outdated: bool) -> Result<(), LeaseError> {
        // While nobody else could have it, nobody else can have deleted it.
        let still_ours = Instant::now() < self.deadline();
        match (in_doubt, outdated) {
            (true, false) if still_ours && kind == StoreErrorKind::MessageNotFound => Ok(()),
            (false, false) => Err(LeaseError::Lost),
            _ => Err(LeaseError::Uncertain(None)),
        }
    }

    /// The tries of a change while the lease goes on: what waits for its turn behind them must have its time too.
    fn few_tries(&self) -> Tries {
        let left = self.deadline().saturating_duration_since(Instant::now());
        Tries::until(Instant::now() + left / 4, 1, 1).insisting()
    }

    /// Sends an update with the receipt at hand. A missing answer followed by "not found" means that an earlier request was
    /// applied: the receipt is lost to us, the message is not lost to others.
    async fn change(
        &self,
        store: &dyn QueueStore,
        visibility: Duration,
        text: Option<String>,
        mut tries: Tries,
    ) -> Result<(), LeaseError> {
        self.check_held()?;
        let visibility = self.within_life(visibility);
        loop {
            let sent = Instant::now();
            let change = UpdateMessage { visibility, text: text.clone(), expired: self.terms.expired };
            let message = self.message();
            let limit = share_of(self.deadline(), 3);
            let in_flight = InFlight { lease: self, hidden_until: Some(sent + visibility) };
            let answer = self.within(limit, store.update(&self.queue, &message, change)).await;
            in_flight.answered();
            let error = match answer {
                Ok(updated) => return self.applied(updated, sent + visibility),
                Err(error) if error.is_lease_lost() => return Err(self.not_found()),
                Err(error) => error,
            };
            if error.is_ambiguous() {
                self.unanswered(sent + visibility);
            }
            tries.failed(error).await.map_err(LeaseError::of_change)?;
            if Instant::now() >= self.deadline() {
                return Err(if tries.is_in_doubt() { LeaseError::Uncertain(None) } else { LeaseError::Lost });
            }
        }
    }

    fn check_held(&self) -> Result<(), LeaseError> {
        let mut state = self.state();
        match state.phase {
            Phase::Held if Instant::now() < state.deadline => Ok(()),
            Phase::Held => {
                self.lose(&mut state, Loss::Expired);
                Err(LeaseError::Lost)
            }
            Phase::Uncertain => Err(LeaseError::Uncertain(None)),
            Phase::Lost(_) => Err(LeaseError::Lost),
            Phase::Closed => Err(LeaseError::Closed),
        }
    }

    fn applied(&self, updated: Updated, deadline: Instant) -> Result<(), LeaseError> {
        let mut state = self.state();
        state.receipt = updated.receipt;
        state.deadline = deadline;
        // The receipt was still good: no update without answer was applied.
        state.unanswered_until = None;
        Ok(())
    }

    /// Notes that an update has no answer; if it was applied, the message is hidden until `hidden_until`.
    fn unanswered(&self, hidden_until: Instant) {
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
            // What is lost stays lost, whatever the late answer means for the change.
            (Some(_), Phase::Lost(_) | Phase::Closed) => LeaseError::Uncertain(None),
            (None, _) => {
                self.lose(&mut state, Loss::Taken);
                LeaseError::Lost
            }
        }
    }

    /// Gives a request at most `limit`.
    pub(super) async fn within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        timeout(limit, call).await.unwrap_or_else(|_| Err(self.no_answer()))
    }

    /// The error of a request that was given up.
    pub(super) fn no_answer(&self) -> StoreError {
        StoreError::new(StoreErrorKind::Timeout, "change leased message", &self.queue).with_ambiguous(true)
    }

    fn strong(&self) -> Result<std::sync::Arc<Self>, LeaseError> {
        self.weak().upgrade().ok_or(LeaseError::Closed)
    }
}

/// An update under way. Dropped without an answer, as with the future of its caller, it leaves the lease in doubt.
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
            self.lease.unanswered(hidden_until);
        }
    }
}

/// Returns how long a request may take that gets a `share`-th of the time left, so that there is time for another.
pub(super) fn share_of(until: Instant, share: u32) -> Duration {
    let left = until.saturating_duration_since(Instant::now());
    (left / share).clamp(Duration::from_millis(10), MAX_CALL)
}

#[cfg(test)]
mod tests;
