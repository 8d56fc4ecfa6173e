//! Removes a leased message from its queue: by deletion, or into the storage's native dead-letter queue.

use tokio::time::Instant;

use super::operation::{LeaseError, share_of};
use super::owner::{Lease, Loss, Phase};
use crate::storage::{DeadLetterMessage, ExpiredReceipt, StoreError, StoreErrorKind};

impl Lease {
    /// Deletes the message and ends the lease.
    ///
    /// # Errors
    /// [`LeaseError::Uncertain`] if the message may or may not be deleted; after any other error it is not
    /// deleted.
    pub(crate) async fn delete(&self) -> Result<(), LeaseError> {
        let _turn = self.turn.lock().await;
        let first = self.state().undecided_deletion.take();
        let is_in_doubt = first.as_ref().is_some_and(StoreError::is_ambiguous);
        self.check_deletable().map_err(|error| match error {
            // The process stood still after a common request that may have deleted the message.
            LeaseError::Lost if is_in_doubt => LeaseError::Uncertain(None),
            error => error,
        })?;
        let outcome = self.try_removal(MessageRemoval::Delete, first).await;
        self.deleted(&outcome);
        outcome
    }

    /// Moves the message to the storage's native dead-letter queue and ends the lease.
    ///
    /// # Errors
    /// [`LeaseError::Uncertain`] if the message may be in either queue; after any other error it was not
    /// moved.
    pub(crate) async fn dead_letter(&self, letter: &DeadLetterMessage) -> Result<(), LeaseError> {
        let _turn = self.turn.lock().await;
        self.check_deletable()?;
        let outcome = self.try_removal(MessageRemoval::DeadLetter(letter), None).await;
        self.deleted(&outcome);
        outcome
    }

    /// Checks by the state of the lease whether this process may still delete the message.
    pub(super) fn check_deletable(&self) -> Result<(), LeaseError> {
        let state = self.state();
        match state.phase {
            Phase::Closed => Err(LeaseError::Closed),
            Phase::Lost(_) => Err(LeaseError::Lost),
            Phase::Held if Instant::now() >= state.deadline => {
                self.lose(state, Loss::Expired);
                Err(LeaseError::Lost)
            }
            Phase::Held | Phase::Uncertain => Ok(()),
        }
    }

    pub(super) fn deleted(&self, outcome: &Result<(), LeaseError>) {
        let mut state = self.state();
        match outcome {
            Err(LeaseError::Lost) => self.lose(state, Loss::Taken),
            _ => self.close(&mut state),
        }
    }

    /// Removes the message. `first` is the error of the first try, if that was already made.
    async fn try_removal(
        &self,
        removal: MessageRemoval<'_>,
        first: Option<StoreError>,
    ) -> Result<(), LeaseError> {
        let outdated = self.is_uncertain();
        let deadline = self.deadline();
        let mut tries = self.settling_tries();
        let mut failed = first;
        loop {
            let error = match failed.take() {
                Some(error) => error,
                None => match self.remove_once(removal).await {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                },
            };
            if error.is_lease_lost() && self.try_receipt_of_transaction() {
                continue;
            }
            if error.is_lease_lost() {
                return self.interpret_not_found(error.kind(), tries.is_in_doubt(), outdated);
            }
            tries.failed(error).await.map_err(LeaseError::of_change)?;
            // A process that was suspended until now no longer owns the message.
            if Instant::now() >= deadline {
                return Err(if tries.is_in_doubt() { LeaseError::Uncertain(None) } else { LeaseError::Lost });
            }
        }
    }

    async fn remove_once(&self, removal: MessageRemoval<'_>) -> Result<(), StoreError> {
        let queue = &*self.queue;
        let message = self.message();
        let limit = share_of(self.deadline(), 2);
        match removal {
            MessageRemoval::Delete => {
                let removal = queue.store.delete(&queue.name, &message, ExpiredReceipt::Refuse);
                self.with_timeout(limit, removal).await
            }
            MessageRemoval::DeadLetter(letter) => {
                let removal = queue.store.dead_letter(&queue.name, &message, letter.clone());
                self.with_timeout(limit, removal).await
            }
        }
    }

    /// Interprets the answer that the message does not exist, or not under this receipt. The cause may be an
    /// earlier try (`in_doubt`) or an unanswered update that has `outdated` the receipt.
    fn interpret_not_found(
        &self,
        kind: StoreErrorKind,
        in_doubt: bool,
        outdated: bool,
    ) -> Result<(), LeaseError> {
        // While no other worker could lease the message, no other worker can have deleted it.
        let still_ours = Instant::now() < self.deadline();
        match (in_doubt, outdated) {
            (true, false) if still_ours && kind == StoreErrorKind::MessageNotFound => Ok(()),
            (false, false) => Err(LeaseError::Lost),
            _ => Err(LeaseError::Uncertain(None)),
        }
    }
}

/// The way in which a message leaves its queue.
#[derive(Debug, Clone, Copy)]
enum MessageRemoval<'l> {
    Delete,
    /// Into the storage's native dead-letter queue.
    DeadLetter(&'l DeadLetterMessage),
}
