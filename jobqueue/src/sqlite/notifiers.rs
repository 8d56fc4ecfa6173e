//! The bells of a store's queues, and who rings them: the writer for this process's own commits, the watcher for
//! those of others.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::name::QueueName;
use crate::storage::{Notifier, Subscription};
use crate::sync::lock;

/// One bell for each queue somebody listens to.
#[derive(Debug, Default)]
pub(super) struct Notifiers(Mutex<HashMap<QueueName, Entry>>);

#[derive(Debug, Default)]
struct Entry {
    notifier: Notifier,
    /// The count of delayed arrivals for which it has rung.
    rung: i64,
}

/// A queue as the watcher found it.
pub(super) struct Seen {
    /// The count of transactions that put messages which are not visible at once.
    pub(super) delayed: i64,
    /// Whether there is a visible message.
    pub(super) visible: bool,
}

impl Notifiers {
    /// A listener to `queue`.
    pub(super) fn listen(&self, queue: &QueueName) -> Subscription {
        self.lock().entry(queue.clone()).or_default().notifier.subscribe()
    }

    /// Rings for what this process has just committed.
    pub(super) fn ring_own(&self, arrived: &[QueueName]) {
        if arrived.is_empty() {
            return;
        }
        let notifiers = self.lock();
        for queue in arrived {
            if let Some(entry) = notifiers.get(queue) {
                entry.notifier.notify();
            }
        }
    }

    /// The queues somebody listens to.
    pub(super) fn queues(&self) -> Vec<QueueName> {
        self.lock().keys().cloned().collect()
    }

    /// Rings if a message is visible, or delayed ones have arrived for which we have not rung: another process has committed.
    pub(super) fn ring_for_others(&self, queue: &QueueName, seen: &Seen) {
        if let Some(entry) = self.lock().get_mut(queue)
            && (seen.visible || seen.delayed > entry.rung)
        {
            entry.rung = entry.rung.max(seen.delayed);
            entry.notifier.notify();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Entry>> {
        lock(&self.0)
    }
}
