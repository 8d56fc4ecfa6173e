//! Finds a job, and the reason why it does not run.

mod obstacle;
mod senders;

use std::slice;
use std::time::SystemTime;

use jobqueue::__internals::RunningJob;
use jobqueue::{Error, ErrorKind};
use jobqueue_message::times::parse_rfc3339;
use serde::Serialize;

use super::jobs::SEARCHED;
use super::membership::Memberships;
use super::{
    Admin, Cancellation, DeadLetterFilter, HistoryFilter, HistoryRecord, JobFilter, JobReference, JobState,
    QueueOverview, RawJob, WorkerOverview,
};
pub use obstacle::Obstacle;
use obstacle::{Looked, bounds, delayed, kind_limit, no_slot, rate_limit, unknown_kind, unseen, waits_until};
pub use senders::IdentifiedJob;

/// The state of a job, and the obstacles that keep it from running.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The job.
    pub job: JobReference,
    /// The place in which it was found.
    pub place: JobPlace,
    /// True if certainly no message of the job waits or runs: it has ended, or never existed. A request to cancel it has no effect. A dead
    /// letter alone does not prove it: a job that was sent twice may have one, and a message that waits.
    pub has_ended: bool,
    /// A one-sentence summary.
    pub summary: String,
    /// The message, if it waits or is dead.
    pub message: Option<RawJob>,
    /// Its end, if it is in the history.
    pub ended: Option<HistoryRecord>,
    /// The run, if it runs.
    pub run: Option<RunningJob>,
    /// The worker that runs it, by its id.
    pub worker: Option<String>,
    /// The state of its cancellation.
    pub cancellation: Cancellation,
    /// The reasons why it does not run, the most important first.
    pub reasons: Vec<Obstacle>,
}

/// The place in which a job was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JobPlace {
    /// A worker runs it; or its worker has died, and its lease may not have ended yet.
    Running,
    /// It is visible in its queue, or waits there for another of its key.
    Waiting,
    /// It was sent with a delay that is not over.
    Delayed,
    /// It waits between two attempts, or was put back for another reason.
    BackingOff,
    /// It is in the dead-letter queue.
    Dead,
    /// It is in the history of ended jobs.
    Ended,
    /// It was not found: it has ended, or never existed. Where the storage does not show all jobs, it may also be delayed, leased by a worker
    /// without a record, or behind the first 32 messages.
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

impl Admin {
    /// Returns the state of a job and the reasons why it does not run. It reads the records of workers, the first 32
    /// messages of the queue and the first 32 dead letters; where the storage shows all jobs, the first 10,000 of each state. Costs up to
    /// fourteen requests, one for each worker, and for a job in order those of [`groups`](Self::groups). A job that seems to be in no queue
    /// any more costs them twice.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no such queue; [`Storage`](ErrorKind::Storage) when something cannot be read.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn explain(&self, job: &JobReference) -> Result<Explanation, Error> {
        let found = self.look_for(job).await?;
        // A job that moved meanwhile may have been missed in every place.
        if found.has_ended { self.look_for(job).await } else { Ok(found) }
    }

    /// Looks once, in the order in which a job moves.
    async fn look_for(&self, job: &JobReference) -> Result<Explanation, Error> {
        let queue = self.queue(&job.queue).await?;
        let (workers, now) = self.workers_at().await?;
        let (gone, workers): (Vec<_>, Vec<_>) = workers.into_iter().partition(|worker| worker.stale);
        let (cancellation, answered) = self.cancellation_at(job).await?;
        let mut found = Explanation::new(job, cancellation);
        found.find_run(&workers);
        if found.place == JobPlace::Unseen {
            found.find_message(self.peek_without_batches(&job.queue).await?);
        }
        let sees_jobs = found.place == JobPlace::Unseen && self.find_by_state(&mut found, &queue).await?;
        let sees_dead = found.place == JobPlace::Unseen && self.find_dead(&mut found, &queue).await?;
        if found.run.is_none() && matches!(found.place, JobPlace::Unseen | JobPlace::Running) {
            found.find_lost_run(&gone, &queue);
        }
        let is_certain = sees_jobs && sees_dead;
        if found.place == JobPlace::Unseen {
            self.find_end(&mut found, is_certain).await;
        }
        if answered.is_some_and(|answered| found.began_after(answered)) {
            found.cancellation = Cancellation::None;
        }
        // A job that is certainly not in the queue waits for nothing.
        if found.place != JobPlace::Unseen || !is_certain {
            found.look_at_queue(&queue, &workers);
        }
        if let Some(mut message) = found.message.take() {
            Memberships::default().prove(&self.storage, slice::from_mut(&mut message), None).await?;
            if matches!(message.state, JobState::Waiting | JobState::Delayed | JobState::BackingOff) {
                let until = delayed(&message, now).or_else(|| waits_until(&message));
                found.reasons.splice(0..0, until);
                self.look_at_message(&mut found, &message, &queue, &workers).await?;
            }
            found.message = Some(message);
        }
        if found.place == JobPlace::Unseen {
            let looked = match (is_certain, sees_dead) {
                (true, _) => Looked::Everywhere,
                (false, true) => Looked::AtAllDead,
                (false, false) => Looked::AtSome,
            };
            found.reasons.push(unseen(&queue, self.shows_all_jobs(), looked));
        }
        found.has_ended = match found.place {
            JobPlace::Dead => sees_jobs,
            JobPlace::Ended => is_certain,
            _ => found.reasons.iter().any(|reason| reason.code == "not_found"),
        };
        found.summarise();
        Ok(found)
    }

    /// Finds a job among all messages of its queue, if the storage shows them. Returns whether it is certainly not there.
    async fn find_by_state(&self, found: &mut Explanation, queue: &QueueOverview) -> Result<bool, Error> {
        if !self.shows_all_jobs() {
            return Ok(queue.length == Some(0));
        }
        let filter = JobFilter::of(&found.job, SEARCHED).without_batches();
        let mut sees_all = true;
        for state in JobState::IN_QUEUE {
            let page = self.jobs(&found.job.queue, state, &filter).await?;
            found.find_message(page.jobs);
            if found.place != JobPlace::Unseen {
                return Ok(false);
            }
            sees_all &= page.next.is_none();
        }
        Ok(sees_all)
    }

    /// Finds a job among the dead letters. Returns whether it is certainly not there.
    async fn find_dead(&self, found: &mut Explanation, queue: &QueueOverview) -> Result<bool, Error> {
        let all = DeadLetterFilter::new();
        let dead = match self.dead_letters_without_batches(&found.job.queue, &all).await {
            // The overview says it if their queue cannot be read.
            Err(_) if queue.dead_letters.is_none() => return Ok(false),
            dead => dead?,
        };
        found.find_message(dead.letters);
        Ok(dead.complete)
    }

    /// Finds the end of a job in the history, which proves that it has ended only if it `is_certain` that it is in no queue.
    async fn find_end(&self, found: &mut Explanation, is_certain: bool) {
        let of_job = HistoryFilter::new().queue(&found.job.queue).id(&found.job.id);
        // The operator may not be allowed to read the history: then nothing is known of it.
        let jobs = self.history(&of_job).await.map_or_else(|_| Vec::new(), |page| page.jobs);
        let Some(end) = jobs.into_iter().find(|end| found.job.is(&end.source, &end.id)) else { return };
        // A dead letter may have been put back since, or be among those that were not looked at; the message of an uncertain
        // completion may be delivered again.
        if is_certain || end.outcome == "completed" {
            found.place = JobPlace::Ended;
        }
        if !is_certain && end.outcome != "dead_lettered" {
            let text = format!(
                "it ended at {}; the storage does not show whether a message of the same id is in the queue",
                end.ended.escape_debug()
            );
            found.reasons.push(Obstacle::new("ended_once", text));
        }
        found.ended = Some(end);
    }

    async fn look_at_message(
        &self,
        found: &mut Explanation,
        message: &RawJob,
        queue: &QueueOverview,
        workers: &[WorkerOverview],
    ) -> Result<(), Error> {
        found.reasons.extend(bounds(message, queue));
        found.reasons.extend(unknown_kind(message, workers));
        found.reasons.extend(kind_limit(message, workers));
        found.reasons.extend(rate_limit(message, workers));
        if let Err(error) = self.check_payload(message).await
            && error.kind() == ErrorKind::Undecodable
        {
            found.reasons.push(Obstacle::new("payload_missing", jobqueue_storage::text::chain(&error)));
        }
        if let Some(deferral) = &message.deferral {
            let text = format!(
                "it was put back {} times since {}: {}",
                deferral.count, deferral.since, deferral.cause
            );
            found.reasons.push(Obstacle::new("deferred", text));
        }
        if message.in_order {
            found.reasons.extend(self.turn(message).await?);
        }
        Ok(())
    }

    /// Returns the turn of a job as an obstacle, if it waits for another job of its key.
    async fn turn(&self, message: &RawJob) -> Result<Option<Obstacle>, Error> {
        for group in self.groups(&message.queue).await? {
            let waits: Vec<_> = group.entries.iter().filter(|entry| !entry.skipped).collect();
            let Some(at) = waits.iter().position(|entry| entry.id.as_deref() == Some(&message.id)) else {
                continue;
            };
            if at == 0 {
                let text = "it may wait for another job of its key: there are more jobs than were looked at";
                return Ok((!group.is_first_known).then(|| Obstacle::new("waits_for_turn", text)));
            }
            let first = waits[0].id.as_deref().unwrap_or("one that is not visible");
            let overdue = if waits[0].overdue { ", whose message is overdue" } else { "" };
            let text = format!(
                "it is number {} of {} of its key, and waits for {}{overdue}",
                at + 1,
                waits.len(),
                first.escape_debug()
            );
            return Ok(Some(Obstacle::new("waits_for_turn", text)));
        }
        Ok(None)
    }
}

impl Explanation {
    fn new(job: &JobReference, cancellation: Cancellation) -> Self {
        let mut reasons = Vec::new();
        if let Cancellation::Requested { by, at } = &cancellation {
            let text = format!("{} has asked at {at} for it to be cancelled", by.escape_debug());
            reasons.push(Obstacle::new("cancel_requested", text));
        }
        Self {
            job: job.clone(),
            place: JobPlace::Unseen,
            has_ended: false,
            summary: String::new(),
            message: None,
            ended: None,
            run: None,
            worker: None,
            cancellation,
            reasons,
        }
    }

    /// Returns the reference with the sender of the job that was found, if it names none.
    pub fn reference(&self) -> JobReference {
        let message = self.message.as_ref().map(|message| message.source.as_str());
        let source = message.or(self.run.as_ref().map(|run| run.source.as_str()));
        let source = source.or(self.ended.as_ref().map(|end| end.source.as_str()));
        let source = source.filter(|source| self.job.source.is_none() && !source.is_empty());
        source.map_or_else(|| self.job.clone(), |source| self.job.clone().with_source(source))
    }

    /// Returns whether the job was put into the queue after a moment, by a redrive or a further send: an answer of then means an earlier
    /// life.
    fn began_after(&self, moment: SystemTime) -> bool {
        let message = self.message.as_ref().filter(|message| message.dead.is_none());
        let inserted = message.and_then(|message| message.inserted.as_deref());
        let began = inserted.or(self.run.as_ref().map(|run| run.since.as_str())).and_then(parse_rfc3339);
        began.is_some_and(|began| began >= moment)
    }

    fn find_run(&mut self, workers: &[WorkerOverview]) {
        for worker in workers {
            let is_it = |run: &&RunningJob| run.queue == self.job.queue && self.job.is(&run.source, &run.id);
            if let Some(run) = worker.record.running.iter().find(is_it) {
                self.place = JobPlace::Running;
                self.worker = Some(worker.record.id.clone());
                self.run = Some(run.clone());
            }
        }
    }

    /// Finds the run on a worker whose record is three intervals old, until the lease of the job has certainly ended.
    fn find_lost_run(&mut self, gone: &[WorkerOverview], queue: &QueueOverview) {
        let default = queue.settings.get(jobqueue_message::settings::DEFAULT_TIMEOUT);
        let default = default.and_then(|seconds| seconds.parse::<f64>().ok());
        let default = default.unwrap_or(jobqueue_message::settings::DEFAULT_LEASE.as_secs_f64());
        // The worker may have renewed the lease until just before it would have written its record again.
        let left = |worker: &WorkerOverview, run: &RunningJob| {
            worker.record.interval_seconds + run.lease_seconds.unwrap_or(default) - worker.age_seconds
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

    fn find_message(&mut self, messages: Vec<RawJob>) {
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

    /// Adds the obstacles of every job of the queue.
    fn look_at_queue(&mut self, queue: &QueueOverview, workers: &[WorkerOverview]) {
        if matches!(self.place, JobPlace::Running | JobPlace::Dead | JobPlace::Ended) {
            return;
        }
        if let Some(pause) = &queue.pause {
            let text = format!("the queue is paused{pause}: workers fetch nothing from it");
            self.reasons.push(Obstacle::new("paused", text.escape_debug().to_string()));
        }
        let listening: Vec<_> =
            workers.iter().filter(|worker| worker.record.listens_to(&queue.name)).collect();
        let fetching = listening.iter().filter(|worker| !worker.record.draining);
        if fetching.clone().next().is_none() {
            let text = "no worker with a record serves the queue";
            return self.reasons.push(Obstacle::new("no_worker", text));
        }
        if fetching.clone().all(|worker| worker.record.has_open_circuit(&queue.name)) {
            let text =
                "all jobs of the queue fail, and workers have paused fetching (their circuits are open)";
            self.reasons.push(Obstacle::new("circuit_open", text));
        }
        self.reasons.extend(no_slot(&queue.name, fetching.map(|worker| &worker.record)));
    }

    fn summarise(&mut self) {
        let why = self.reasons.first().map_or_else(|| "it can run now".to_owned(), |why| why.text.clone());
        let run = |run: &RunningJob| format!("attempt {} of {}", run.attempt, run.max_attempts);
        let is_lost = self.reasons.iter().any(|why| why.code == "worker_gone");
        self.summary = match (self.place, &self.run) {
            (JobPlace::Running, Some(found)) if is_lost => {
                format!("It has been running since {} ({}): {why}.", found.since, run(found))
            }
            (JobPlace::Running, Some(found)) => {
                format!("It has been running since {} ({}).", found.since, run(found))
            }
            (JobPlace::Running, None) => format!(
                "A worker holds its lease until {}: it runs, or waits in the worker for its turn.",
                self.message.as_ref().and_then(|message| message.due.as_deref()).unwrap_or("an unknown time")
            ),
            (JobPlace::Ended, _) => self.ended.as_ref().map_or_else(String::new, ended),
            (JobPlace::Dead, _) => format!("It is a dead letter: {why}."),
            (JobPlace::Waiting | JobPlace::Delayed | JobPlace::BackingOff, _) => format!("It waits: {why}."),
            _ => format!("It was not found: {why}."),
        };
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
