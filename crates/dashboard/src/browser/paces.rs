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

/// The looks of each queue.
#[derive(Debug, Default)]
pub(crate) struct Paces {
    queues: BTreeMap<String, QueueLooks>,
    taken: Option<Instant>,
}

/// The looks of a queue within the window.
#[derive(Debug, Default)]
struct QueueLooks {
    /// The counts, oldest first.
    looks: VecDeque<QueueCounts>,
    /// The greatest length within the window, and the time of the last look that has shown it, also if its
    /// counts are no longer kept.
    longest: Option<(u64, Instant)>,
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
            looks.add(QueueCounts::of(snapshot.taken, queue, workers));
            self.queues.insert(queue.name.clone(), looks);
        }
    }

    /// Returns the pace of a queue since the first look of the window from which its rate is known.
    pub(crate) fn of_queue(&self, queue: &str) -> QueuePace {
        self.queues.get(queue).and_then(QueueLooks::pace).unwrap_or_default()
    }
}

impl QueueLooks {
    fn add(&mut self, look: QueueCounts) {
        let taken = look.taken();
        let is_recent = |at: Instant| taken.saturating_duration_since(at) <= WINDOW;
        self.looks.retain(|look| is_recent(look.taken()));
        let mut newest = self.looks.iter().rev().map(QueueCounts::taken);
        let distance = newest.next().zip(newest.next());
        let distance = distance.map(|(last, before)| last.saturating_duration_since(before));
        if distance.is_some_and(|distance| distance < MIN_DISTANCE) {
            self.looks.pop_back();
        }
        self.looks.push_back(look);
        let longest = self.longest.filter(|(_, at)| is_recent(*at));
        let lengths = self.looks.iter().filter_map(|look| Some((look.length()?, look.taken())));
        self.longest = lengths.chain(longest).max();
    }

    fn pace(&self) -> Option<QueuePace> {
        let last = self.looks.back()?;
        let mut paces = self.looks.iter().map(|look| last.since(look));
        let first = paces.next().unwrap_or_default();
        let is_known = |pace: &QueuePace| pace.ended_per_second.is_some();
        let known = if is_known(&first) { None } else { paces.find(is_known) };
        let mut pace = known.unwrap_or(first);
        pace.growth_per_second = pace.growth_per_second.and_then(|growth| self.growth(last, growth));
        Some(pace)
    }

    /// Returns the growth of a queue that has grown by `growth` per second since a look. If it got shorter
    /// since a later look, as after many jobs were sent at once, that is its growth, unless that look was
    /// just taken: then the growth is unknown.
    fn growth(&self, last: &QueueCounts, growth: f64) -> Option<f64> {
        let ((longest, at), length) = (self.longest?, last.length()?);
        if growth < 0.0 || length >= longest {
            return Some(growth);
        }
        let time = last.taken().saturating_duration_since(at);
        (time >= MIN_DISTANCE).then(|| (length as f64 - longest as f64) / time.as_secs_f64())
    }
}
