//! The worker's memory of finished jobs of which another message may still be delivered. It ends with the
//! worker; records in blobs outlive it.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;

use crate::envelope::EventDigest;
use crate::storage::QueueName;
use crate::sync::lock;

/// The maximum number of remembered jobs; the oldest is forgotten first.
const CAPACITY: usize = 10_000;

/// The finished jobs of which another message may be delivered. A worker deletes such a message without
/// running it if it is a copy of the same event.
#[derive(Debug, Default)]
pub(super) struct Completed(Mutex<CompletedJobs>);

#[derive(Debug, Default)]
struct CompletedJobs {
    known: HashSet<(QueueName, EventDigest)>,
    order: VecDeque<(QueueName, EventDigest)>,
}

impl Completed {
    pub(super) fn remember(&self, queue: &QueueName, event: EventDigest) {
        let mut jobs = lock(&self.0);
        let job = (queue.clone(), event);
        if jobs.known.insert(job.clone()) {
            jobs.order.push_back(job);
        }
        if jobs.order.len() > CAPACITY
            && let Some(oldest) = jobs.order.pop_front()
        {
            jobs.known.remove(&oldest);
        }
    }

    /// Returns whether the job is remembered. Most workers remember none; they skip the digest, which reads
    /// the payload.
    pub(super) fn contains(&self, queue: &QueueName, event: impl FnOnce() -> EventDigest) -> bool {
        if lock(&self.0).known.is_empty() {
            return false;
        }
        // Computed without the lock, which all deliveries of the worker share.
        let job = (queue.clone(), event());
        lock(&self.0).known.contains(&job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::{Envelope, Payload};

    fn event(source: &str, id: &str, kind: &str) -> Envelope {
        Envelope::new(id, source, kind, Payload::None)
    }

    fn contains(completed: &Completed, queue: &str, event: &Envelope) -> bool {
        completed.contains(&QueueName::new(queue).unwrap(), || event.digest())
    }

    #[test]
    fn remembers_the_newest_and_is_bounded() {
        let (completed, queue) = (Completed::default(), QueueName::new("queue").unwrap());
        let event = |n: usize| event("/shop", &n.to_string(), "task");
        for n in 0..CAPACITY + 5 {
            completed.remember(&queue, event(n).digest());
        }
        assert!(!contains(&completed, "queue", &event(4)), "forgotten, as one of the five oldest");
        assert!(contains(&completed, "queue", &event(5)));
        assert!(!contains(&completed, "other", &event(5)));
    }

    #[test]
    fn only_a_copy_of_the_same_event_is_known() {
        let (completed, queue) = (Completed::default(), QueueName::new("queue").unwrap());
        let done = event("/shop", "1", "task");
        completed.remember(&queue, done.digest());
        assert!(contains(&completed, "queue", &done));
        assert!(!contains(&completed, "queue", &event("/stock", "1", "task")), "another source");
        assert!(
            !contains(&completed, "queue", &event("/shop", "1", "other")),
            "another event of the identity"
        );
    }
}
