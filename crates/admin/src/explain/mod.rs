//! Finds one job and explains why it does not run; explains what holds up a queue. Only reads.

mod backlog;
mod explanation;
mod obstacle;
mod pace;
mod queue;
mod queue_obstacles;
mod senders;
mod slots;

use std::slice;
use std::time::SystemTime;

use futures_util::join;
use jobqueue::{Error, ErrorKind};
use jobqueue_message::envelope::Identity;

use super::in_time::in_time;
use super::jobs::{MAX_SEARCHED_FOR_JOB, PAGE_SIZE};
use super::membership::Memberships;
use super::{
    Admin, Cancellation, DeadLetterFilter, HistoryFilter, JobFilter, JobReference, JobState, QueueOverview,
    RawJob, WorkerOverview,
};
pub use backlog::{KeyBacklog, KeyCount};
pub use explanation::{Explanation, JobPlace};
pub use obstacle::Obstacle;
use obstacle::{
    Searched, delay_or_back_off, kind_limit, long_delay, rate_limit, reached_limits, reasons_unseen,
    unknown_kind,
};
pub use pace::{EmptyIn, QueueCounts, QueuePace};
pub use queue::QueueExplanation;
pub use queue_obstacles::QueueObstacle;
pub use senders::IdentifiedJob;
pub use slots::{SlotHolder, SlotUse};

/// The records of workers and the request to cancel a job, as far as they can be read.
struct BlobReadings {
    workers: Vec<WorkerOverview>,
    /// The storage's time; this process's if the records cannot be read.
    now: SystemTime,
    sees_workers: bool,
    cancellation: Option<(Cancellation, SystemTime)>,
    /// The parts that cannot be read.
    unread: Vec<Obstacle>,
}

impl Admin {
    /// Returns the state of a job and the reasons why it does not run. Reads the records of workers, the
    /// first 32 messages of the queue and the first 32 dead letters; if the storage shows all jobs, the first
    /// 10,000 of each state, on Service Bus as many of these as it can read in two seconds. Costs up to twenty
    /// requests, one for each worker, and one for each 1,000 jobs and dead letters of which it reads the
    /// state, or two for each 100 on Service Bus. A job in order costs three more and one for each 32 jobs of
    /// its key, or, if the storage keeps the order, the requests of [`groups`](Self::groups). If the job
    /// seems to be in no queue any more, all of these are made twice.
    ///
    /// If the records of workers, the requests to cancel jobs, the order of the key or the blob of the
    /// payload cannot be read, or not within 8 seconds, a [reason](Explanation::reasons) says so, and the
    /// explanation draws no conclusion from them.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no such queue; [`Invalid`](ErrorKind::Invalid) if it is
    /// a dead-letter queue; [`Storage`](ErrorKind::Storage) if anything else but the history cannot be read.
    pub async fn explain(&self, job: &JobReference) -> Result<Explanation, Error> {
        self.search_twice(job, true).await
    }

    /// Like [`explain`](Self::explain), without a search of the journal, which may take seconds.
    pub(super) async fn explain_without_history(&self, job: &JobReference) -> Result<Explanation, Error> {
        self.search_twice(job, false).await
    }

    async fn search_twice(&self, job: &JobReference, reads_history: bool) -> Result<Explanation, Error> {
        Self::check_home(&job.queue)?;
        let found = self.search_once(job, reads_history).await?;
        // If the job moved during the search, every read may have missed it.
        if found.has_ended { self.search_once(job, reads_history).await } else { Ok(found) }
    }

    /// Searches once, in the order in which a job moves.
    async fn search_once(&self, job: &JobReference, reads_history: bool) -> Result<Explanation, Error> {
        let queue = self.queue(&job.queue).await?;
        let BlobReadings { workers, now, sees_workers, cancellation, unread: mut last } =
            self.read_blobs(job).await;
        let (gone, workers): (Vec<_>, Vec<_>) = workers.into_iter().partition(|worker| worker.stale);
        let mut found = Explanation::new(job);
        let sees_jobs = self.find_open(&mut found, &queue, &workers).await?;
        // Unless the storage shows running jobs, only the records of workers prove that the job does not run.
        let sees_jobs = sees_jobs && (sees_workers || self.shows_all_jobs());
        let sees_dead = found.place == JobPlace::Unseen && self.find_dead(&mut found, &queue).await?;
        // A message that is certainly in no queue has no lease.
        let may_run = found.place == JobPlace::Running || found.place == JobPlace::Unseen && !sees_jobs;
        if found.run.is_none() && may_run {
            found.find_lost_run(&gone, &queue);
        }
        found.has_no_letter = sees_dead && found.place == JobPlace::Unseen;
        let is_certain = sees_jobs && sees_dead;
        if found.place == JobPlace::Unseen && reads_history {
            self.find_end(&mut found, is_certain).await;
        }
        if let Some((cancellation, made)) = cancellation {
            found.find_cancellation(cancellation, made);
        }
        // A job that is certainly not in the queue waits for nothing.
        let may_wait = found.place != JobPlace::Unseen || !sees_jobs;
        let seen = sees_workers.then_some(&workers);
        let of_load = if may_wait { found.add_queue_obstacles(&queue, seen) } else { Vec::new() };
        if let Some(mut message) = found.message.take() {
            Memberships::default().prove(&self.storage, slice::from_mut(&mut message), None).await?;
            if matches!(message.state, JobState::Waiting | JobState::Delayed | JobState::BackingOff) {
                let until = long_delay(&message, now).or_else(|| delay_or_back_off(&message, now));
                // A job that waits for another of its key is held up by its delay only after that job.
                let (first, after_turn) =
                    if message.is_due_after_turn(now) { (None, until) } else { (until, None) };
                found.reasons.splice(0..0, first);
                last.extend(self.add_message_obstacles(&mut found, &message, &queue, &workers).await);
                found.reasons.extend(after_turn.into_iter().chain(kind_limit(&message, &workers)));
                last.extend(rate_limit(&message, &workers));
            }
            found.message = Some(message);
        }
        if found.place == JobPlace::Unseen {
            let searched = Searched { jobs: sees_jobs, dead: sees_dead };
            found.reasons.splice(0..0, reasons_unseen(&queue, self.search_reach(), searched));
        }
        found.reasons.extend(of_load.into_iter().chain(last));
        found.has_ended =
            sees_jobs && matches!(found.place, JobPlace::Dead | JobPlace::Ended | JobPlace::Unseen);
        found.summarise();
        Ok(found)
    }

    /// Reads the blobs, which on Azure Storage and Service Bus are in another service than the queues.
    async fn read_blobs(&self, job: &JobReference) -> BlobReadings {
        let (workers, cancellation) = join!(in_time(self.workers_at()), in_time(self.cancellation_at(job)));
        let mut unread = Vec::new();
        let (workers, now) = workers.unwrap_or_else(|error| {
            unread.push(Obstacle::unread("workers_unread", "the records of workers cannot be read", &error));
            (Vec::new(), self.clock().now())
        });
        let sees_workers = unread.is_empty();
        let cancellation = cancellation.unwrap_or_else(|error| {
            let text = "it cannot be read whether its cancellation was requested";
            unread.push(Obstacle::unread("cancellation_unread", text, &error));
            None
        });
        BlobReadings { workers, now, sees_workers, cancellation, unread }
    }

    /// Finds a job among the messages of its queue, and its run in the records of `workers`. Returns whether
    /// it is certainly not in the queue.
    async fn find_open(
        &self,
        found: &mut Explanation,
        queue: &QueueOverview,
        workers: &[WorkerOverview],
    ) -> Result<bool, Error> {
        // A record is older than the leases that the storage shows: its job may have ended since.
        if !self.shows_running_jobs() {
            found.find_run(workers);
        }
        let is_absent = found.place == JobPlace::Unseen && self.find_waiting(found, queue).await?;
        if found.place == JobPlace::Running || found.place == JobPlace::Unseen && !is_absent {
            found.find_run(workers);
        }
        Ok(is_absent)
    }

    /// Finds a job among all messages of its queue, or among those that a peek shows. Returns whether it is
    /// certainly not there.
    async fn find_waiting(&self, found: &mut Explanation, queue: &QueueOverview) -> Result<bool, Error> {
        if !self.has_index() {
            // A search of a long log may not reach the visible messages. A peek fails for the blob of one of
            // them, and the log does not.
            let peeked = self.peek_without_batches(&found.job.queue).await;
            found.find_message(if self.has_log() { peeked.unwrap_or_default() } else { peeked? });
            if found.place != JobPlace::Unseen || !self.has_log() {
                return Ok(found.place == JobPlace::Unseen && queue.length == Some(0));
            }
        }
        let (name, filter) = (found.job.queue.clone(), JobFilter::of(&found.job));
        let mut sees_all = true;
        // A page of a log takes as long as a search may.
        let most = if self.has_log() { 1 } else { MAX_SEARCHED_FOR_JOB / PAGE_SIZE as usize };
        for state in self.searched_states() {
            let mut pages = 0;
            let mut take = |jobs: Vec<RawJob>| {
                pages += 1;
                found.find_message(jobs);
                found.place == JobPlace::Unseen && pages < most
            };
            let is_all = self.each_page(&name, state, &filter, &mut take).await?;
            found.has_long_search |= pages > 1;
            if found.place != JobPlace::Unseen {
                return Ok(false);
            }
            sees_all &= is_all;
        }
        Ok(sees_all)
    }

    /// Finds a job among the dead letters. Returns whether it is certainly not there.
    async fn find_dead(&self, found: &mut Explanation, queue: &QueueOverview) -> Result<bool, Error> {
        let of_job = DeadLetterFilter::new().ids([&found.job.id]);
        let dead = match self.dead_letters_without_batches(&found.job.queue, &of_job).await {
            // If the queue of the dead letters cannot be read, the overview says so.
            Err(_) if queue.dead_letters.is_none() => return Ok(false),
            dead => dead?,
        };
        found.find_message(dead.letters);
        Ok(dead.complete)
    }

    /// Finds the end of a job in the history. The end is proof that the job has ended only if it `is_certain`
    /// that the job is in no queue.
    async fn find_end(&self, found: &mut Explanation, is_certain: bool) {
        let of_job = HistoryFilter::new().queue(&found.job.queue).id(&found.job.id);
        // If the history cannot be read, for example for lack of permission, the explanation goes without it.
        let history = in_time(self.history(&of_job)).await;
        let jobs = history.map_or_else(|_| Vec::new(), |page| page.jobs);
        let Some(end) = jobs.into_iter().find(|end| found.job.is(&end.source, &end.id)) else { return };
        // A dead letter may have been put back since, or be among the letters that were not read; the message
        // of an uncertain completion may be delivered again.
        if is_certain || end.outcome == "completed" {
            found.place = JobPlace::Ended;
        }
        if !is_certain && end.outcome != "dead_lettered" {
            let text = format!(
                "it ended at {}; a message of the same id may be in the queue or among its dead letters, of which not all were looked at",
                end.ended.escape_debug()
            );
            found.reasons.push(Obstacle::new("ended_once", text));
        }
        found.ended = Some(end);
    }

    /// Adds the reasons that the message shows. Returns those for parts that could not be read.
    async fn add_message_obstacles(
        &self,
        found: &mut Explanation,
        message: &RawJob,
        queue: &QueueOverview,
        workers: &[WorkerOverview],
    ) -> Vec<Obstacle> {
        found.reasons.extend(reached_limits(message, queue));
        found.reasons.extend(unknown_kind(message, workers));
        let mut unread = Vec::new();
        match in_time(self.check_payload(message)).await {
            Err(error) if error.kind() == ErrorKind::Undecodable => {
                found.reasons.push(Obstacle::new("payload_missing", jobqueue_storage::text::chain(&error)));
            }
            Err(error) => {
                let text = "it cannot be read whether its payload is there";
                unread.push(Obstacle::unread("payload_unread", text, &error));
            }
            Ok(()) => {}
        }
        if let Some(deferral) = &message.deferral {
            let cause = match &*deferral.cause {
                "unknown" => "no worker that received it reads its kind and version; deploy one that does",
                "codec_not_ready" => {
                    "no worker that received it can decode its payload now, for example for lack of a key"
                }
                cause => cause,
            };
            let text = format!("it was put back {} times since {}: {cause}", deferral.count, deferral.since);
            found.reasons.push(Obstacle::new("deferred", text));
        }
        if message.in_order {
            match in_time(self.turn(message)).await {
                Ok(turn) => found.reasons.extend(turn),
                Err(error) => {
                    let text = "it cannot be read whether it is its turn";
                    unread.insert(0, Obstacle::unread("turn_unread", text, &error));
                }
            }
        }
        unread
    }

    /// Returns the turn of a job as an obstacle, if it waits for another job of its key.
    async fn turn(&self, message: &RawJob) -> Result<Option<Obstacle>, Error> {
        let Some(key) = message.key.as_deref() else { return Ok(None) };
        let identity = Identity::new(message.source.as_str(), message.id.as_str());
        let found = self.group_of(&message.queue, key, &identity).await?;
        let waits: Vec<_> = found.entries.iter().filter(|entry| !entry.skipped).collect();
        let at = waits.iter().position(|entry| entry.job == found.job);
        let Some(at) = at.filter(|at| *at > 0) else {
            let is_first = if at.is_some() { found.is_first_known } else { found.is_complete };
            let text = "it may wait for another job of its key: there are more jobs than were looked at";
            return Ok((!is_first).then(|| Obstacle::new("waits_for_turn", text)));
        };
        let first = waits[0].id.as_deref().unwrap_or("one that is not visible");
        let overdue = if waits[0].overdue { ", whose message is overdue" } else { "" };
        let more = if found.is_complete { "" } else { "at least " };
        let text = format!(
            "it is number {} of {more}{} of its key, and waits for {}{overdue}",
            at + 1,
            waits.len(),
            first.escape_debug()
        );
        Ok(Some(Obstacle::new("waits_for_turn", text)))
    }
}
