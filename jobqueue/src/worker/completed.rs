//! Which jobs are done although their message may come back.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

/// The most jobs that are remembered; the oldest is forgotten first.
const CAPACITY: usize = 10_000;

/// The ids of jobs whose handler finished but whose deletion got no answer. If such a message comes back it is deleted
/// without being run again.
#[derive(Debug, Default)]
pub(super) struct Completed(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    ids: HashSet<String>,
    order: VecDeque<String>,
}

impl Completed {
    pub(super) fn remember(&self, queue: &str, id: &str) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = key(queue, id);
        if inner.ids.insert(key.clone()) {
            inner.order.push_back(key);
        }
        if inner.order.len() > CAPACITY
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.ids.remove(&oldest);
        }
    }

    pub(super) fn contains(&self, queue: &str, id: &str) -> bool {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !inner.ids.is_empty() && inner.ids.contains(&key(queue, id))
    }
}

fn key(queue: &str, id: &str) -> String {
    format!("{queue}/{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_the_newest_and_is_bounded() {
        let completed = Completed::default();
        for n in 0..CAPACITY + 5 {
            completed.remember("q", &n.to_string());
        }
        assert!(!completed.contains("q", "4") && completed.contains("q", "5"));
        assert!(!completed.contains("other", "5"));
    }
}
