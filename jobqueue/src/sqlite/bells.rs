//! The bells of a store's queues, and who rings them: the writer for this process's own commits, the watcher for
//! those of others.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::batch::Arrived;
use crate::storage::{Arrivals, Bell};
use crate::vocabulary::name::QueueName;

/// One bell for each queue somebody listens to.
#[derive(Debug, Default)]
pub(super) struct Bells(Mutex<HashMap<QueueName, Entry>>);

#[derive(Debug, Default)]
struct Entry {
    bell: Bell,
    /// The count of arrivals for which it has rung.
    rung: i64,
}

impl Bells {
    /// A listener to `queue`.
    pub(super) fn listen(&self, queue: &QueueName) -> Arrivals {
        self.lock().entry(queue.clone()).or_default().bell.listen()
    }

    /// Rings for what this process has just committed.
    pub(super) fn ring_own(&self, arrived: &[Arrived]) {
        if arrived.is_empty() {
            return;
        }
        let mut bells = self.lock();
        for (queue, arrivals) in arrived {
            if let Some(entry) = bells.get_mut(queue) {
                entry.rung = entry.rung.max(*arrivals);
                entry.bell.ring();
            }
        }
    }

    /// Rings where the file counts more arrivals than we have rung for: another process has committed.
    pub(super) fn ring_for_others(&self, counted: &[(String, i64)]) {
        let mut bells = self.lock();
        for (queue, entry) in bells.iter_mut() {
            let Some((_, arrivals)) = counted.iter().find(|(name, _)| name == queue.as_str()) else {
                continue;
            };
            if *arrivals > entry.rung {
                entry.rung = *arrivals;
                entry.bell.ring();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
