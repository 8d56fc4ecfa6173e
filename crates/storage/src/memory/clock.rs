//! The clock of the memory storage.

use std::sync::Mutex;
use std::time::SystemTime;

use crate::runtime::Runtime;
use crate::sync::lock;

/// A clock that never goes backwards: after a step back it stands still until the former time is reached
/// again.
#[derive(Debug)]
pub(super) struct SteadyClock {
    runtime: Runtime,
    latest: Mutex<SystemTime>,
}

impl SteadyClock {
    pub(super) fn new(runtime: Runtime) -> Self {
        let latest = Mutex::new(runtime.now());
        Self { runtime, latest }
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(super) fn now(&self) -> SystemTime {
        let mut latest = lock(&self.latest);
        *latest = self.runtime.now().max(*latest);
        *latest
    }
}
