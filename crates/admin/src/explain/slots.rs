//! The running jobs that hold the slots of a queue's workers.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::WorkerOverview;
use crate::workers::age_text;

/// The slots that the present workers have for a queue, and the jobs that hold them.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SlotUse {
    /// The number of jobs of the queue that workers can run at once, without workers that are draining.
    pub slots: u64,
    /// The number of running jobs of the queue, by the records of all present workers.
    pub running: u64,
    /// The age of the oldest of these records in seconds; `None` without a record.
    pub record_age_seconds: Option<f64>,
    /// The running jobs of the queue's workers by worker, queue and kind, the most first. Queues of a worker
    /// share its slots, so jobs of its other queues are included.
    pub holders: Vec<SlotHolder>,
}

/// The running jobs of one kind on one worker.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SlotHolder {
    /// The name of the worker.
    pub worker: String,
    /// The id of this run of the worker.
    pub worker_id: String,
    /// The queue of the jobs.
    pub queue: String,
    /// Their kind; empty for messages that are not events.
    pub kind: String,
    /// Their number.
    pub jobs: u64,
    /// The seconds for which the longest of them has run.
    pub longest_seconds: f64,
}

impl SlotUse {
    /// Returns the age of the oldest record as text, to follow the figures: `, as of up to 12s ago`. Empty
    /// without a record.
    pub fn as_of(&self) -> String {
        self.record_age_seconds.map(|age| format!(", as of up to {}", age_text(age))).unwrap_or_default()
    }

    pub(super) fn of(queue: &str, present: &[&WorkerOverview]) -> Self {
        let mut holders: Vec<_> = present.iter().flat_map(|worker| holders(worker)).collect();
        holders.sort_by(|one, other| {
            let by_jobs = other.jobs.cmp(&one.jobs);
            by_jobs.then(other.longest_seconds.total_cmp(&one.longest_seconds))
        });
        let active = present.iter().filter(|worker| !worker.record.draining);
        Self {
            slots: active.map(|worker| worker.record.slots_for(queue)).sum(),
            running: present.iter().map(|worker| worker.record.running_of(queue)).sum(),
            record_age_seconds: present.iter().map(|worker| worker.age_seconds).reduce(f64::max),
            holders,
        }
    }
}

/// Returns the running jobs of a worker by queue and kind.
fn holders(worker: &WorkerOverview) -> Vec<SlotHolder> {
    let mut longest = BTreeMap::<(&str, &str), f64>::new();
    for job in &worker.record.running {
        let seconds = longest.entry((job.queue.as_str(), job.kind.as_str())).or_default();
        *seconds = seconds.max(job.running_seconds + worker.age_seconds);
    }
    let holder = |((queue, kind), seconds): ((&str, &str), f64)| SlotHolder {
        worker: worker.record.name.clone(),
        worker_id: worker.record.id.clone(),
        queue: queue.to_owned(),
        kind: kind.to_owned(),
        jobs: worker.record.running_that(|job| job.queue == queue && job.kind == kind),
        longest_seconds: seconds,
    };
    longest.into_iter().map(holder).collect()
}
