//! The process for which a storage is opened that has a connection for each process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jobqueue::Runtime;

use super::ledger::{Fact, Ledger};
use crate::simulation::Process;

/// A simulated process, as the connections of its storage see it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Host {
    pub(super) name: Arc<str>,
    pub(super) process: Process,
    pub(super) runtime: Runtime,
    pub(super) ledger: Arc<Ledger>,
    pub(super) quiet: Arc<AtomicBool>,
    pub(super) seed: u64,
    /// True for the world's own look at the storage, which nothing disturbs.
    pub(super) is_judge: bool,
}

impl Host {
    /// Returns the name of the process.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the process itself: its connections must end when it is killed, and receive nothing while it is stopped.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Returns the runtime of the process: its tasks, and its clock, which may be wrong.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns a seed of its own for the randomness of its connections.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns whether this is the world's own look at the storage.
    pub fn is_judge(&self) -> bool {
        self.is_judge
    }

    /// Returns whether its connections may be disturbed now.
    pub fn may_fail(&self) -> bool {
        !self.is_judge && !self.quiet.load(Ordering::Relaxed)
    }

    /// Records that a connection of the process was disturbed, which explains later findings.
    pub fn disturbed(&self, text: impl Into<String>) {
        self.ledger.note(&self.name, Fact::Incident(text.into()));
    }

    /// Returns the time since the world began.
    pub fn now(&self) -> Duration {
        self.ledger.now()
    }
}
