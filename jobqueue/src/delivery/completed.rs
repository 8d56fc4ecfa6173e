//! The worker's memory of jobs that are done although a message of theirs may still be delivered. It ends with the worker; records in blobs
//! outlive it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Mutex;

use crate::envelope::{EventDigest, Identity, IdentityDigest};
use crate::storage::QueueName;
use crate::sync::lock;

/// The maximum number of remembered jobs; the oldest is forgotten first.
const CAPACITY: usize = 10_000;

/// The jobs whose handler finished and of which another message may be delivered. A worker deletes such a message
/// without running it if it is a copy of the same event.
#[derive(Debug, Default)]
pub(super) struct Completed(Mutex<CompletedJobs>);

type InQueue<T> = (QueueName, T);

#[derive(Debug, Default)]
struct CompletedJobs {
    /// The events by identity, which is looked up first: the digest of an event costs reading its payload.
    events: HashMap<InQueue<IdentityDigest>, HashSet<EventDigest>>,
    order: VecDeque<(InQueue<IdentityDigest>, EventDigest)>,
}

impl Completed {
    pub(super) fn remember(&self, queue: &QueueName, identity: &Identity, event: EventDigest) {
        let mut inner = lock(&self.0);
        let identity = (queue.clone(), identity.digest());
        if inner.events.entry(identity.clone()).or_default().insert(event) {
            inner.order.push_back((identity, event));
        }
        if inner.order.len() > CAPACITY
            && let Some((identity, event)) = inner.order.pop_front()
            && let Entry::Occupied(mut events) = inner.events.entry(identity)
        {
            events.get_mut().remove(&event);
            if events.get().is_empty() {
                events.remove();
            }
        }
    }

    /// Returns whether the job is remembered. Calls `event` only if a job of this identity is.
    pub(super) fn contains(
        &self,
        queue: &QueueName,
        identity: &Identity,
        event: impl FnOnce() -> EventDigest,
    ) -> bool {
        let inner = lock(&self.0);
        // Most workers remember none, and need no digest.
        let events = if inner.events.is_empty() {
            None
        } else {
            inner.events.get(&(queue.clone(), identity.digest()))
        };
        events.is_some_and(|events| events.contains(&event()))
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
        let queue = QueueName::new(queue).unwrap();
        completed.contains(&queue, &event.identity(), || event.digest())
    }

    #[test]
    fn remembers_the_newest_and_is_bounded() {
        let (completed, queue) = (Completed::default(), QueueName::new("queue").unwrap());
        let event = |n: usize| event("/shop", &n.to_string(), "task");
        for n in 0..CAPACITY + 5 {
            completed.remember(&queue, &event(n).identity(), event(n).digest());
        }
        assert!(!contains(&completed, "queue", &event(4)) && contains(&completed, "queue", &event(5)));
        assert!(!contains(&completed, "other", &event(5)));
    }

    #[test]
    fn the_older_of_two_events_of_one_identity_is_forgotten_alone() {
        let (completed, queue) = (Completed::default(), QueueName::new("queue").unwrap());
        let (older, newer) = (event("/shop", "1", "task"), event("/shop", "1", "other"));
        completed.remember(&queue, &older.identity(), older.digest());
        completed.remember(&queue, &newer.identity(), newer.digest());
        for n in 2..=CAPACITY {
            let other = event("/shop", &n.to_string(), "task");
            completed.remember(&queue, &other.identity(), other.digest());
        }
        assert!(!contains(&completed, "queue", &older) && contains(&completed, "queue", &newer));
    }

    #[test]
    fn only_a_copy_of_the_same_event_is_known() {
        let (completed, queue) = (Completed::default(), QueueName::new("queue").unwrap());
        let done = event("/shop", "1", "task");
        completed.remember(&queue, &done.identity(), done.digest());
        assert!(contains(&completed, "queue", &done));
        assert!(!contains(&completed, "queue", &event("/stock", "1", "task")), "another source");
        assert!(
            !contains(&completed, "queue", &event("/shop", "1", "other")),
            "another event of the identity"
        );
    }
}
