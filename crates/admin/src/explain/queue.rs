//! The explanation of a queue: how fast its jobs end, what holds its slots, and why its jobs do not start.

use std::time::Duration;

use futures_util::join;
use jobqueue::Error;
use jobqueue_storage::text::chain;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::backlog::KeyBacklog;
use super::obstacle::Obstacle;
use super::pace::{EmptyIn, QueueCounts, QueuePace};
use super::queue_obstacles::{QueueObstacle, obstacles};
use super::slots::SlotUse;
use crate::in_time::in_time;
use crate::text::{grouped, short_duration};
use crate::{Admin, JobFilter, JobState, QueueOverview, RawJob, WorkerOverview};

/// The most jobs that back off whose errors and kinds are looked at.
const MAX_BACKING_OFF: usize = 100;

/// The pace of a queue, and what holds up its jobs. Figures that are unknown are `None`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct QueueExplanation {
    /// The queue.
    pub queue: String,
    /// One or two sentences: the length and the pace, and the first reason why jobs do not start.
    pub summary: String,
    /// The approximate number of messages, invisible ones included.
    pub length: Option<u64>,
    /// The pace between two looks.
    #[serde(flatten)]
    pub pace: QueuePace,
    /// The time until the queue is empty at this pace.
    pub empty_in: EmptyIn,
    /// The slots of the queue's workers; `None` if the records of workers cannot be read.
    pub slots: Option<SlotUse>,
    /// The keys with the most waiting jobs; `None` if they were not read.
    pub keys: Option<KeyBacklog>,
    /// The reasons why jobs do not start: first those that concern all jobs, then those of some kinds or
    /// workers, last a rate limit that jobs may wait for and parts of the storage that cannot be read.
    pub reasons: Vec<QueueObstacle>,
}

/// A look at a queue and the records of workers.
struct QueueLook {
    taken: Instant,
    queue: QueueOverview,
    workers: Result<Vec<WorkerOverview>, String>,
}

impl QueueLook {
    fn known_workers(&self) -> Option<&[WorkerOverview]> {
        self.workers.as_deref().ok()
    }

    fn counts(&self) -> QueueCounts {
        QueueCounts::of(self.taken, &self.queue, self.known_workers())
    }

    /// Returns whether jobs of the queue may end while it is watched.
    fn has_pace(&self) -> bool {
        let mut workers = self.known_workers().unwrap_or_default().iter();
        !self.queue.is_empty() && workers.any(|worker| worker.record.listens_to(&self.queue.name))
    }
}

impl QueueExplanation {
    /// Explains a queue by figures that were read before: the records of workers and the jobs that a
    /// [peek](Admin::peek) shows, or the reasons why these cannot be read. The [keys](Self::keys) are not
    /// read.
    #[doc(hidden)]
    pub fn of(
        queue: &QueueOverview,
        workers: Result<&[WorkerOverview], &str>,
        next: Result<&[RawJob], &str>,
        pace: QueuePace,
    ) -> Self {
        let present = workers.map(|workers| {
            let present = workers.iter().filter(|worker| !worker.stale);
            present.filter(|worker| worker.record.listens_to(&queue.name)).collect::<Vec<_>>()
        });
        let mut explanation = Self {
            queue: queue.name.clone(),
            summary: String::new(),
            length: queue.length,
            pace,
            empty_in: EmptyIn::of(queue, &pace),
            slots: present.as_ref().ok().map(|present| SlotUse::of(&queue.name, present)),
            keys: None,
            reasons: obstacles(queue, workers, next),
        };
        explanation.summarise();
        explanation
    }

    fn summarise(&mut self) {
        let length = match self.length {
            None => "Its length cannot be read".to_owned(),
            Some(0) => "It is empty".to_owned(),
            Some(1) => "It has 1 job".to_owned(),
            Some(length) => format!("It has {} jobs", grouped(length, ',')),
        };
        let rate = match (self.pace.ended_text(), self.pace.measured_seconds) {
            _ if self.length == Some(0) => String::new(),
            (Some(rate), Some(seconds)) => {
                let measured = Duration::try_from_secs_f64(seconds).map(short_duration).unwrap_or_default();
                format!("; {rate} ended in the last {measured}")
            }
            _ => "; the rate at which jobs end is unknown".to_owned(),
        };
        let empty = match self.empty_in {
            EmptyIn::After { seconds } if seconds > 0.0 => format!(", and it is empty in {}", self.empty_in),
            EmptyIn::Never => ", and it will not be empty at this pace".to_owned(),
            _ => String::new(),
        };
        let why = self.reasons.iter().find(|why| !why.is_unread()).filter(|_| self.length != Some(0));
        let why = why.map(|why| format!(" Held up: {}.", why.text)).unwrap_or_default();
        self.summary = format!("{length}{rate}{empty}.{why}");
    }
}

impl Admin {
    /// Returns how fast the jobs of a queue end, the time until it is empty, the jobs that hold the slots of
    /// its workers, the keys with the most waiting jobs, and the reasons why jobs do not start.
    ///
    /// Looks twice, `measure` apart, because the rate is the difference of two looks. It is known if each
    /// worker of the queue has written its record in between, which it does every 15 seconds by default. A
    /// zero `measure` measures no rate. Looks once also if the queue is empty, and if no worker with a record
    /// serves it. A look costs the same as [`queue`](Self::queue) and [`workers`](Self::workers); the call
    /// costs a [`peek`](Self::peek) and a [`key_backlog`](Self::key_backlog) besides, and a page of
    /// [`jobs`](Self::jobs) if any back off.
    ///
    /// If the records of workers, the next jobs or the keys cannot be read, the last two not within 8 seconds,
    /// a [reason](QueueExplanation::reasons) says so.
    ///
    /// # Errors
    /// [`NotFound`](jobqueue::ErrorKind::NotFound) if there is no such queue;
    /// [`Invalid`](jobqueue::ErrorKind::Invalid) if it is a dead-letter queue;
    /// [`Storage`](jobqueue::ErrorKind::Storage) if the queue cannot be read.
    pub async fn explain_queue(&self, queue: &str, measure: Duration) -> Result<QueueExplanation, Error> {
        Self::check_home(queue)?;
        let (mut look, mut pace) = (self.look_at(queue).await?, QueuePace::default());
        if !measure.is_zero() && look.has_pace() {
            let before = look.counts();
            sleep(measure).await;
            look = self.look_at(queue).await?;
            pace = look.counts().since(&before);
        }
        let next = in_time(self.next_jobs(&look.queue));
        let (next, keys) = join!(next, in_time(self.key_backlog(queue)));
        let workers = look.workers.as_deref().map_err(String::as_str);
        let next = next.map_err(|error| chain(&error));
        let next = next.as_deref().map_err(String::as_str);
        let mut found = QueueExplanation::of(&look.queue, workers, next, pace);
        match keys {
            Ok(keys) => found.keys = Some(keys),
            Err(error) => {
                let text = "the keys of the jobs cannot be read";
                let unread = Obstacle::unread("keys_unread", text, &error);
                found.reasons.push(QueueObstacle::new(unread, ["groups", queue]));
            }
        }
        Ok(found)
    }

    /// Returns the jobs that a peek shows, and the first jobs that back off, if the storage shows these.
    async fn next_jobs(&self, queue: &QueueOverview) -> Result<Vec<RawJob>, Error> {
        let mut next = self.peek_without_batches(&queue.name).await?;
        if queue.states.is_some_and(|states| states.backing_off > 0) && self.has_index() {
            let first = JobFilter::new().limit(MAX_BACKING_OFF);
            next.extend(
                self.find_jobs(&queue.name, JobState::BackingOff, &first, MAX_BACKING_OFF).await?.jobs,
            );
        }
        Ok(next)
    }

    async fn look_at(&self, queue: &str) -> Result<QueueLook, Error> {
        let taken = Instant::now();
        let (queue, workers) = join!(self.queue(queue), self.workers());
        Ok(QueueLook { taken, queue: queue?, workers: workers.map_err(|error| chain(&error)) })
    }
}
