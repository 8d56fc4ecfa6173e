//! The states of a blob's lease and the transitions between them.
//!
//! Azure's table ([lease states]), as documented:
//!
//! ```text
//!              acquire                       time
//! Available ────────────► Held ──────────────────────► Expired
//!     ▲  ▲                 │ ▲                          │  │
//!     │  └── release ──────┘ └── renew, acquire ────────┘  │ break
//!     │                    │ break                         ▼
//!     │ release, write     ▼              time
//!     └─────────────── Breaking ──────────────────────► Broken
//! ```
//!
//! A write without lease id takes `Expired` and `Broken` back to `Available`, after which the former holder can
//! no longer renew: somebody has written what it believed was protected.
//!
//! [lease states]: https://learn.microsoft.com/rest/api/storageservices/lease-blob

use std::time::{Duration, SystemTime};

use crate::storage::{LeaseDuration, LeaseId, LeaseState, StoreErrorKind};

/// A blob's lease as it is kept. Time moves it on without a write: ask [`state`](Self::state) what it is now.
///
/// Every method is a pure function of this value, the time and the arguments; the result is the value to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlobLease {
    /// Nobody holds it.
    #[default]
    Available,
    /// Taken, and expired from `until` on.
    Held {
        /// The holder.
        id: LeaseId,
        /// For how long it was taken; a renewal begins this anew.
        duration: LeaseDuration,
        /// When it expires; `None` for an infinite lease.
        until: Option<SystemTime>,
    },
    /// Being broken, and broken from `until` on.
    Breaking {
        /// The holder.
        id: LeaseId,
        /// When the break is complete.
        until: SystemTime,
    },
}

type Refused = StoreErrorKind;

impl BlobLease {
    /// The state at `now`.
    pub fn state(&self, now: SystemTime) -> LeaseState {
        match *self {
            Self::Available => LeaseState::Available,
            Self::Held { until: Some(until), .. } if until <= now => LeaseState::Expired,
            Self::Held { .. } => LeaseState::Leased,
            Self::Breaking { until, .. } if until <= now => LeaseState::Broken,
            Self::Breaking { .. } => LeaseState::Breaking,
        }
    }

    /// Takes the lease. Repeating it with the same id begins the time anew.
    ///
    /// # Errors
    /// `LeaseAlreadyPresent` while another holds it or it is being broken.
    pub fn acquire(
        &self,
        now: SystemTime,
        duration: LeaseDuration,
        proposed: LeaseId,
    ) -> Result<Self, Refused> {
        match self.state(now) {
            LeaseState::Leased if self.id() == Some(proposed) => Ok(held(now, duration, proposed)),
            LeaseState::Leased | LeaseState::Breaking => Err(Refused::LeaseAlreadyPresent),
            LeaseState::Available | LeaseState::Expired | LeaseState::Broken => {
                Ok(held(now, duration, proposed))
            }
        }
    }

    /// Begins the lease's time anew; an expired one comes back to life if nothing was written since.
    ///
    /// # Errors
    /// `LeaseNotPresent`, `LeaseIdMismatch`, `LeaseBroken`.
    pub fn renew(&self, now: SystemTime, lease: LeaseId) -> Result<Self, Refused> {
        match *self {
            Self::Available => Err(Refused::LeaseNotPresent),
            Self::Held { id, .. } | Self::Breaking { id, .. } if id != lease => Err(Refused::LeaseIdMismatch),
            Self::Held { duration, .. } => Ok(held(now, duration, lease)),
            Self::Breaking { .. } => Err(Refused::LeaseBroken),
        }
    }

    /// Changes the id of an active lease; repeating it is accepted. The time goes on.
    ///
    /// # Errors
    /// `LeaseNotPresent`, `LeaseIdMismatch`, `LeaseBroken`.
    pub fn change(&self, now: SystemTime, lease: LeaseId, proposed: LeaseId) -> Result<Self, Refused> {
        match (*self, self.state(now)) {
            (Self::Held { id, duration, until }, LeaseState::Leased) => {
                if id == lease || id == proposed {
                    Ok(Self::Held { id: proposed, duration, until })
                } else {
                    Err(Refused::LeaseIdMismatch)
                }
            }
            (_, LeaseState::Breaking) => Err(Refused::LeaseBroken),
            _ => Err(Refused::LeaseNotPresent),
        }
    }

    /// Gives the lease up, whatever state it is in.
    ///
    /// # Errors
    /// `LeaseNotPresent`, `LeaseIdMismatch`.
    pub fn release(&self, lease: LeaseId) -> Result<Self, Refused> {
        match self.id() {
            None => Err(Refused::LeaseNotPresent),
            Some(id) if id != lease => Err(Refused::LeaseIdMismatch),
            Some(_) => Ok(Self::Available),
        }
    }

    /// Begins to end the lease, or ends it; returns the time left. The shorter of several breaks wins.
    ///
    /// # Errors
    /// `LeaseNotPresent` when nobody has held it.
    pub fn break_within(
        &self,
        now: SystemTime,
        period: Option<Duration>,
    ) -> Result<(Self, Duration), Refused> {
        let until_end = |until: SystemTime| until.duration_since(now).unwrap_or_default();
        let (id, left) = match *self {
            Self::Available => return Err(Refused::LeaseNotPresent),
            Self::Held { id, until, .. } => (id, until.map(until_end)),
            Self::Breaking { id, until } => (id, Some(until_end(until))),
        };
        let left = match (period, left) {
            (Some(period), Some(left)) => period.min(left),
            (period, left) => period.or(left).unwrap_or_default(),
        };
        Ok((Self::Breaking { id, until: now + left }, left))
    }

    /// The lease after a write or delete of the blob under `lease`.
    ///
    /// # Errors
    /// `LeaseIdMissing`, `LeaseIdMismatch`, `LeaseNotPresent`.
    pub fn write(&self, now: SystemTime, lease: Option<LeaseId>) -> Result<Self, Refused> {
        let active = matches!(self.state(now), LeaseState::Leased | LeaseState::Breaking);
        match (active, lease) {
            (true, None) => Err(Refused::LeaseIdMissing),
            (true, Some(lease)) if self.id() == Some(lease) => Ok(*self),
            (true, Some(_)) => Err(Refused::LeaseIdMismatch),
            (false, None) => Ok(Self::Available),
            (false, Some(_)) => Err(Refused::LeaseNotPresent),
        }
    }

    fn id(&self) -> Option<LeaseId> {
        match *self {
            Self::Available => None,
            Self::Held { id, .. } | Self::Breaking { id, .. } => Some(id),
        }
    }
}

fn held(now: SystemTime, duration: LeaseDuration, id: LeaseId) -> BlobLease {
    let until = match duration {
        LeaseDuration::Finite(time) => Some(now + time),
        LeaseDuration::Infinite => None,
    };
    BlobLease::Held { id, duration, until }
}

#[cfg(test)]
mod tests;
