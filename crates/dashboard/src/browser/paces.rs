//! The pace of each queue, from the looks of the last two minutes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jobqueue_admin::{QueueCounts, QueuePace};
use tokio::time::Instant;

use crate::snapshot::Snapshot;

/// The time over which a pace is measured.
const WINDOW: Duration = Duration::from_secs(120);
/// The least time between two looks that are kept, besides the last one: workers write their counts at this
/// interval by default.
const MIN_DISTANCE: Duration = Duration::from_secs(15);

/// The counts of each queue, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Paces {
    queues: BTreeMap<String, VecDeque<QueueCounts>>,
    taken: Option<Instant>,
}

impl Paces {
    /// Adds the counts of a snapshot, unless they were added before.
    pub(crate) fn look(&mut self, snapshot: &Snapshot) {
        if self.taken.is_some_and(|taken| taken >= snapshot.taken) {
            return;
        }
        self.taken = Some(snapshot.taken);
        // Queues that are deleted are forgotten.
        let mut before = std::mem::take(&mut self.queues);
        let workers = snapshot.workers.as_deref().ok();
        for queue in &snapshot.overviews {
            let mut looks = before.remove(&queue.name).unwrap_or_default();
            looks.retain(|look| snapshot.taken.saturating_duration_since(look.taken()) <= WINDOW);
            let mut newest = looks.iter().rev().map(QueueCounts::taken);
            let distance = newest.next().zip(newest.next());
            let distance = distance.map(|(last, before)| last.saturating_duration_since(before));
            if distance.is_some_and(|distance| distance < MIN_DISTANCE) {
                looks.pop_back();
            }
            looks.push_back(QueueCounts::of(snapshot.taken, queue, workers));
            self.queues.insert(queue.name.clone(), looks);
        }
    }

    /// Returns the pace of a queue since the first look of the window from which its rate is known.
    pub(crate) fn of_queue(&self, queue: &str) -> QueuePace {
        let Some((looks, last)) = self.queues.get(queue).and_then(|looks| Some((looks, looks.back()?)))
        else {
            return QueuePace::default();
        };
        let mut paces = looks.iter().map(|look| last.since(look));
        let first = paces.next().unwrap_or_default();
        if first.ended_per_second.is_some() {
            return first;
        }
        paces.find(|pace| pace.ended_per_second.is_some()).unwrap_or(first)
    }
}
