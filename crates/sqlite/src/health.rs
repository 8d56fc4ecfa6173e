//! Decides whether an open store may still be used.

use std::sync::OnceLock;

use super::error::Cause;
use jobqueue_storage::StoreErrorKind;
use jobqueue_storage::log::error;

/// The health of an open store, shared by its threads.
#[derive(Debug)]
pub(super) struct Health {
    process: u32,
    poison: OnceLock<Cause>,
}

impl Health {
    pub(super) fn new() -> Self {
        Self { process: std::process::id(), poison: OnceLock::new() }
    }

    /// Returns whether this process opened the store. A child made by `fork` shares the parent's locks, but
    /// has none of its threads.
    pub(super) fn is_own_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Refuses work after damage, and in a child made by `fork`.
    pub(super) fn check(&self) -> Result<(), Cause> {
        if !self.is_own_process() {
            return Err(Cause::new(
                StoreErrorKind::Stopped,
                "it was opened before fork(), and belongs to the parent process",
            ));
        }
        self.poisoned()
    }

    pub(super) fn poisoned(&self) -> Result<(), Cause> {
        self.poison.get().cloned().map_or(Ok(()), Err)
    }

    /// Stops the store if `cause` makes it unusable: damage in the file, or a failed write or sync, after
    /// which the kernel may have dropped pages that SQLite believes written.
    pub(super) fn note(&self, cause: &Cause) {
        if !cause.is_fatal() {
            return;
        }
        let kept = match cause.kind {
            StoreErrorKind::Stopped if cause.is_of_sqlite() => {
                cause.clone().with_detail("the disk failed earlier; check it first")
            }
            _ => cause.clone(),
        };
        if self.poison.set(kept.ambiguous(false)).is_ok() {
            error!(kind = ?cause.kind, "the store has stopped; open it again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_made_by_fork_is_refused() {
        let health = Health { process: std::process::id().wrapping_add(1), poison: OnceLock::new() };
        assert_eq!(health.check().unwrap_err().kind, StoreErrorKind::Stopped);
        assert!(Health::new().check().is_ok());
    }

    #[test]
    fn damage_stops_everything_and_a_full_disk_does_not() {
        let health = Health::new();
        health.note(&Cause::new(StoreErrorKind::Full, "full"));
        assert!(health.check().is_ok());
        health.note(&Cause::new(StoreErrorKind::Corrupt, "damaged"));
        assert_eq!(health.check().unwrap_err().kind, StoreErrorKind::Corrupt);
    }
}
