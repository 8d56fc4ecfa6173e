//! The requested operations, on their way into transactions.

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::task::Work;

/// The maximum number of operations in a transaction; more would delay the first for little gain.
const MAX_OPERATIONS: usize = 1024;

/// The approximate size of a transaction in bytes above which no further operation is added.
const MAX_BYTES: usize = 8 << 20;

/// The approximate size in bytes from which an operation is heavy, so that others overtake it.
const HEAVY_BYTES: usize = 1 << 20;

/// The operations of one transaction.
pub(super) type Tasks = Vec<Box<dyn Work>>;

pub(super) struct Inbox {
    requested: Receiver<Box<dyn Work>>,
    /// Operations that write much. Renewals and ends of leases must not wait behind payloads requested before
    /// them.
    heavy: RefCell<Tasks>,
}

impl Inbox {
    pub(super) fn new(requested: Receiver<Box<dyn Work>>) -> Self {
        Self { requested, heavy: RefCell::default() }
    }

    /// Adds an operation to `tasks`, and any others that have been requested. Waits for it for up to `pause`,
    /// unless heavy operations wait.
    pub(super) fn wait(&self, pause: Duration, tasks: &mut Tasks) -> Result<(), RecvTimeoutError> {
        let has_heavy = !self.heavy.borrow().is_empty();
        match self.requested.recv_timeout(if has_heavy { Duration::ZERO } else { pause }) {
            Ok(task) => {
                self.add(task, tasks);
            }
            Err(_) if has_heavy => {}
            Err(error) => return Err(error),
        }
        self.gather(tasks);
        Ok(())
    }

    /// Adds waiting operations except heavy ones to `tasks`, as far as there is room; returns true if it
    /// added any.
    pub(super) fn gather(&self, tasks: &mut Tasks) -> bool {
        let before = tasks.len();
        let mut weight: usize = tasks.iter().map(|task| task.weight()).sum();
        while tasks.len() < MAX_OPERATIONS && weight < MAX_BYTES {
            let Ok(task) = self.requested.try_recv() else { break };
            weight += self.add(task, tasks);
        }
        tasks.len() > before
    }

    /// Returns the first heavy operations, as many as fit into a transaction.
    pub(super) fn heavy(&self) -> Tasks {
        let mut weight = 0;
        self.take_heavy(|task| {
            let has_room = weight < MAX_BYTES;
            weight += task.weight();
            has_room
        })
    }

    /// Takes out the heavy operations for which `is_meant` returns true.
    pub(super) fn take_heavy(&self, is_meant: impl FnMut(&mut Box<dyn Work>) -> bool) -> Tasks {
        self.heavy.borrow_mut().extract_if(.., is_meant).collect()
    }

    /// Records that the lock was free: an operation counts its wait for the lock only from its next attempt.
    pub(super) fn lock_was_free(&self) {
        self.heavy.borrow_mut().iter_mut().for_each(|task| task.lock_was_free());
    }

    /// Adds an operation to `tasks`, or sets it aside if it is heavy. Returns the weight that was added.
    fn add(&self, task: Box<dyn Work>, tasks: &mut Tasks) -> usize {
        match task.weight() {
            _ if task.is_abandoned() => 0,
            HEAVY_BYTES.. => {
                self.heavy.borrow_mut().push(task);
                0
            }
            weight => {
                tasks.push(task);
                weight
            }
        }
    }
}
