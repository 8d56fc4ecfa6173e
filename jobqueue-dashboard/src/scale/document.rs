//! The JSON that `/scale` answers with. Fields may be added; none changes within a major version.

use std::collections::BTreeMap;

use serde::Serialize;

use super::target::{Desired, Target, workers};
use crate::snapshot::{QueueFigures, Snapshot};

/// The answer of `/scale`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ScaleDocument {
    /// The queues by name.
    pub queues: BTreeMap<String, ScaleFigures>,
    /// The queues that could not be read, with the reasons.
    pub errors: BTreeMap<String, String>,
    /// The time at which the figures were read, as RFC 3339 in UTC.
    pub as_of: String,
    /// The age of the figures in seconds.
    pub age_seconds: f64,
}

/// The figures of one queue. [`QueueFigures`] says more of each.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ScaleFigures {
    /// About how many messages there are, invisible ones included.
    pub length: u64,
    /// The jobs that run.
    pub in_flight: u64,
    /// The jobs that a further worker could start now.
    pub waiting: u64,
    /// The invisible messages that no worker tells of.
    pub hidden: u64,
    /// The age of the oldest visible message in seconds; `None` if none is visible.
    pub oldest_seconds: Option<f64>,
    /// About how many dead letters there are.
    pub dead: u64,
    /// The jobs completed a second over the last minute.
    pub rate: Option<f64>,
    /// The mean time that a handler ran, in seconds.
    pub run_seconds: Option<f64>,
    /// The workers that listen and are not draining.
    pub workers: u64,
    /// The workers that are draining.
    pub draining: u64,
    /// The slots of the workers that are not draining.
    pub slots: u64,
    /// The mean number of slots of a worker.
    pub slots_per_worker: Option<f64>,
    /// True if workers leave the queue alone.
    pub paused: bool,
    /// The work of the queue in workers, not rounded: what an autoscaler with a tolerance takes.
    pub load: f64,
    /// The number of workers that the queue needs.
    pub desired: u64,
    /// The number of workers by slots.
    pub desired_by_slots: u64,
    /// The number of workers by the target delay.
    pub desired_by_delay: Option<u64>,
}

impl ScaleDocument {
    /// Returns the figures of a snapshot: those of all queues, or of one.
    pub fn of(snapshot: &Snapshot, target: &Target, queue: Option<&str>) -> Self {
        let is_asked = |name: &String| queue.is_none_or(|queue| queue == name);
        let figures = snapshot.queues.iter().filter(|(name, _)| is_asked(name));
        let figures = figures.filter_map(|(name, figures)| {
            let desired = target.desired(snapshot, name)?;
            Some((name.clone(), ScaleFigures::of(figures, desired)))
        });
        let errors = snapshot.unreadable.iter().filter(|(name, _)| is_asked(name));
        let as_of = jiff::fmt::temporal::DateTimePrinter::new().precision(Some(3));
        Self {
            queues: figures.collect(),
            errors: errors.map(|(name, error)| (name.clone(), error.clone())).collect(),
            as_of: as_of.timestamp_to_string(&snapshot.as_of),
            age_seconds: round(snapshot.taken.elapsed().as_secs_f64()),
        }
    }
}

impl ScaleFigures {
    fn of(figures: &QueueFigures, desired: Desired) -> Self {
        Self {
            length: figures.length,
            in_flight: figures.in_flight,
            waiting: figures.waiting,
            hidden: figures.hidden,
            oldest_seconds: figures.oldest_seconds.map(round),
            dead: figures.dead,
            rate: figures.rate.map(round),
            run_seconds: figures.run_seconds.map(round),
            workers: figures.workers,
            draining: figures.draining,
            slots: figures.slots,
            slots_per_worker: figures.slots_per_worker,
            paused: figures.paused,
            load: round(desired.load()),
            desired: desired.workers(),
            desired_by_slots: workers(desired.by_slots),
            desired_by_delay: desired.by_delay.map(workers),
        }
    }
}

fn round(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}
