//! The notifiers of a store's queues. The writer notifies of the messages of this process, the watcher of the
//! messages of other processes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use jobqueue_storage::sync::lock;
use jobqueue_storage::{Notifier, QueueName, Subscription};

#[derive(Debug, Default)]
pub(super) struct Notifiers(Mutex<BTreeMap<QueueName, Entry>>);

#[derive(Debug, Default)]
struct Entry {
    notifier: Notifier,
    /// The count of delayed arrivals for which subscribers were notified.
    notified: i64,
}

/// The state of a queue as the watcher found it.
pub(super) struct QueueState {
    /// The number of transactions that put messages not visible at once.
    pub(super) delayed: i64,
    /// True if the queue has a visible message.
    pub(super) visible: bool,
}

impl Notifiers {
    pub(super) fn subscribe(&self, queue: &QueueName) -> Subscription {
        self.lock().entry(queue.clone()).or_default().notifier.subscribe()
    }

    /// Notifies of messages that this process has committed.
    pub(super) fn notify(&self, arrived: &[QueueName]) {
        if arrived.is_empty() {
            return;
        }
        let notifiers = self.lock();
        arrived.iter().filter_map(|queue| notifiers.get(queue)).for_each(|entry| entry.notifier.notify());
    }

    /// Notifies of messages that are about to be committed, if a subscription waits for them, and returns
    /// whether one does. The get that follows reaches the writer after the messages, and joins their
    /// transaction if it comes in time.
    pub(super) fn wake(&self, queue: &QueueName) -> bool {
        self.lock().get(queue).is_some_and(|entry| entry.notifier.wake())
    }

    pub(super) fn queues(&self) -> Vec<QueueName> {
        self.lock().keys().cloned().collect()
    }

    /// Notifies after a commit of another process: if a message is visible, or if delayed messages have
    /// arrived of which subscribers were not notified.
    pub(super) fn notify_of_others(&self, queue: &QueueName, seen: &QueueState) {
        if let Some(entry) = self.lock().get_mut(queue)
            && (seen.visible || seen.delayed > entry.notified)
        {
            entry.notified = entry.notified.max(seen.delayed);
            entry.notifier.notify();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<QueueName, Entry>> {
        lock(&self.0)
    }
}
