//! The states of a blob's lease and the transitions between them.
//!
//! Azure's table ([lease states]), without breaks and without infinite leases:
//!
//! ```text
//!              acquire                       time
//! Available ────────────► Held ──────────────────────► expired
//!     ▲  ▲                 │ ▲                          │  │
//!     │  └── release ──────┘ └── renew, acquire ────────┘  │
//!     └─────────────────── release, write ────────────────┘
//! ```
//!
//! A write without a lease id makes an expired lease available. Afterwards the former holder can no longer
//! renew, because the protected blob has changed.
//!
//! [lease states]: https://learn.microsoft.com/rest/api/storageservices/lease-blob

use std::time::{Duration, SystemTime};

use crate::{LeaseId, StoreErrorKind};

/// The stored lease of a blob. Time ends it without a write: see [`is_active`](Self::is_active).
///
/// Every method is a pure function of this value, the time and the arguments; its result is the value to
/// store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlobLease {
    /// The lease has no holder.
    #[default]
    Available,
    /// The lease was taken, and expires at `until`.
    Held {
        /// The id of the holder.
        id: LeaseId,
        /// The duration for which the lease was taken; a renewal restarts it.
        duration: Duration,
        /// The time at which the lease expires.
        until: SystemTime,
    },
}

type Refused = StoreErrorKind;

impl BlobLease {
    /// Returns whether the lease is held at `now`.
    pub fn is_active(&self, now: SystemTime) -> bool {
        matches!(*self, Self::Held { until, .. } if now < until)
    }

    /// Takes the lease. Repeating the call with the same id restarts the duration.
    ///
    /// # Errors
    /// `LeaseAlreadyPresent` while another holder has it.
    pub fn acquire(&self, now: SystemTime, duration: Duration, proposed: LeaseId) -> Result<Self, Refused> {
        if self.is_active(now) && self.id() != Some(proposed) {
            return Err(Refused::LeaseAlreadyPresent);
        }
        Ok(Self::Held { id: proposed, duration, until: now + duration })
    }

    /// Restarts the duration of the lease. An expired lease becomes active again if nothing was written since
    /// its end.
    ///
    /// # Errors
    /// `LeaseNotPresent` if there is no lease, `LeaseIdMismatch` if another id holds it.
    pub fn renew(&self, now: SystemTime, lease: LeaseId) -> Result<Self, Refused> {
        match *self {
            Self::Available => Err(Refused::LeaseNotPresent),
            Self::Held { id, .. } if id != lease => Err(Refused::LeaseIdMismatch),
            Self::Held { duration, .. } => Ok(Self::Held { id: lease, duration, until: now + duration }),
        }
    }

    /// Releases the lease, even an expired lease.
    ///
    /// # Errors
    /// `LeaseNotPresent` if there is no lease, `LeaseIdMismatch` if another id holds it.
    pub fn release(&self, lease: LeaseId) -> Result<Self, Refused> {
        match self.id() {
            None => Err(Refused::LeaseNotPresent),
            Some(id) if id != lease => Err(Refused::LeaseIdMismatch),
            Some(_) => Ok(Self::Available),
        }
    }

    /// Returns the lease after a write or delete of the blob under `lease`.
    ///
    /// # Errors
    /// `LeaseIdMissing` if a lease is active and `lease` is `None`, `LeaseIdMismatch` if another id holds it,
    /// `LeaseNotPresent` if `lease` is named but no lease is active.
    pub fn write(&self, now: SystemTime, lease: Option<LeaseId>) -> Result<Self, Refused> {
        match (self.is_active(now), lease) {
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
            Self::Held { id, .. } => Some(id),
        }
    }
}

#[cfg(test)]
mod tests;
