//! The deadlines of all leases of a process, in one ordered map.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::owner::Lease;
use crate::sync::lock;

/// The key of an entry; the number distinguishes equal deadlines.
pub(super) type DeadlineKey = (Instant, u64);

/// Maps deadlines to leases. Inserting and removing each cost a lock and a tree operation. The thread wakes
/// up early only for an entry before the deadline that it sleeps for.
#[derive(Debug, Default)]
pub(super) struct DeadlineQueue {
    inner: Mutex<Deadlines>,
    earlier: Notify,
}

#[derive(Debug, Default)]
struct Deadlines {
    due: BTreeMap<DeadlineKey, Weak<Lease>>,
    next_number: u64,
    /// The leases whose renewal waits to be sent, with the times at which the wait began.
    waiting: VecDeque<(Instant, Weak<Lease>)>,
    asleep_until: Option<Instant>,
}

impl DeadlineQueue {
    fn lock(&self) -> MutexGuard<'_, Deadlines> {
        lock(&self.inner)
    }

    pub(super) fn insert(&self, at: Instant, lease: Weak<Lease>) -> DeadlineKey {
        let mut inner = self.lock();
        inner.next_number += 1;
        let deadline_key = (at, inner.next_number);
        inner.due.insert(deadline_key, lease);
        if inner.asleep_until.is_none_or(|until| at < until) {
            inner.asleep_until = Some(at);
            self.earlier.notify_one();
        }
        deadline_key
    }

    pub(super) fn remove(&self, deadline_key: DeadlineKey) {
        self.lock().due.remove(&deadline_key);
    }

    /// Waits until leases are due, and removes them from the map.
    pub(super) async fn due(&self) -> Vec<Weak<Lease>> {
        loop {
            let sleep_until = {
                let mut inner = self.lock();
                let later = inner.due.split_off(&(Instant::now(), u64::MAX));
                let due = std::mem::replace(&mut inner.due, later);
                if !due.is_empty() {
                    return due.into_values().collect();
                }
                inner.asleep_until = inner.due.keys().next().map(|(at, _)| *at);
                inner.asleep_until
            };
            match sleep_until {
                Some(until) => tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(until) => {}
                    () = self.earlier.notified() => {}
                },
                None => self.earlier.notified().await,
            }
        }
    }

    /// Queues the renewal of a lease behind those that already wait.
    pub(super) fn push_waiting(&self, lease: Weak<Lease>) {
        self.lock().waiting.push_back((Instant::now(), lease));
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.lock().waiting.is_empty()
    }

    /// Removes the lease that has waited for the longest time.
    pub(super) fn next_waiting(&self) -> Option<Weak<Lease>> {
        self.lock().waiting.pop_front().map(|(_, lease)| lease)
    }

    /// Returns the time since the earliest deadline passed, or since the oldest waiting renewal began to
    /// wait, whichever is longer; zero if there is neither.
    pub(super) fn overdue(&self) -> Duration {
        let inner = self.lock();
        let due = inner.due.keys().next().map(|(at, _)| *at);
        let first = due.into_iter().chain(inner.waiting.front().map(|(since, _)| *since)).min();
        first.map(|at| at.elapsed()).unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().due.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn entries_of_one_instant_are_all_due() {
        let deadlines = DeadlineQueue::default();
        let at = Instant::now() + Duration::from_secs(1);
        let keys = [deadlines.insert(at, Weak::new()), deadlines.insert(at, Weak::new())];
        assert_ne!(keys[0], keys[1]);
        assert_eq!(deadlines.due().await.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn earlier_entry_wakes_the_waiter() {
        let deadlines = Arc::new(DeadlineQueue::default());
        let now = Instant::now();
        deadlines.insert(now + Duration::from_secs(100), Weak::new());
        let waiting = tokio::spawn({
            let deadlines = Arc::clone(&deadlines);
            async move {
                deadlines.due().await;
                Instant::now()
            }
        });
        tokio::task::yield_now().await;
        deadlines.insert(now + Duration::from_secs(1), Weak::new());
        assert!(waiting.await.unwrap() < now + Duration::from_secs(2));
    }
}
