//! Deletes the messages of many leases in one request.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::MutexGuard;

use super::operation::{LeaseError, share_of};
use super::owner::Lease;
use crate::storage::{ExpiredReceipt, StoreError};

/// The outcome of a common deletion for one of its messages.
#[derive(Debug)]
pub(crate) enum BatchDeletion {
    /// The lease has ended, with the result that [`delete`](Lease::delete) would return.
    Done(Result<(), LeaseError>),
    /// The lease goes on. Its message must be deleted alone, which can take as long as the lease.
    Alone,
}

/// Deletes the messages of leases of one queue, with the same terms, in one request. Returns an outcome for
/// each lease, in their order.
pub(crate) async fn delete_all(leases: &[Arc<Lease>]) -> Vec<BatchDeletion> {
    let mut outcomes: Vec<_> = leases.iter().map(|_| BatchDeletion::Alone).collect();
    let mut together = Vec::with_capacity(leases.len());
    let mut requested = Vec::with_capacity(leases.len());
    for (index, lease) in leases.iter().enumerate() {
        // A renewal in flight would delay the others.
        let Ok(turn) = lease.turn.try_lock() else { continue };
        match lease.check_deletable() {
            // A receipt that may be outdated needs several answers, and a lease near its end would leave the
            // request no time.
            Ok(()) if lease.is_uncertain() || lease.time_left() < lease.terms.visibility / 4 => {}
            Ok(()) => {
                together.push(index);
                requested.push((&**lease, turn));
            }
            Err(error) => outcomes[index] = BatchDeletion::Done(Err(error)),
        }
    }
    for (index, outcome) in together.into_iter().zip(delete_together(requested).await) {
        outcomes[index] = outcome;
    }
    outcomes
}

/// Sends one request for all leases. A message that may or may not be deleted is left to its own deletion,
/// which can take as long as its lease: the other messages do not wait for that.
async fn delete_together(leases: Vec<(&Lease, MutexGuard<'_, ()>)>) -> Vec<BatchDeletion> {
    let answers = request(&leases.iter().map(|(lease, _)| *lease).collect::<Vec<_>>()).await;
    let decide = |((lease, turn), answer): ((&Lease, MutexGuard<'_, ()>), Result<(), StoreError>)| {
        let decided = match answer {
            Ok(()) => {
                lease.deleted(&Ok(()));
                BatchDeletion::Done(Ok(()))
            }
            Err(error) if is_held_up(&error) => BatchDeletion::Alone,
            Err(error) => {
                lease.state().undecided_deletion = Some(error);
                BatchDeletion::Alone
            }
        };
        // Until here, so that a renewal in between does not take its deletion for a loss.
        drop(turn);
        decided
    };
    leases.into_iter().zip(answers).map(decide).collect()
}

/// Returns whether a message is certainly not deleted, but may be soon: for example, an open transaction
/// holds it up.
fn is_held_up(error: &StoreError) -> bool {
    error.is_retryable() && !error.is_ambiguous() && !error.is_throttled()
}

async fn request(leases: &[&Lease]) -> Vec<Result<(), StoreError>> {
    let Some(first) = leases.first() else { return Vec::new() };
    let messages = leases.iter().map(|lease| lease.message()).collect();
    let limit = leases.iter().map(|lease| share_of(lease.deadline(), 2)).min().unwrap_or(Duration::ZERO);
    let call = first.queue.store.delete_all(&first.queue.name, messages, ExpiredReceipt::Refuse);
    match tokio::time::timeout(limit, call).await {
        Ok(mut answers) => {
            // If the storage returns fewer answers, the outcome of the rest is unknown.
            while answers.len() < leases.len() {
                answers.push(Err(first.no_answer()));
            }
            answers
        }
        Err(_) => leases.iter().map(|lease| Err(lease.no_answer())).collect(),
    }
}

#[cfg(test)]
mod tests;
