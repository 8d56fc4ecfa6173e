//! The process for which a storage is opened that has a connection for each process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jobqueue::Runtime;

use super::disturbance::Disturbance;
use super::ledger::{Fact, Ledger};
use crate::simulation::Process;

/// A simulated process, as the connections of its storage see it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Host {
    /// The name of the process.
    pub name: Arc<str>,
    /// The process itself: its connections must end when it is killed, and receive nothing while it is stopped.
    pub process: Process,
    /// The runtime of the process: its tasks, and its clock, which may be wrong.
    pub runtime: Runtime,
    /// A seed of its own for the randomness of its connections.
    pub seed: u64,
    /// True for the world's own look at the storage, which nothing disturbs.
    pub is_judge: bool,
    pub(super) ledger: Arc<Ledger>,
    pub(super) quiet: Arc<AtomicBool>,
}

impl Host {
    /// Returns whether its connections may be disturbed now.
    pub fn may_fail(&self) -> bool {
        !self.is_judge && !self.quiet.load(Ordering::Relaxed)
    }

    /// Records that a connection of the process was disturbed, which explains later findings.
    pub fn disturbed(&self, text: impl Into<String>) {
        self.ledger.note(&self.name, Fact::Incident(Disturbance::Connection(text.into())));
    }

    /// Returns the time since the world began.
    pub fn now(&self) -> Duration {
        self.ledger.now()
    }
}
