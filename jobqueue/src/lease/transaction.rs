//! A change of the message that is part of a transaction of the handler: the message has another receipt if, and only if, the transaction commits.

use std::time::Duration;

use tokio::time::Instant;

use super::operation::{LeaseChange, LeaseError};
use super::owner::{Lease, TransactionState};
use crate::storage::{MessageRef, Queues, StoreError, Tries, Updated};

/// The time in which the answer to a renewal arrives that was made before the transaction began.
const RENEWAL_ANSWER_TIME: Duration = Duration::from_secs(1);

/// The longest time for which the end of an open transaction is awaited. A server ends a commit within seconds; a transaction that was forgotten or is
/// prepared is left to the next delivery.
const MAX_COMMIT_WAIT: Duration = Duration::from_secs(10);

/// The pause between two looks whether it has arrived.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A change of the message within a transaction of the caller's own. The caller makes it under the receipt of [`message`](Self::message), and passes on
/// the [answer](Self::answered).
pub(crate) struct TransactionChange<'l> {
    lease: &'l Lease,
    message: MessageRef,
    began: Instant,
}

impl TransactionChange<'_> {
    /// Returns the message and its present receipt.
    pub(crate) fn message(&self) -> &MessageRef {
        &self.message
    }

    /// Takes the answer of the storage. Returns the pause after which the change is made again, under the receipt that the message has then: the answer to
    /// a renewal is on its way. That takes up to a second in all. `None` if the change is made.
    ///
    /// # Errors
    /// [`LeaseError::Closed`] if an earlier transaction has changed the message already; [`LeaseError::Uncertain`] while a renewal has no answer,
    /// because the receipt then says nothing; [`LeaseError::Lost`] if the lease is lost.
    pub(crate) fn answered(
        &mut self,
        answer: Result<Updated, StoreError>,
    ) -> Result<Option<Duration>, LeaseError> {
        let error = match answer {
            Ok(updated) => {
                let transaction = &mut self.lease.state().transaction;
                // A receipt of a transaction that is good proves that it has committed.
                if matches!(transaction, TransactionState::Tried | TransactionState::Over) {
                    return Err(LeaseError::Closed);
                }
                *transaction = TransactionState::Open(updated.receipt);
                return Ok(None);
            }
            Err(error) if error.is_lease_lost() => error,
            Err(error) => return Err(LeaseError::Refused(error)),
        };
        // The receipt was that of a renewal before, whose answer sets it before it gives up the turn, or the lease is lost.
        let awaits_answer = self.lease.turn.try_lock().is_err() && self.began.elapsed() < RENEWAL_ANSWER_TIME;
        let message = self.lease.message();
        if message == self.message {
            let is_uncertain = self.lease.is_uncertain();
            match &self.lease.state().transaction {
                _ if awaits_answer => {}
                TransactionState::Over => return Err(LeaseError::Closed),
                // The receipt may have been refused because of the renewal, or because its transaction was rolled back.
                _ if is_uncertain => return Err(LeaseError::Uncertain(None)),
                TransactionState::None | TransactionState::RolledBack => return Err(LeaseError::Lost),
                TransactionState::Open(_) | TransactionState::Tried => return Err(LeaseError::Closed),
            }
        }
        crate::log::debug!(queue = %self.lease.queue, %error, "the receipt was that of a renewal without an answer");
        self.message = message;
        Ok(Some(POLL_INTERVAL))
    }
}

impl Lease {
    /// Begins a change of the message within a transaction of the caller's own.
    ///
    /// # Errors
    /// The lease has ended.
    pub(crate) fn change_in_transaction(&self) -> Result<TransactionChange<'_>, LeaseError> {
        self.check_not_ended()?;
        Ok(TransactionChange { lease: self, message: self.message(), began: Instant::now() })
    }

    /// Returns whether the message was changed in a transaction of which the end is not known.
    pub(crate) fn is_in_transaction(&self) -> bool {
        matches!(self.state().transaction, TransactionState::Open(_) | TransactionState::Tried)
    }

    /// Lets no further transaction change the message: one may still run in a thread that the handler has left. Returns whether one has.
    pub(crate) fn end_transactions(&self) -> bool {
        let transaction = &mut self.state().transaction;
        let has_changed = !matches!(transaction, TransactionState::None | TransactionState::Over);
        if matches!(transaction, TransactionState::None | TransactionState::RolledBack) {
            *transaction = TransactionState::Over;
        }
        has_changed
    }

    /// Finds out whether the transaction has committed that changed the message, and renews the lease. Waits for the end of one that is open, for a
    /// quarter of the lease and [`MAX_COMMIT_WAIT`] at the longest. After an error it may have committed.
    pub(crate) async fn has_committed(&self) -> Result<bool, LeaseError> {
        let _turn = self.turn.lock().await;
        let has_committed = self.resolve_transaction(&self.store).await?;
        self.state().transaction = TransactionState::Over;
        Ok(has_committed)
    }

    /// Finds out whether the transaction has committed, for an operation that has the turn. The state keeps how it has ended.
    pub(super) async fn resolve_transaction(&self, store: &Queues) -> Result<bool, LeaseError> {
        if !self.is_in_transaction() {
            return Ok(false);
        }
        let renewal = LeaseChange::keeping(self.terms.visibility, None);
        // It is refused until the transaction ends, for instance while the server ends a commit whose answer was lost.
        let now = Instant::now();
        let until = now + (self.deadline().saturating_duration_since(now) / 4).min(MAX_COMMIT_WAIT);
        let tries = Tries::until(self.renewer.runtime(), until, 1, u32::MAX).insisting();
        let renewed = self.change(store, renewal, tries).await;
        let mut state = self.state();
        self.schedule(&mut state);
        renewed?;
        let has_committed = matches!(state.transaction, TransactionState::Tried);
        if !has_committed {
            state.transaction = TransactionState::RolledBack;
        }
        Ok(has_committed)
    }

    /// Takes the receipt of the transaction, because the present one was refused. Returns false if there is none.
    pub(super) fn try_receipt_of_transaction(&self) -> bool {
        let mut state = self.state();
        match std::mem::replace(&mut state.transaction, TransactionState::Tried) {
            TransactionState::Open(receipt) => {
                state.receipt = receipt;
                true
            }
            other => {
                state.transaction = other;
                false
            }
        }
    }
}
