//! A change of the message within a transaction of the handler: the message gets a new receipt if, and only
//! if, the transaction commits.

use std::time::Duration;

use tokio::time::Instant;

use super::operation::{LeaseChange, LeaseError};
use super::owner::{Lease, TransactionState};
use crate::storage::{MessageRef, Queues, StoreError, Tries, Updated};

/// The maximum wait for the answer to a renewal that was sent before the transaction's change.
const RENEWAL_ANSWER_TIME: Duration = Duration::from_secs(1);

/// The maximum wait for the end of an open transaction. A server ends a commit within seconds; a transaction
/// that is prepared, or was forgotten, is left to the next delivery.
const MAX_COMMIT_WAIT: Duration = Duration::from_secs(10);

/// The pause between two checks for the answer to a renewal.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A change of the message within the caller's transaction. The caller makes the change under the receipt of
/// [`message`](Self::message), and passes the [answer](Self::answered) on.
pub(crate) struct TransactionChange<'l> {
    lease: &'l Lease,
    message: MessageRef,
    began: Instant,
}

impl TransactionChange<'_> {
    pub(crate) fn message(&self) -> &MessageRef {
        &self.message
    }

    /// Takes the storage's answer to the change. Returns `None` if the change is made. Otherwise a renewal
    /// has replaced the receipt: returns the pause after which the change must be repeated, under the receipt
    /// that [`message`](Self::message) has then. The pauses take up to a second in total.
    ///
    /// # Errors
    /// [`LeaseError::Closed`] if an earlier transaction has already changed the message;
    /// [`LeaseError::Uncertain`] while a renewal has no answer, because the refused receipt then proves
    /// nothing; [`LeaseError::Lost`] if the lease is lost.
    pub(crate) fn answered(
        &mut self,
        answer: Result<Updated, StoreError>,
    ) -> Result<Option<Duration>, LeaseError> {
        let error = match answer {
            Ok(updated) => {
                let transaction = &mut self.lease.state().transaction;
                // If the receipt of an earlier transaction is valid, that transaction has committed.
                if matches!(transaction, TransactionState::Tried | TransactionState::Over) {
                    return Err(LeaseError::Closed);
                }
                *transaction = TransactionState::Open(updated.receipt);
                return Ok(None);
            }
            Err(error) if error.is_lease_lost() => error,
            Err(error) => return Err(LeaseError::Refused(error)),
        };
        // Either the lease is lost, or a renewal has replaced the receipt. The renewal's answer sets the new
        // receipt before the renewal releases its turn.
        let is_under_way = self.lease.turn.try_lock().is_err();
        let awaits_answer = is_under_way && self.began.elapsed() < RENEWAL_ANSWER_TIME;
        let message = self.lease.message();
        if message == self.message {
            let is_uncertain = is_under_way || self.lease.is_uncertain();
            match &self.lease.state().transaction {
                _ if awaits_answer => {}
                TransactionState::Over => return Err(LeaseError::Closed),
                // The receipt may have been refused because of a renewal, or because its transaction was
                // rolled back.
                _ if is_uncertain => return Err(LeaseError::Uncertain(None)),
                TransactionState::None | TransactionState::RolledBack => return Err(LeaseError::Lost),
                TransactionState::Open(_) | TransactionState::Tried => return Err(LeaseError::Closed),
            }
        }
        crate::log::debug!(queue = %self.lease.queue.name, %error, "the receipt was that of a renewal without an answer");
        self.message = message;
        Ok(Some(POLL_INTERVAL))
    }
}

impl Lease {
    /// Begins a change of the message within the caller's transaction.
    pub(crate) fn change_in_transaction(&self) -> Result<TransactionChange<'_>, LeaseError> {
        self.check_not_ended()?;
        Ok(TransactionChange { lease: self, message: self.message(), began: Instant::now() })
    }

    /// Returns whether the message was changed in a transaction whose outcome is not known.
    pub(crate) fn is_in_transaction(&self) -> bool {
        matches!(self.state().transaction, TransactionState::Open(_) | TransactionState::Tried)
    }

    /// Prevents further transactions from changing the message: one may still run in a thread that the
    /// handler has left behind. Returns whether a transaction has changed the message, committed or not.
    pub(crate) fn end_transactions(&self) -> bool {
        let transaction = &mut self.state().transaction;
        let has_changed = !matches!(transaction, TransactionState::None | TransactionState::Over);
        if matches!(transaction, TransactionState::None | TransactionState::RolledBack) {
            *transaction = TransactionState::Over;
        }
        has_changed
    }

    /// Returns whether the transaction that changed the message has committed, and renews the lease. Waits
    /// for the end of an open transaction, for at most a quarter of the lease and [`MAX_COMMIT_WAIT`]. After
    /// an error the transaction may have committed.
    pub(crate) async fn has_committed(&self) -> Result<bool, LeaseError> {
        let _turn = self.turn.lock().await;
        let has_committed = self.resolve_transaction(&self.queue.store).await?;
        self.state().transaction = TransactionState::Over;
        Ok(has_committed)
    }

    /// Does the same for an operation that has the turn. The state records the outcome of the transaction.
    pub(super) async fn resolve_transaction(&self, store: &Queues) -> Result<bool, LeaseError> {
        if !self.is_in_transaction() {
            return Ok(false);
        }
        let renewal = LeaseChange::keeping(self.terms.visibility, None);
        // The renewal is refused until the transaction ends, for example while the server is ending a commit
        // whose answer was lost.
        let now = Instant::now();
        let until = now + (self.deadline().saturating_duration_since(now) / 4).min(MAX_COMMIT_WAIT);
        let tries = Tries::until(self.queue.renewer.runtime(), until, 1, u32::MAX).insisting();
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

    /// Switches to the transaction's receipt, because the current receipt was refused. Returns false if there
    /// is none.
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
