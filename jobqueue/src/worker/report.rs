//! Defines what a worker has done, told at its end.

use std::process::ExitCode;

use crate::job::outcome::Outcome;

/// The report of a worker's deliveries, returned when it has stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "the report tells whether the shutdown was clean"]
#[non_exhaustive]
pub struct Report {
    /// Jobs that were done.
    pub completed: u64,
    /// Failed attempts that will be tried again.
    pub retried: u64,
    /// Messages moved to a dead-letter queue.
    pub dead_lettered: u64,
    /// Messages put back without costing an attempt.
    pub released: u64,
    /// Deliveries whose lease was lost.
    pub lease_lost: u64,
    /// Jobs that were done, but whose deletion is uncertain.
    pub uncertain: u64,
    /// Messages deleted because their job had been done before.
    pub duplicates: u64,
    /// Handlers that were cancelled by the shutdown and ended within the grace.
    pub cancelled: u64,
    /// Handlers that did not end even then. Their messages were released.
    pub abandoned: u64,
}

impl Report {
    pub(super) fn count(&mut self, outcome: &Outcome) {
        let counter = match outcome {
            Outcome::Completed => &mut self.completed,
            Outcome::Retried(_) => &mut self.retried,
            Outcome::DeadLettered(_) => &mut self.dead_lettered,
            Outcome::Released(_) => &mut self.released,
            Outcome::LeaseLost => &mut self.lease_lost,
            Outcome::CompletedUncertain => &mut self.uncertain,
            Outcome::Duplicate => &mut self.duplicates,
        };
        *counter += 1;
    }

    /// Returns whether every handler that was running when the shutdown began came to its own end.
    pub fn is_clean(&self) -> bool {
        self.cancelled == 0 && self.abandoned == 0
    }

    /// 0 after a clean shutdown, 3 if handlers were cut off.
    pub fn exit_code(&self) -> ExitCode {
        if self.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(3) }
    }
}
