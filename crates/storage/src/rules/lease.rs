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
//! A write without a lease id takes `Expired` and `Broken` back to `Available`. After it the former holder can no
//! longer renew, because the protected blob has changed.
//!
//! [lease states]: https://learn.microsoft.com/rest/api/storageservices/lease-blob

use std::time::{Duration, SystemTime};

use crate::{LeaseDuration, LeaseId, LeaseState, StoreErrorKind};

/// The lease of a blob as it is stored. Time changes its state without a write: [`state`](Self::state) returns the
/// state at a given time.
///
/// Every method is a pure function of this value, the time and the arguments; the result is the value to store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlobLease {
    /// The lease has no holder.
    #[default]
    Available,
    /// The lease was taken, and expires at `until`.
    Held {
        /// The holder.
        id: LeaseId,
        /// The duration for which it was taken; a renewal restarts it.
        duration: LeaseDuration,
        /// The time at which it expires; `None` for an infinite lease.
        until: Option<SystemTime>,
    },
    /// The lease is being broken, and is broken from `until` on.
    Breaking {
        /// The holder.
        id: LeaseId,
        /// The time at which the break is complete.
        until: SystemTime,
    },
}

type Refused = StoreErrorKind;

impl BlobLease {
    /// Returns the state at `now`.
    pub fn state(&self, now: SystemTime) -> LeaseState {
        match *self {
            Self::Available => LeaseState::Available,
            Self::Held { until: Some(until), .. } if until <= now => LeaseState::Expired,
            Self::Held { .. } => LeaseState::Leased,
            Self::Breaking { until, .. } if until <= now => LeaseState::Broken,
            Self::Breaking { .. } => LeaseState::Breaking,
        }
    }

    /// Takes the lease. Repeating the call with the same id restarts the duration.
    ///
    /// # Errors
    /// `LeaseAlreadyPresent` while another holder has it or it is being broken.
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

    /// Restarts the duration of the lease. An expired lease becomes active again if nothing was written since.
    ///
    /// # Errors
    /// `LeaseNotPresent` if there is no lease, `LeaseIdMismatch` for another id, `LeaseBroken` once it is being broken.
    pub fn renew(&self, now: SystemTime, lease: LeaseId) -> Result<Self, Refused> {
        match *self {
            Self::Available => Err(Refused::LeaseNotPresent),
            Self::Held { id, .. } | Self::Breaking { id, .. } if id != lease => Err(Refused::LeaseIdMismatch),
            Self::Held { duration, .. } => Ok(held(now, duration, lease)),
            Self::Breaking { .. } => Err(Refused::LeaseBroken),
        }
    }

    /// Changes the id of an active lease. Repeating the call is accepted. The duration is not restarted.
    ///
    /// # Errors
    /// `LeaseNotPresent` if there is no active lease, `LeaseIdMismatch` for another id, `LeaseBroken` once it is being
    /// broken.
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

    /// Releases the lease in any state.
    ///
    /// # Errors
    /// `LeaseNotPresent` if there is no lease, `LeaseIdMismatch` for another id.
    pub fn release(&self, lease: LeaseId) -> Result<Self, Refused> {
        match self.id() {
            None => Err(Refused::LeaseNotPresent),
            Some(id) if id != lease => Err(Refused::LeaseIdMismatch),
            Some(_) => Ok(Self::Available),
        }
    }

    /// Breaks the lease, now or within the period; returns the time left. The shorter of several breaks is used.
    ///
    /// # Errors
    /// `LeaseNotPresent` if the lease has no holder.
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

    /// Returns the lease after a write or delete of the blob under `lease`.
    ///
    /// # Errors
    /// `LeaseIdMissing` if there is an active lease and none is named, `LeaseIdMismatch` for another id,
    /// `LeaseNotPresent` if there is none.
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

    /// Returns the id of the lease that is held or being broken, even if its time is over.
    pub fn id(&self) -> Option<LeaseId> {
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
