//! The notifiers of a store's queues. The writer notifies of this process's own commits, the watcher of those of
//! others.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use super::batch::Arrived;
use jobqueue_storage::QueueName;
use jobqueue_storage::sync::lock;
use jobqueue_storage::{Notifier, Subscription};

/// One notifier for each queue that has a subscription.
#[derive(Debug, Default)]
pub(super) struct Notifiers(Mutex<HashMap<QueueName, Entry>>);

#[derive(Debug, Default)]
struct Entry {
    notifier: Notifier,
    /// The count of delayed arrivals for which subscribers were notified.
    notified: i64,
    /// True if the queue may have messages of groups, as a commit of this process has shown.
    has_groups: bool,
}

/// The state of a queue as the watcher found it.
pub(super) struct Seen {
    /// The count of transactions that put messages which are not visible at once.
    pub(super) delayed: i64,
    /// True if the queue has a visible message.
    pub(super) visible: bool,
}

impl Notifiers {
    pub(super) fn subscribe(&self, queue: &QueueName) -> Subscription {
        self.lock().entry(queue.clone()).or_default().notifier.subscribe()
    }

    /// Notifies of the messages that this process has just committed.
    pub(super) fn notify_own(&self, arrived: &[Arrived]) {
        if arrived.is_empty() {
            return;
        }
        let mut notifiers = self.lock();
        for Arrived { queue, has_groups } in arrived {
            if let Some(entry) = notifiers.get_mut(queue) {
                entry.has_groups |= has_groups;
                entry.notifier.notify();
            }
        }
    }

    /// Notifies that a deletion is about to be requested after which the next of a group may have its turn. A get that is
    /// requested at once joins the transaction of the deletion: one commit, and one sync, ends a job and leases the next.
    pub(super) fn notify_of_deletion(&self, queue: &QueueName) {
        if let Some(entry) = self.lock().get(queue).filter(|entry| entry.has_groups) {
            entry.notifier.notify();
        }
    }

    /// Returns the queues that have a subscription.
    pub(super) fn queues(&self) -> Vec<QueueName> {
        self.lock().keys().cloned().collect()
    }

    /// Notifies if a message is visible, or if delayed messages have arrived of which subscribers were not notified:
    /// another process has committed.
    pub(super) fn notify_of_others(&self, queue: &QueueName, seen: &Seen) {
        if let Some(entry) = self.lock().get_mut(queue)
            && (seen.visible || seen.delayed > entry.notified)
        {
            entry.notified = entry.notified.max(seen.delayed);
            entry.notifier.notify();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Entry>> {
        lock(&self.0)
    }
}
