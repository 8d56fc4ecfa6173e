//! The explanation of a job: its state, the obstacles found, and their summary.

use std::time::SystemTime;

use jobqueue::__internals::{RunningJob, is_of_this_life};
use jobqueue::Reason;
use jobqueue_message::times::parse_rfc3339;
use serde::Serialize;

use super::obstacle::{Obstacle, circuits, no_slot, no_worker, paused};
use crate::workers::age_text;
use crate::{Cancellation, HistoryRecord, JobReference, JobState, QueueOverview, RawJob, WorkerOverview};

/// The state of a job, and the obstacles that keep it from running.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The job.
    pub job: JobReference,
    /// The place in which it was found.
    pub place: JobPlace,
    /// True if certainly no message of the job waits or runs: it has ended, or never existed. A request to
    /// cancel it has no effect. A dead letter alone does not prove this: a job that was sent twice may have
    /// both a dead letter and a waiting message.
    pub has_ended: bool,
    /// A one-sentence summary.
    pub summary: String,
    /// The message, if it waits or is dead; also if it runs, if the storage
    /// [shows which jobs run](crate::Admin::shows_running_jobs).
    pub message: Option<RawJob>,
    /// Its end, if it is in the history.
    pub ended: Option<HistoryRecord>,
    /// True if certainly no message of the job is a dead letter.
    #[serde(skip)]
    pub(crate) has_no_letter: bool,
    /// True if the search for the job went beyond the first 1,000 messages of a state.
    #[serde(skip)]
    pub has_long_search: bool,
    /// The current run, if the job runs.
    pub run: Option<RunningJob>,
    /// The id of the worker that runs it.
    pub worker: Option<String>,
    /// The name of that worker, which lists of workers show.
    pub worker_name: Option<String>,
    /// The seconds since that worker wrote the record that names the run, by the storage's clock. Unless the
    /// storage [shows which jobs run](crate::Admin::shows_running_jobs), the job may have ended since.
    pub record_age_seconds: Option<f64>,
    /// The state of its cancellation.
    pub cancellation: Cancellation,
    /// The reasons why it does not run: first those that must change for it to run, then a lack of slots and
    /// limits that are reached, last what it may wait for.
    pub reasons: Vec<Obstacle>,
}

/// The place in which a job was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JobPlace {
    /// A worker runs it; or its worker has died, and its lease may not have ended yet.
    Running,
    /// It is visible in its queue, or waits there for another job of its key.
    Waiting,
    /// It was sent with a delay that is not over.
    Delayed,
    /// It waits between two attempts, or was put back for another reason.
    BackingOff,
    /// It is in the dead-letter queue.
    Dead,
    /// It is in the history of ended jobs.
    Ended,
    /// It was not found: it has ended, or never existed, or is a dead letter behind the first 32. If the
    /// storage does not show all jobs, it may also be delayed, leased by a worker without a record, or behind
    /// the first 32 messages; on Service Bus behind those that can be read in two seconds.
    Unseen,
}

impl From<JobState> for JobPlace {
    fn from(state: JobState) -> Self {
        match state {
            JobState::Waiting => Self::Waiting,
            JobState::Delayed => Self::Delayed,
            JobState::BackingOff => Self::BackingOff,
            JobState::Running => Self::Running,
            JobState::Dead => Self::Dead,
        }
    }
}

impl Explanation {
    pub(super) fn new(job: &JobReference) -> Self {
        Self {
            job: job.clone(),
            place: JobPlace::Unseen,
            has_ended: false,
            summary: String::new(),
            message: None,
            ended: None,
            has_no_letter: false,
            has_long_search: false,
            run: None,
            worker: None,
            worker_name: None,
            record_age_seconds: None,
            cancellation: Cancellation::None,
            reasons: Vec::new(),
        }
    }

    /// Returns the reference to the job; if it names no sender, with the sender that was found.
    pub fn reference(&self) -> JobReference {
        let message = self.message.as_ref().map(|message| message.source.as_str());
        let source = message.or(self.run.as_ref().map(|run| run.source.as_str()));
        let source = source.or(self.ended.as_ref().map(|end| end.source.as_str()));
        let source = source.filter(|_| self.job.source.is_none());
        source.map_or_else(|| self.job.clone(), |source| self.job.clone().with_source(source))
    }

    /// Adds the result of a request to cancel the job that was made at `made`. Ignores a request from before
    /// the insertion of the message that was found or that ended, by a redrive or a repeated send: it
    /// concerned an earlier life of the job, as workers judge too. So did an answer that is not the death of
    /// the dead letter that was found.
    pub(super) fn find_cancellation(&mut self, cancellation: Cancellation, made: SystemTime) {
        let recorded = self.run.as_ref().and_then(|run| run.inserted.as_deref());
        let recorded = recorded.or(self.ended.as_ref().map(|end| end.inserted.as_str()));
        let inserted = self.message.as_ref().and_then(insertion).or(recorded.and_then(parse_rfc3339));
        if inserted.is_some_and(|inserted| !is_of_this_life(made, inserted)) {
            return;
        }
        let death = self.message.as_ref().and_then(|message| message.dead.as_ref());
        if death.is_some_and(|death| !agrees(&cancellation, &death.reason)) {
            return;
        }
        if let Cancellation::Requested { by, at } = &cancellation {
            let text = format!("{} has asked at {at} for it to be cancelled", by.escape_debug());
            // A dead letter does not run because it died, and the job of a lost worker waits for the end of
            // its lease: no answer to the request is due.
            let is_first = |reason: &Obstacle| matches!(reason.code, "dead_letter" | "worker_gone");
            let place = self.reasons.iter().position(is_first).map_or(0, |place| place + 1);
            self.reasons.insert(place, Obstacle::new("cancel_requested", text));
        }
        self.cancellation = cancellation;
    }

    pub(super) fn find_run(&mut self, workers: &[WorkerOverview]) {
        let is_it = |run: &&RunningJob| run.queue == self.job.queue && self.job.is(&run.source, &run.id);
        let runs =
            workers.iter().filter_map(|worker| Some((worker, worker.record.running.iter().find(is_it)?)));
        // The record of a killed worker names the job for a while beside that of its successor.
        let newest = runs.min_by(|(one, _), (other, _)| one.age_seconds.total_cmp(&other.age_seconds));
        if let Some((worker, run)) = newest {
            self.place = JobPlace::Running;
            self.worker = Some(worker.record.id.clone());
            self.worker_name = Some(worker.record.name.clone());
            self.record_age_seconds = Some(worker.age_seconds);
            self.run = Some(run.clone());
        }
    }

    /// Finds the run on a worker whose record has not been written for three intervals, unless the lease of
    /// the job has certainly ended.
    pub(super) fn find_lost_run(&mut self, gone: &[WorkerOverview], queue: &QueueOverview) {
        let left = |worker: &WorkerOverview, run: &RunningJob| {
            queue.longest_lease(&worker.record, run) - worker.age_seconds
        };
        let mut lost = gone.to_vec();
        for worker in &mut lost {
            let running = std::mem::take(&mut worker.record.running);
            worker.record.running = running.into_iter().filter(|run| left(worker, run) >= 0.0).collect();
        }
        self.find_run(&lost);
        let holder = lost.iter().find(|worker| self.worker.as_deref() == Some(&worker.record.id));
        if let (Some(worker), Some(run)) = (holder, &self.run) {
            let text = format!(
                "its worker has written no record for {:.0} s; another worker runs it when its lease ends, in {:.0} s at the latest",
                worker.age_seconds,
                left(worker, run)
            );
            self.reasons.push(Obstacle::new("worker_gone", text));
        }
    }

    pub(super) fn find_message(&mut self, messages: Vec<RawJob>) {
        let found = messages.into_iter().find(|message| self.job.is(&message.source, &message.id));
        if let Some(message) = found {
            self.place = message.state.into();
            if let Some(end) = &message.dead {
                let error = message.last_error.as_deref().unwrap_or("no error is kept");
                self.reasons.push(Obstacle::new("dead_letter", format!("{}: {error}", end.reason)));
            }
            self.message = Some(message);
        }
    }

    /// Adds the obstacles of every job of the queue, including those from its `workers` if their records
    /// could be read. Returns those that pass without a change, or concern only some of the workers: they
    /// belong behind the obstacles of the job itself.
    pub(super) fn add_queue_obstacles(
        &mut self,
        queue: &QueueOverview,
        workers: Option<&Vec<WorkerOverview>>,
    ) -> Vec<Obstacle> {
        if matches!(self.place, JobPlace::Running | JobPlace::Dead | JobPlace::Ended) {
            return Vec::new();
        }
        self.reasons.extend(paused(queue));
        let Some(workers) = workers else { return Vec::new() };
        let listening: Vec<_> =
            workers.iter().filter(|worker| worker.record.listens_to(&queue.name)).collect();
        let fetching = listening.iter().filter(|worker| !worker.record.draining);
        if fetching.clone().next().is_none() {
            self.reasons.push(no_worker());
            return Vec::new();
        }
        let (of_all, of_some) = circuits(&queue.name, fetching.clone().copied());
        self.reasons.extend(of_all);
        no_slot(&queue.name, fetching.map(|worker| &worker.record)).into_iter().chain(of_some).collect()
    }

    pub(super) fn summarise(&mut self) {
        let why = self.reasons.first().map_or_else(|| "it can run now".to_owned(), |why| why.text.clone());
        let run = |run: &RunningJob| format!("attempt {} of {}", run.attempt, run.max_attempts);
        let is_lost = self.reasons.iter().any(|why| why.code == "worker_gone");
        self.summary = match (self.place, &self.run) {
            (JobPlace::Running, Some(found)) if is_lost => {
                format!("It has been running since {} ({}): {why}.", found.since, run(found))
            }
            (JobPlace::Running, Some(found)) => {
                let as_of = self.record_age_seconds.map(|age| format!(", as of {}", age_text(age)));
                let as_of = as_of.unwrap_or_default();
                format!("It has been running since {} ({}{as_of}).", found.since, run(found))
            }
            (JobPlace::Running, None) => format!(
                "A worker holds its lease until {}, and no record that was read names it: it has begun since the last record of its worker, waits in the worker for its turn, or the worker has died or writes no record.",
                self.message.as_ref().and_then(|message| message.due.as_deref()).unwrap_or("an unknown time")
            ),
            (JobPlace::Ended, _) => self.ended.as_ref().map_or_else(String::new, ended),
            (JobPlace::Dead, _) => format!("It is a dead letter: {why}."),
            (JobPlace::Waiting | JobPlace::Delayed | JobPlace::BackingOff, _) => format!("It waits: {why}."),
            _ => format!("It was not found: {why}."),
        };
    }
}

/// Returns the time at which a message was put into its queue. That of a dead letter is known only if the job
/// was redriven; one that is later than the death was written by a sender, or by a clock that was set back.
fn insertion(message: &RawJob) -> Option<SystemTime> {
    let shown = message.inserted.as_deref().and_then(parse_rfc3339);
    match message.state {
        JobState::Dead => message.redriven.filter(|redriven| shown.is_some_and(|died| *redriven <= died)),
        _ => shown,
    }
}

/// Returns whether a job that died for this reason can have this answer to the request to cancel it.
fn agrees(answer: &Cancellation, reason: &str) -> bool {
    match answer {
        Cancellation::Cancelled => reason == Reason::CANCELLED.as_str(),
        Cancellation::DeadLettered => reason != Reason::CANCELLED.as_str(),
        Cancellation::Completed => false,
        Cancellation::None | Cancellation::Requested { .. } => true,
    }
}

/// Returns a sentence about a job that has ended.
fn ended(end: &HistoryRecord) -> String {
    let why = end.reason.as_deref().map(|reason| format!(" ({})", reason.escape_debug())).unwrap_or_default();
    format!(
        "It has ended: {}{why} at {}, by {}.",
        end.outcome.escape_debug(),
        end.ended.escape_debug(),
        end.worker.escape_debug()
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jobqueue_message::times::rfc3339;

    use super::*;
    use crate::RawDeadLetter;

    /// Returns what a letter of this reason, which was put back at second 1,000 and died at 2,000, shows of a
    /// request that was made at this second.
    fn shown(cancellation: Cancellation, made: u64, reason: &str) -> Cancellation {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let mut found = Explanation::new(&JobReference::new("mails", "1"));
        let dead = RawDeadLetter {
            reason: reason.to_owned(),
            time: None,
            deliveries: 1,
            worker: None,
            message: None,
            inserted: None,
        };
        found.message = Some(RawJob {
            state: JobState::Dead,
            inserted: Some(rfc3339(at(2_000))),
            redriven: Some(at(1_000)),
            dead: Some(dead),
            ..RawJob::default()
        });
        found.find_cancellation(cancellation, at(made));
        found.cancellation
    }

    // round 35, E1
    #[test]
    fn dead_letter_shows_only_the_request_and_the_answer_of_its_own_life() {
        let requested = || Cancellation::Requested { by: "ada".to_owned(), at: String::new() };
        for answer in [requested(), Cancellation::DeadLettered] {
            assert_eq!(shown(answer.clone(), 500, "rejected"), Cancellation::None);
            assert_eq!(shown(answer.clone(), 1_500, "rejected"), answer);
        }
        for (answer, reason) in [
            (Cancellation::Completed, "rejected"),
            (Cancellation::Cancelled, "rejected"),
            (Cancellation::DeadLettered, "cancelled"),
        ] {
            assert_eq!(shown(answer, 1_500, reason), Cancellation::None);
        }
        assert_eq!(shown(Cancellation::Cancelled, 1_500, "cancelled"), Cancellation::Cancelled);
    }

    // The last of these records in order of their hosts was shown.
    #[test]
    fn run_is_that_of_the_newest_record_that_names_the_job() {
        let overview = |attempt: u32, age_seconds: f64| {
            let time = "2026-01-01T00:00:00Z";
            let run = serde_json::json!({
                "queue": "mails", "id": "1", "source": "/shop", "kind": "mail", "attempt": attempt,
                "max_attempts": 3, "since": time, "running_seconds": 1.0
            });
            let record = serde_json::json!({
                "id": attempt.to_string(), "name": "w", "host": "h", "pid": 1, "version": "0", "started": time,
                "written": time, "interval_seconds": 15.0, "slots": 1, "draining": false, "queues": [],
                "running": [run], "running_total": 1, "counters": []
            });
            WorkerOverview { record: serde_json::from_value(record).unwrap(), age_seconds, stale: false }
        };
        let (killed, successor) = (overview(1, 40.0), overview(2, 3.0));
        for workers in [[killed.clone(), successor.clone()], [successor, killed]] {
            let mut found = Explanation::new(&JobReference::new("mails", "1"));
            found.find_run(&workers);
            assert_eq!(found.worker.as_deref(), Some("2"));
            assert_eq!(found.run.map(|run| run.attempt), Some(2));
        }
    }
}
