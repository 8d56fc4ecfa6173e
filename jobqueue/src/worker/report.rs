//! The report of a worker that has ended.

use std::process::ExitCode;

use crate::delivery::DeliveryReport;
use crate::job::outcome::Outcome;

/// The counts of a worker's deliveries, returned when the worker has stopped.
///
/// [`Worker::run_until`](crate::Worker::run_until) returns it after a graceful shutdown, and
/// [`Worker::run_until_idle`](crate::Worker::run_until_idle) when no work is left. Each delivery is counted
/// once, by its end; a cancelled delivery is also counted in [`cancelled`](Self::cancelled). A job that
/// needed three attempts counts as two `retried` and one `completed`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "the report tells whether the shutdown was clean"]
#[non_exhaustive]
pub struct Report {
    /// Jobs that were completed.
    pub completed: u64,
    /// Failed attempts that will be retried.
    pub retried: u64,
    /// Messages moved to a dead-letter queue.
    pub dead_lettered: u64,
    /// Deliveries whose messages were put back without costing an attempt: by a shutdown, a snooze, a limit,
    /// or for lack of a handler for the kind. A message that is put back seven times counts seven times.
    pub released: u64,
    /// Deliveries whose lease was lost.
    pub lease_lost: u64,
    /// Jobs that were completed, but whose message may not be deleted.
    pub uncertain: u64,
    /// Messages deleted without a run: because their job had been done before, because their dead letter was
    /// redriven or purged, or, for a job in order, because its sender had cancelled the job.
    pub duplicates: u64,
    /// Deliveries whose messages reached the end of their time to live: their handlers were cancelled, or did
    /// not begin.
    pub expired: u64,
    /// Deliveries whose handlers were cancelled by the shutdown: these ended within the grace, or were
    /// dropped after it.
    pub cancelled: u64,
    /// Deliveries that had not ended when the grace was over: their handlers blocked their threads, their
    /// messages were being deleted, put back or moved, or a hook of their dead letters was running. The
    /// messages become visible again when their leases run out, unless the storage has made or still makes
    /// the change. An abandoned delivery is counted in no other field.
    pub abandoned: u64,
}

impl Report {
    /// Counts a delivery that begins: as abandoned until its end is counted.
    pub(super) fn begin(&mut self) {
        self.abandoned += 1;
    }

    pub(super) fn count(&mut self, ended: &DeliveryReport) {
        self.abandoned -= 1;
        self.cancelled += u64::from(ended.cancelled);
        let counter = match ended.outcome {
            Outcome::Completed => &mut self.completed,
            Outcome::Retried(_) => &mut self.retried,
            Outcome::DeadLettered(_) => &mut self.dead_lettered,
            Outcome::Released(_) => &mut self.released,
            Outcome::LeaseLost => &mut self.lease_lost,
            Outcome::CompletedUncertain => &mut self.uncertain,
            Outcome::Duplicate => &mut self.duplicates,
            Outcome::Expired => &mut self.expired,
            // The enum is non-exhaustive; each of its outcomes has a counter above.
            _ => return,
        };
        *counter += 1;
    }

    /// Returns whether every delivery that was running when the shutdown began ended by itself.
    pub fn is_clean(&self) -> bool {
        self.cancelled == 0 && self.abandoned == 0
    }

    /// Returns 0 after a clean shutdown, and 3 if deliveries were cancelled or abandoned.
    pub fn exit_code(&self) -> ExitCode {
        if self.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(3) }
    }
}
