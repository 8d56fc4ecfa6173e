//! A change of the message that is part of a transaction of the handler: the message has another receipt if, and only if, the transaction commits.

use std::time::Duration;

use tokio::time::Instant;

use super::operation::{Change, LeaseError};
use super::owner::{Lease, TransactionState};
use crate::storage::{MessageRef, StoreError, Updated};

/// The time in which the answer to a renewal arrives that was made before the transaction began.
const ANSWER: Duration = Duration::from_secs(1);

/// The pause between two looks whether it has arrived.
const LOOK: Duration = Duration::from_millis(1);

impl Lease {
    /// Changes the message by `change`, which gets its receipt, within a transaction of the caller's own. It blocks for up to a second if the
    /// answer to a renewal is on its way.
    ///
    /// # Errors
    /// [`LeaseError::Closed`] if an earlier transaction has changed it already.
    pub(crate) fn change_in_transaction(
        &self,
        change: impl Fn(&MessageRef) -> Result<Updated, StoreError>,
    ) -> Result<(), LeaseError> {
        self.check_not_ended()?;
        let began = Instant::now();
        loop {
            let message = self.message();
            let error = match change(&message) {
                Ok(updated) => {
                    let transaction = &mut self.state().transaction;
                    // A receipt of a transaction that is good proves that it has committed.
                    if matches!(transaction, TransactionState::Tried | TransactionState::Over) {
                        return Err(LeaseError::Closed);
                    }
                    *transaction = TransactionState::Open(updated.receipt);
                    return Ok(());
                }
                Err(error) if error.is_lease_lost() => error,
                Err(error) => return Err(LeaseError::Refused(error)),
            };
            // While the transaction holds its lock nobody changes the message. So its receipt is that of a renewal before, or it is lost.
            let awaits_answer = self.turn.try_lock().is_err() && began.elapsed() < ANSWER;
            if self.message() == message {
                let is_uncertain = self.is_uncertain();
                match (awaits_answer, &self.state().transaction) {
                    (true, _) => {}
                    (false, TransactionState::None) if is_uncertain => {
                        return Err(LeaseError::Uncertain(None));
                    }
                    (false, TransactionState::None) => return Err(LeaseError::Lost),
                    (false, _) => return Err(LeaseError::Closed),
                }
                crate::log::debug!(queue = %self.queue, %error, "the receipt is that of a renewal without an answer");
                std::thread::sleep(LOOK);
            }
        }
    }

    /// Returns whether the message was changed in a transaction of which the end is not known.
    pub(crate) fn is_in_transaction(&self) -> bool {
        matches!(self.state().transaction, TransactionState::Open(_) | TransactionState::Tried)
    }

    /// Lets no further transaction change the message: one may still run in a thread that the handler has left. Returns whether one has.
    pub(crate) fn end_transactions(&self) -> bool {
        let transaction = &mut self.state().transaction;
        if matches!(transaction, TransactionState::None) {
            *transaction = TransactionState::Over;
        }
        !matches!(transaction, TransactionState::Over)
    }

    /// Finds out whether the transaction has committed that changed the message, and renews the lease. Waits for the end of one that is open,
    /// as far as the storage does. After an error it may have committed.
    pub(crate) async fn has_committed(&self) -> Result<bool, LeaseError> {
        let _turn = self.turn.lock().await;
        let has_committed = self.find_out().await?;
        self.state().transaction = TransactionState::Over;
        Ok(has_committed)
    }

    /// Does the same for an operation that has the turn. One that has committed stays known.
    pub(super) async fn find_out(&self) -> Result<bool, LeaseError> {
        if !self.is_in_transaction() {
            return Ok(false);
        }
        let renewal = Change::keeping(self.terms.visibility, None);
        let renewed = self.change(&self.store, renewal, self.few_tries()).await;
        let mut state = self.state();
        self.schedule(&mut state);
        renewed?;
        let has_committed = matches!(state.transaction, TransactionState::Tried);
        if !has_committed {
            state.transaction = TransactionState::None;
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
