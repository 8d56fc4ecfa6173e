//! The JSON document of `/scale`. A release may add fields; no field changes within a major version.

use std::collections::BTreeMap;

use serde::Serialize;

use super::target::{Desired, Target, workers};
use crate::snapshot::{QueueFigures, Snapshot, round};

/// The answer of `/scale`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ScaleDocument {
    /// The queues by name.
    pub queues: BTreeMap<String, ScaleFigures>,
    /// The queues that could not be read, with the reasons. These are all queues if the records of workers
    /// could not be read.
    pub errors: BTreeMap<String, String>,
    /// The time at which the figures were read, as RFC 3339 in UTC.
    pub as_of: String,
    /// The age of the figures in seconds.
    pub age_seconds: f64,
}

/// The figures of one queue, and the number of workers that it needs. JSON has all of them in one object.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ScaleFigures {
    /// The figures of the queue. JSON rounds fractions to a thousandth.
    #[serde(flatten)]
    pub figures: QueueFigures,
    /// The load of the queue in workers, for autoscalers with a tolerance. It is not rounded: an autoscaler
    /// keeps a queue at zero workers while the load is 0, and a few short jobs are less than a thousandth of
    /// a worker.
    pub load: f64,
    /// The number of workers that the queue needs.
    pub desired: u64,
    /// The number of workers by slots.
    pub desired_by_slots: u64,
    /// The number of workers by the target delay.
    pub desired_by_delay: Option<u64>,
}

impl ScaleDocument {
    /// Returns the figures of all queues of a snapshot, or of the given queue only.
    pub fn of(snapshot: &Snapshot, target: &Target, queue: Option<&str>) -> Self {
        let is_requested = |name: &String| queue.is_none_or(|queue| queue == name);
        let figures = snapshot.queues.iter().filter(|(name, _)| is_requested(name));
        let figures = figures.filter_map(|(name, figures)| {
            let desired = target.desired(snapshot, name)?;
            Some((name.clone(), ScaleFigures::of(figures, desired)))
        });
        let unread = snapshot.workers.as_ref().err();
        let unread = unread.map(|error| format!("the records of workers cannot be read: {error}"));
        let without = snapshot.queues.keys().filter_map(|name| Some((name, unread.as_ref()?)));
        let errors = without.chain(&snapshot.unreadable).filter(|(name, _)| is_requested(name));
        Self {
            queues: figures.collect(),
            errors: errors.map(|(name, error)| (name.clone(), error.clone())).collect(),
            as_of: format!("{:.3}", snapshot.as_of),
            age_seconds: round(snapshot.taken.elapsed().as_secs_f64()),
        }
    }
}

impl ScaleFigures {
    fn of(figures: &QueueFigures, desired: Desired) -> Self {
        Self {
            figures: figures.clone(),
            load: desired.load(),
            desired: desired.workers(),
            desired_by_slots: workers(desired.by_slots),
            desired_by_delay: desired.by_delay.map(workers),
        }
    }
}
