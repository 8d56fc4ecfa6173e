//! What can be done to a leased message: renew, save text, release, delete. Each waits for its turn.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::owner::{Lease, Loss, Phase};
use crate::storage::{ExpiredReceipt, QueueStore, StoreError, StoreErrorKind, UpdateMessage, Updated};

/// The longest a single request may take, however long the lease.
const MAX_CALL: Duration = Duration::from_secs(30);

/// Why a touch failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    /// The lease is lost: nothing was changed by this call.
    #[error("the lease on the message is lost; another worker may have it")]
    Lost,
    /// An answer is missing: the change may have been made, and no further one can be.
    #[error("an answer of the storage was lost; whether the lease is still held is unknown")]
    Uncertain(#[source] Option<StoreError>),
    /// The storage refused; the lease is still held.
    #[error("the storage refused the change")]
    Refused(#[source] StoreError),
    /// The message was settled before.
    #[error("the message is settled already")]
    Closed,
}

/// How sure a deletion is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deleted {
    /// The storage said so.
    Certainly,
    /// The storage did not answer, or an earlier missing answer makes the receipt worthless.
    Perhaps,
}

impl Lease {
    /// Sends a renewal, and again while time allows; the keeper calls it.
    pub(super) async fn renew(&self) {
        let _turn = self.turn.lock().await;
        let outcome = self.change(&*self.renewer_store, self.terms.visibility, None, 2).await;
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

    /// Replaces the text and renews. Runs on the keeper's runtime to its end even if the caller is dropped.
    pub(crate) async fn save(&self, text: String) -> Result<(), LeaseError> {
        let lease = self.strong()?;
        let saved = self.renewer.run(async move {
            let _turn = lease.turn.lock().await;
            if lease.is_uncertain() {
                return Err(LeaseError::Uncertain(None));
            }
            let outcome = lease.change(&*lease.renewer_store, lease.terms.visibility, Some(text), 2).await;
            let mut state = lease.state();
            lease.schedule(&mut state);
            outcome
        });
        saved.await.unwrap_or(Err(LeaseError::Lost))
    }

    /// Makes the message visible after `delay`, with a new text if given, and ends the lease.
    pub(crate) async fn release(&self, delay: Duration, text: Option<String>) -> Result<(), LeaseError> {
        let _turn = self.turn.lock().await;
        let outcome = self.change(&*self.store, delay, text, 2).await;
        let mut state = self.state();
        if state.phase == Phase::Held {
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
    pub(crate) async fn delete(&self) -> Result<Deleted, LeaseError> {
        let _turn = self.turn.lock().await;
        self.check_deletable()?;
        let doubtful = self.is_uncertain();
        let outcome = self.try_delete(doubtful, None).await;
        self.deleted(&outcome);
        outcome
    }

    /// Whether the message may still be deleted, as far as this side knows.
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
    pub(super) fn deleted(&self, outcome: &Result<Deleted, LeaseError>) {
        let mut state = self.state();
        match outcome {
            Err(LeaseError::Lost) => self.lose(&mut state, Loss::Taken),
            _ => self.close(&mut state),
        }
    }

    /// Tries twice; `first` is the answer to the first try if it was made already.
    pub(super) async fn try_delete(
        &self,
        doubtful: bool,
        mut first: Option<Result<(), StoreError>>,
    ) -> Result<Deleted, LeaseError> {
        let mut unanswered = None;
        for _ in 0..2 {
            let answer = match first.take() {
                Some(answer) => answer,
                None => {
                    let message = self.message();
                    let call = self.store.delete(&self.queue, &message, self.terms.expired);
                    self.in_time(call, 2).await
                }
            };
            match answer {
                Ok(()) => return Ok(Deleted::Certainly),
                Err(error) if error.is_lease_lost() => {
                    return match (unanswered.is_some(), doubtful, error.kind()) {
                        // The first request did it; only its answer was lost.
                        (true, false, StoreErrorKind::MessageNotFound) => Ok(Deleted::Certainly),
                        // Deleted by our first request, or the receipt was outdated by a renewal without answer.
                        (true, _, _) | (_, true, _) => Ok(Deleted::Perhaps),
                        (false, false, _) => Err(LeaseError::Lost),
                    };
                }
                Err(error) if error.is_ambiguous() || error.is_retryable() => {
                    let wait = error.retry_after().unwrap_or(Duration::from_millis(50));
                    unanswered = error.is_ambiguous().then_some(error).or(unanswered);
                    tokio::time::sleep(wait.min(self.time_left() / 4)).await;
                }
                Err(error) => return Err(LeaseError::Refused(error)),
            }
        }
        match unanswered {
            Some(_) => Ok(Deleted::Perhaps),
            None => Err(LeaseError::Refused(StoreError::new(
                StoreErrorKind::Unavailable,
                "delete message",
                &self.queue,
            ))),
        }
    }

    /// Sends an update with the receipt at hand, at most `tries` times. A missing answer followed by "not found" means
    /// that the first request was applied: the receipt is lost to us, the message is not lost to others.
    async fn change(
        &self,
        store: &dyn QueueStore,
        visibility: Duration,
        text: Option<String>,
        tries: u32,
    ) -> Result<(), LeaseError> {
        self.check_held()?;
        let visibility = self.within_life(visibility);
        let mut refused = None;
        for _ in 0..tries {
            let sent = Instant::now();
            if sent >= self.deadline() {
                break;
            }
            let change = UpdateMessage { visibility, text: text.clone(), expired: self.terms.expired };
            let message = self.message();
            let call = store.update(&self.queue, &message, change);
            match self.in_time(call, 3).await {
                Ok(updated) => return self.applied(updated, sent + visibility),
                Err(error) if error.is_lease_lost() => return Err(self.not_found()),
                Err(error) if error.is_ambiguous() => {
                    self.state().unanswered_since.get_or_insert(sent);
                    refused = Some(error);
                }
                Err(error) if error.is_retryable() => {
                    let wait = error.retry_after().unwrap_or(Duration::from_millis(100));
                    tokio::time::sleep(wait.min(self.time_left() / 4)).await;
                    refused = Some(error);
                }
                Err(error) => return Err(LeaseError::Refused(error)),
            }
        }
        match refused {
            None => Err(LeaseError::Lost),
            Some(error) if error.is_ambiguous() => Err(LeaseError::Uncertain(Some(error))),
            Some(error) => Err(LeaseError::Refused(error)),
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
        state.unanswered_since = None;
        Ok(())
    }

    fn not_found(&self) -> LeaseError {
        let mut state = self.state();
        match state.unanswered_since {
            Some(sent) => {
                state.phase = Phase::Uncertain;
                state.deadline = sent + self.terms.visibility;
                LeaseError::Uncertain(None)
            }
            None => {
                self.lose(&mut state, Loss::Taken);
                LeaseError::Lost
            }
        }
    }

    fn time_left(&self) -> Duration {
        self.deadline().saturating_duration_since(Instant::now())
    }

    /// Gives a request a `share`-th of the time left, so that there is time for another.
    async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
        share: u32,
    ) -> Result<T, StoreError> {
        timeout(self.limit(share), call).await.unwrap_or_else(|_| Err(self.unanswered()))
    }

    /// How long a request may take that gets a `share`-th of the time left.
    pub(super) fn limit(&self, share: u32) -> Duration {
        (self.time_left() / share).clamp(Duration::from_millis(10), MAX_CALL)
    }

    /// The error of a request that was given up.
    pub(super) fn unanswered(&self) -> StoreError {
        StoreError::new(StoreErrorKind::Timeout, "touch message", &self.queue).with_ambiguous(true)
    }

    fn strong(&self) -> Result<std::sync::Arc<Self>, LeaseError> {
        self.weak().upgrade().ok_or(LeaseError::Closed)
    }
}
