//! The worker's memory of jobs that are done although a message of theirs may still be delivered.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;

use crate::envelope::{EventDigest, Identity, IdentityDigest};
use crate::storage::QueueName;
use crate::sync::lock;

/// The maximum number of remembered jobs; the oldest is forgotten first.
const CAPACITY: usize = 10_000;

/// The jobs whose handler finished and of which another message may be delivered. A worker deletes such a message
/// without running it if it is a copy of the same event.
#[derive(Debug, Default)]
pub(super) struct Completed(Mutex<Inner>);

/// A queue, together with the digest of an identity or of an event.
type InQueue<T> = (QueueName, T);

#[derive(Debug, Default)]
struct Inner {
    /// Checked first, because the digest of an event costs reading its payload.
    identities: HashSet<InQueue<IdentityDigest>>,
    events: HashSet<InQueue<EventDigest>>,
    order: VecDeque<InQueue<(IdentityDigest, EventDigest)>>,
}

impl Completed {
    pub(super) fn remember(&self, queue: &QueueName, identity: &Identity, event: EventDigest) {
        let mut inner = lock(&self.0);
        if inner.events.insert((queue.clone(), event)) {
            let identity = identity.digest();
            inner.identities.insert((queue.clone(), identity));
            inner.order.push_back((queue.clone(), (identity, event)));
        }
        if inner.order.len() > CAPACITY
            && let Some((queue, (identity, event))) = inner.order.pop_front()
        {
            inner.events.remove(&(queue.clone(), event));
            inner.identities.remove(&(queue, identity));
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
        !inner.events.is_empty()
            && inner.identities.contains(&(queue.clone(), identity.digest()))
            && inner.events.contains(&(queue.clone(), event()))
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
