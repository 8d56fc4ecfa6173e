//! A simulated process, for storages to which each process has its own connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jobqueue::Runtime;

use super::disturbance::Disturbance;
use super::ledger::{Fact, Ledger};
use crate::simulation::Process;

/// A simulated process as seen by the connections of its storage. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Host {
    /// The name of the process.
    pub name: Arc<str>,
    /// The process. Its connections must end when it is killed, and receive nothing while it is stopped.
    pub process: Process,
    /// The runtime of the process: its tasks, and its clock, which may be wrong.
    pub runtime: Runtime,
    /// The seed for the randomness of its connections.
    pub seed: u64,
    /// True for the judge, whose access to the storage is not disturbed.
    pub is_judge: bool,
    pub(super) ledger: Arc<Ledger>,
    pub(super) quiet: Arc<AtomicBool>,
}

impl Host {
    /// Returns whether a connection of the process may be disturbed now.
    pub fn may_fail(&self) -> bool {
        !self.is_judge && !self.quiet.load(Ordering::Relaxed)
    }

    /// Records that a connection of the process was disturbed. The record explains later events, so that they
    /// are no findings.
    pub fn disturbed(&self, text: impl Into<String>) {
        self.ledger.note(&self.name, Fact::Incident(Disturbance::Connection(text.into())));
    }

    /// Returns the time since the world began.
    pub fn now(&self) -> Duration {
        self.ledger.now()
    }
}
