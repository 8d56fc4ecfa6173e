//! The lease of a leader: its renewal, and the times at which it ends.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::blob::LeaderBlob;
use crate::storage::{LeaseId, StoreErrorKind};
use crate::sync::lock;

/// The time for which the task of [polled work](super::Leadership::while_polled) may be blocked. Far longer
/// than a lease: a single worker whose handlers block its thread for a minute each keeps its schedules, since
/// a term that ends in the middle of a slot sends the slot again.
const MAX_BLOCKED_TIME: Duration = Duration::from_secs(120);

/// The reason why leadership ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::coordination) enum LeadershipEnd {
    /// The lease could not be renewed in time.
    Expired,
    /// An operator has broken the lease.
    Broken,
    /// Another candidate has the lease, or the blob is gone.
    Taken,
    /// The task of the work was not polled for [`MAX_BLOCKED_TIME`], because its thread is blocked.
    Blocked,
}

/// A lease that this process has acquired.
#[derive(Debug)]
pub(super) struct LeaderLease {
    pub(super) blob: LeaderBlob,
    lease: LeaseId,
    pub(super) term: u64,
    state: Mutex<LeaderLeaseState>,
    /// Fires when the work must end.
    pub(super) ending: CancellationToken,
    /// Fires when the lease is no longer needed.
    pub(super) closed: CancellationToken,
}

#[derive(Debug)]
struct LeaderLeaseState {
    /// The time before the request that began the current lease.
    begun: Instant,
    /// The time at which the leadership ends unless the task of the work is polled before; `None` for work
    /// that may block its thread.
    blocked_at: Option<Instant>,
    end: Option<LeadershipEnd>,
}

impl LeaderLease {
    pub(super) fn new(blob: LeaderBlob, lease: LeaseId, term: u64, begun: Instant) -> Arc<Self> {
        let state = Mutex::new(LeaderLeaseState { begun, blocked_at: None, end: None });
        let (ending, closed) = (CancellationToken::new(), CancellationToken::new());
        Arc::new(Self { blob, lease, term, state, ending, closed })
    }

    fn state(&self) -> MutexGuard<'_, LeaderLeaseState> {
        lock(&self.state)
    }

    pub(super) fn end(&self) -> Option<LeadershipEnd> {
        self.state().end
    }

    /// Returns whether the lease certainly has not expired yet.
    pub(super) fn has_control(&self) -> bool {
        let state = self.state();
        // An expired lease keeps control for the rest of its time.
        let lost = state.end.is_some_and(|end| end != LeadershipEnd::Expired);
        !lost && !self.closed.is_cancelled() && Instant::now() < state.begun + self.blob.lease.mul_f64(0.95)
    }

    /// Returns the time at which control ends unless the lease is renewed.
    pub(super) fn control_until(&self) -> Instant {
        self.state().begun + self.blob.lease.mul_f64(0.95)
    }

    /// Records that the task of the work is polled now.
    pub(super) fn note_polled(&self) {
        self.state().blocked_at = Some(Instant::now() + MAX_BLOCKED_TIME);
    }

    /// Returns the time at which the leadership ends unless the lease is renewed, and the task of the work is
    /// polled, before.
    fn step_down(&self) -> (Instant, LeadershipEnd) {
        let state = self.state();
        let expired = state.begun + self.blob.lease * 5 / 6;
        match state.blocked_at {
            Some(blocked) if blocked < expired => (blocked, LeadershipEnd::Blocked),
            _ => (expired, LeadershipEnd::Expired),
        }
    }

    /// Renews the lease every third of its duration, and releases it when it is closed, or when the task that
    /// would close it is blocked.
    pub(super) async fn renew_until_closed(self: Arc<Self>) {
        let lease = self.blob.lease;
        let mut next = self.state().begun + lease / 3;
        loop {
            if timeout_at(next.min(self.step_down().0), self.closed.cancelled()).await.is_ok() {
                break;
            }
            let (step_down, end) = self.step_down();
            if Instant::now() >= step_down {
                self.finish(end);
                break;
            }
            match self.renew(step_down).await {
                Ok(Some(begun)) => {
                    self.state().begun = begun;
                    next = begun + lease / 3;
                }
                Ok(None) => next = Instant::now() + lease / 15,
                Err(end) => {
                    self.finish(end);
                    break;
                }
            }
        }
        if self.end() != Some(LeadershipEnd::Blocked) {
            self.closed.cancelled().await;
        }
        if self.end() != Some(LeadershipEnd::Taken) {
            self.blob.release(self.lease).await;
        }
    }

    fn finish(&self, end: LeadershipEnd) {
        self.state().end = Some(end);
        self.ending.cancel();
    }

    /// Renews the lease. Returns the time before the request, or `None` if the answer was lost.
    async fn renew(&self, step_down: Instant) -> Result<Option<Instant>, LeadershipEnd> {
        let requested = Instant::now();
        let limit = (self.blob.lease / 6).min(step_down - requested).max(Duration::from_millis(10));
        let call = self.blob.leases.renew_lease(&self.blob.name, &self.lease);
        let Ok(answer) = timeout(limit, call).await else { return Ok(None) };
        let error = match answer {
            Ok(id) if id == self.lease => return Ok(Some(requested)),
            // The storage renewed another owner's lease.
            Ok(_) => return Err(LeadershipEnd::Taken),
            Err(error) => error,
        };
        match error.kind() {
            StoreErrorKind::LeaseBroken | StoreErrorKind::LeaseNotPresent => Err(LeadershipEnd::Broken),
            StoreErrorKind::LeaseIdMismatch
            | StoreErrorKind::LeaseAlreadyPresent
            | StoreErrorKind::BlobNotFound
            | StoreErrorKind::ContainerNotFound => Err(LeadershipEnd::Taken),
            _ => {
                crate::log::debug!(%error, "renewing the leadership failed; trying again");
                Ok(None)
            }
        }
    }
}
