//! The operations that were requested, on their way into transactions.

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::task::Work;

/// The greatest number of operations in one transaction: more would delay the first for little gain.
const MAX_OPERATIONS: usize = 1024;

/// The approximate number of bytes in one transaction above which no further operation is added.
const MAX_BYTES: usize = 8 << 20;

/// The approximate number of bytes from which on an operation is overtaken by others.
const HEAVY: usize = 1 << 20;

/// The operations of one transaction.
pub(super) type Tasks = Vec<Box<dyn Work>>;

pub(super) struct Inbox {
    requested: Receiver<Box<dyn Work>>,
    /// Operations that write much. Renewals and ends of leases must not wait behind the payloads that were requested before them.
    heavy: RefCell<Tasks>,
}

impl Inbox {
    pub(super) fn new(requested: Receiver<Box<dyn Work>>) -> Self {
        Self { requested, heavy: RefCell::default() }
    }

    /// Waits for up to `pause` for an operation, unless heavy ones wait, and adds it to `tasks`, with others that have been requested.
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

    /// Adds waiting operations to `tasks`, as far as there is room, except heavy ones; returns true if there were any.
    pub(super) fn gather(&self, tasks: &mut Tasks) -> bool {
        let before = tasks.len();
        let mut weight: usize = tasks.iter().map(|task| task.weight()).sum();
        while tasks.len() < MAX_OPERATIONS && weight < MAX_BYTES {
            let Ok(task) = self.requested.try_recv() else { break };
            weight += self.add(task, tasks);
        }
        tasks.len() > before
    }

    /// Returns the first heavy operations: those of one transaction.
    pub(super) fn heavy(&self) -> Tasks {
        let mut weight = 0;
        self.take_heavy(|task| {
            let has_room = weight < MAX_BYTES;
            weight += task.weight();
            has_room
        })
    }

    /// Takes the heavy operations out that `is_meant`.
    pub(super) fn take_heavy(&self, is_meant: impl FnMut(&mut Box<dyn Work>) -> bool) -> Tasks {
        self.heavy.borrow_mut().extract_if(.., is_meant).collect()
    }

    /// Notes that the lock was free: what waits has missed it for no longer than from its next try.
    pub(super) fn lock_was_free(&self) {
        self.heavy.borrow_mut().iter_mut().for_each(|task| task.lock_was_free());
    }

    /// Adds an operation to `tasks`, or sets it aside if it is heavy. Returns the weight that was added.
    fn add(&self, task: Box<dyn Work>, tasks: &mut Tasks) -> usize {
        match task.weight() {
            _ if task.is_abandoned() => 0,
            HEAVY.. => {
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
