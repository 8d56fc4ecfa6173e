//! Deleting a leased message.

use std::time::Duration;

use tokio::time::Instant;

use super::operation::{LeaseError, MAX_CALL};
use super::owner::{Lease, Loss, Phase};
use crate::storage::{ExpiredReceipt, StoreError, StoreErrorKind, Tries};

impl Lease {
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
}

/// Returns how long a request may take that gets a `share`-th of the time left, so that there is time for another.
pub(super) fn share_of(until: Instant, share: u32) -> Duration {
    let left = until.saturating_duration_since(Instant::now());
    (left / share).clamp(Duration::from_millis(10), MAX_CALL)
}
