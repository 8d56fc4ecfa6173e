//! The reasons why jobs of a queue do not start, each with the command to run next.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::obstacle::{
    Obstacle, circuits, kind_limit, no_slot, no_worker, paused, rate_limit_text, unknown_kind,
};
use crate::errors::{MAX_SHAPE, shape};
use crate::{JobState, QueueOverview, RawJob, WorkerOverview};

/// A reason why jobs of a queue do not start, with the command to run next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueueObstacle {
    /// The code, which never changes: `queue_unread`, `paused`, `no_worker`, `circuit_open`, `held_up`,
    /// `not_due`, `not_visible`, `no_free_slot`, `queue_limit`, `unknown_kind`, `kind_limit`, `backing_off`,
    /// `rate_limit`, `workers_unread`, `next_unread` or `keys_unread`.
    pub code: &'static str,
    /// A sentence for operators.
    pub text: String,
    /// The words of the command of `jobqueue` that shows more, or removes the obstacle.
    pub command: Vec<String>,
}

impl QueueObstacle {
    pub(super) fn new<'a>(obstacle: Obstacle, command: impl IntoIterator<Item = &'a str>) -> Self {
        let Obstacle { code, text } = obstacle;
        Self { code, text, command: command.into_iter().map(str::to_owned).collect() }
    }

    /// Returns whether the obstacle is only that a part of the storage cannot be read.
    pub(super) fn is_unread(&self) -> bool {
        self.code.ends_with("_unread")
    }
}

/// Returns first the obstacles of all jobs, then those of some kinds or workers, last rate limits and parts
/// that cannot be read.
pub(super) fn obstacles(
    queue: &QueueOverview,
    workers: Result<&[WorkerOverview], &str>,
    next: Result<&[RawJob], &str>,
) -> Vec<QueueObstacle> {
    let mut reasons = known_obstacles(queue, workers, next.unwrap_or_default());
    if let Err(error) = next {
        let text = format!("the next jobs cannot be read, so their kinds and limits are unknown: {error}");
        reasons.push(QueueObstacle::new(Obstacle::new("next_unread", text), ["peek", &queue.name]));
    }
    reasons
}

fn known_obstacles(
    queue: &QueueOverview,
    workers: Result<&[WorkerOverview], &str>,
    next: &[RawJob],
) -> Vec<QueueObstacle> {
    let name = queue.name.as_str();
    let mut reasons: Vec<_> = unread(queue).into_iter().collect();
    reasons.extend(paused(queue).map(|paused| QueueObstacle::new(paused, ["queue", "resume", name])));
    let workers = match workers {
        Ok(workers) => workers,
        Err(error) => {
            let text = format!("the records of workers cannot be read: {error}");
            reasons.extend(not_due(queue, None));
            reasons.push(QueueObstacle::new(Obstacle::new("workers_unread", text), ["doctor"]));
            return reasons;
        }
    };
    let listening = workers.iter().filter(|worker| !worker.stale && worker.record.listens_to(name));
    let running: u64 = listening.clone().map(|worker| worker.record.running_of(name)).sum();
    let fetching = listening.filter(|worker| !worker.record.draining);
    if fetching.clone().next().is_none() {
        reasons.push(QueueObstacle::new(no_worker(), ["workers", "--all"]));
        reasons.extend(not_due(queue, Some(running)));
        return reasons;
    }
    // No job waits for the circuit of an empty queue: its next job is the probe.
    let (of_all, of_some) = if queue.is_empty() { (None, None) } else { circuits(name, fetching.clone()) };
    let failing = failing_jobs(queue);
    reasons.extend(of_all.map(|circuit| QueueObstacle::new(circuit, failing.clone())));
    if queue.held_up {
        let held_up = Obstacle::new("held_up", "each visible job waits for another job of its key");
        reasons.push(QueueObstacle::new(held_up, ["groups", name]));
    }
    reasons.extend(not_due(queue, Some(running)));
    // Without a visible job no job waits for a slot.
    let slots = no_slot(name, fetching.map(|worker| &worker.record)).filter(|_| queue.visible != Some(0));
    reasons.extend(slots.map(|slots| QueueObstacle::new(slots, ["workers", "--jobs"])));
    let (limits, rates) = of_kinds(next, workers);
    reasons.extend(limits);
    reasons.extend(backing_off(name, next));
    reasons.extend(of_some.map(|circuit| QueueObstacle::new(circuit, failing)));
    reasons.extend(rates);
    reasons
}

/// Returns the reason why the queue itself cannot be read.
fn unread(queue: &QueueOverview) -> Option<QueueObstacle> {
    let error = queue.error.as_ref().filter(|_| queue.length.is_none() || queue.paused.is_none())?;
    let unread = Obstacle::new("queue_unread", format!("the queue cannot be read: {error}"));
    Some(QueueObstacle::new(unread, ["doctor", "--queue", &queue.name]))
}

/// Returns the command that shows the errors of jobs that fail.
fn failing_jobs(queue: &QueueOverview) -> Vec<&str> {
    // A storage that counts by state shows every message. While the circuit is open, most back-offs end.
    match queue.states {
        Some(states) if states.backing_off > 0 => vec!["peek", &queue.name, "--state", "backing-off"],
        _ => vec!["peek", &queue.name],
    }
}

/// Returns the reason why no job is visible although the queue has jobs that do not run. `running` is unknown
/// if the records of workers cannot be read.
fn not_due(queue: &QueueOverview, running: Option<u64>) -> Option<QueueObstacle> {
    if queue.visible != Some(0) || !queue.visible_is_exact {
        return None;
    }
    if let Some(states) = queue.states {
        let (delayed, backing_off) = (states.delayed, states.backing_off);
        let text = format!("none is due: {delayed} are delayed, and {backing_off} are backing off");
        let state = if delayed >= backing_off { "delayed" } else { "backing-off" };
        let not_due = Obstacle::new("not_due", text);
        let command = ["peek", &queue.name, "--state", state];
        return (delayed + backing_off > 0).then(|| QueueObstacle::new(not_due, command));
    }
    let hidden = queue.length?.saturating_sub(running?);
    let text = format!(
        "none is visible: about {hidden} are delayed, backing off, or leased by workers without a record"
    );
    let not_visible = Obstacle::new("not_visible", text);
    (hidden > 0).then(|| QueueObstacle::new(not_visible, ["workers", "--jobs"]))
}

/// Returns the most frequent last error of the jobs that back off.
fn backing_off(queue: &str, next: &[RawJob]) -> Option<QueueObstacle> {
    let jobs = next.iter().filter(|job| job.state == JobState::BackingOff);
    let mut groups = BTreeMap::new();
    for error in jobs.clone().filter_map(|job| job.last_error.as_deref()) {
        groups.entry(shape(error)).or_insert((0, error)).0 += 1;
    }
    let (failed, error) = groups.into_values().max_by_key(|(failed, _)| *failed)?;
    let error: String = error.chars().take(MAX_SHAPE).collect();
    let all = jobs.count();
    let text =
        format!("of the first {all} that back off, {failed} failed last with: {}", error.escape_debug());
    Some(QueueObstacle::new(Obstacle::new("backing_off", text), ["peek", queue, "--state", "backing-off"]))
}

/// Returns the obstacles of the kinds of the next jobs: first kinds without a handler and limits that are
/// reached, and then rate limits for which jobs may wait.
fn of_kinds(next: &[RawJob], workers: &[WorkerOverview]) -> (Vec<QueueObstacle>, Vec<QueueObstacle>) {
    let (mut limits, mut rates, mut kinds) = (Vec::new(), Vec::new(), BTreeSet::new());
    for job in next.iter().filter(|job| kinds.insert(job.kind.as_str())) {
        limits.extend(unknown_kind(job, workers).map(|unknown| QueueObstacle::new(unknown, ["workers"])));
        // The jobs that wait come first: a job that backs off waits for no limit.
        if job.state == JobState::BackingOff {
            continue;
        }
        let limit = kind_limit(job, workers);
        limits.extend(limit.map(|limit| QueueObstacle::new(limit, ["workers", "--jobs"])));
        let rate = rate_limit_text(job, workers);
        let rate = rate.map(|rate| Obstacle::new("rate_limit", format!("perhaps {rate}")));
        rates.extend(rate.map(|rate| QueueObstacle::new(rate, ["workers", "--output=json"])));
    }
    (limits, rates)
}
