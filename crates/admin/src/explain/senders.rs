//! The senders of jobs that are named by their ids alone.

use std::collections::BTreeSet;
use std::slice;

use jobqueue::Error;

use crate::in_time::in_time;
use crate::jobs::MAX_SEARCHED_FOR_JOB;
use crate::{Admin, DeadLetterFilter, JobFilter, JobReference, RawJob};

/// The most jobs of one state and id whose senders are compared.
const MAX_COMPARED: usize = 100;

/// A job with its sender, if it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdentifiedJob {
    /// The job.
    pub job: JobReference,
    /// True if a message of the job waits or runs. May be false in error if the search does not reach all
    /// messages. Unless the storage [shows which jobs run](Admin::shows_running_jobs), may be true in error
    /// until the worker that ran the job writes its next record, or is no longer present.
    pub is_open: bool,
}

impl Admin {
    /// Returns the reference with the sender of its job, if it names none: a job is identified by its source
    /// and its id, and several senders may use the same id. A reference to a job that is not found stays as
    /// it is. Reads the messages that [`explain`](Self::explain) reads and, unless the storage [shows which
    /// jobs run](Self::shows_running_jobs), the records of workers, but no history. A reference with a sender
    /// costs nothing.
    ///
    /// # Errors
    /// [`Invalid`](jobqueue::ErrorKind::Invalid) if several senders use the id: the text lists the first ten.
    /// [`NotFound`](jobqueue::ErrorKind::NotFound) if there is no such queue;
    /// [`Storage`](jobqueue::ErrorKind::Storage) if something cannot be read: a change must not reach one of
    /// several jobs because the others could not be seen.
    pub async fn identify(&self, job: &JobReference) -> Result<JobReference, Error> {
        if job.source.is_some() {
            return Ok(job.clone());
        }
        let found = self.identify_all(slice::from_ref(job)).await?.pop();
        Ok(found.map_or_else(|| job.clone(), |found| found.job))
    }

    /// Identifies many jobs like [`identify`](Self::identify), with one search in each of their queues, and
    /// returns which of them wait or run.
    ///
    /// # Errors
    /// As [`identify`](Self::identify).
    pub async fn identify_all(&self, jobs: &[JobReference]) -> Result<Vec<IdentifiedJob>, Error> {
        let (mut found, mut dead) = (Vec::new(), Vec::new());
        let queues: BTreeSet<_> = jobs.iter().map(|job| job.queue.as_str()).collect();
        for queue in queues {
            let ids = jobs.iter().filter(|job| job.queue == queue).map(|job| job.id.as_str());
            let ids: BTreeSet<_> = ids.collect();
            found.extend(self.open_jobs(queue, &ids).await?);
            // If the dead letters cannot be read, for example for lack of permission, the others are
            // compared.
            let of_ids = DeadLetterFilter::new().ids(ids);
            dead.extend(self.dead_letters_without_batches(queue, &of_ids).await.unwrap_or_default().letters);
        }
        let mut identified = Vec::new();
        for job in jobs {
            let is_it = |found: &&RawJob| found.queue == job.queue && job.is(&found.source, &found.id);
            let sources = found.iter().chain(&dead).filter(is_it).map(|found| found.source.as_str());
            let source = job.only_sender(sources)?;
            identified.push(IdentifiedJob {
                job: source.map_or_else(|| job.clone(), |source| job.clone().with_source(source)),
                is_open: found.iter().any(|found| is_it(&found)),
            });
        }
        Ok(identified)
    }

    /// Returns the waiting and running jobs that a search for these ids shows, including jobs with other ids.
    async fn open_jobs(&self, queue: &str, ids: &BTreeSet<&str>) -> Result<Vec<RawJob>, Error> {
        let mut found = self.peek_without_batches(queue).await?;
        // A record is older than the leases that the storage shows: its job may have ended since.
        if !self.shows_running_jobs() {
            let workers = in_time(self.workers()).await?;
            let running = workers.into_iter().flat_map(|worker| worker.record.running);
            found.extend(running.filter(|run| run.queue == queue).map(|run| RawJob::of_run(&run)));
        }
        if self.shows_all_jobs() {
            let of_ids = JobFilter::new().ids(ids.iter().copied()).limit(MAX_COMPARED * ids.len().max(1));
            found.extend(self.open_messages(queue, &of_ids).await?);
        }
        Ok(found)
    }

    /// Returns the messages that a filter selects and that wait or run, among the first 10,000 of each state,
    /// if the storage [shows all](Self::shows_all_jobs); on Service Bus among those that can be read in two
    /// seconds. The filter's limit is for each state. A running message may be returned twice.
    ///
    /// # Errors
    /// As [`jobs`](Self::jobs).
    #[doc(hidden)]
    pub async fn open_messages(&self, queue: &str, filter: &JobFilter) -> Result<Vec<RawJob>, Error> {
        let mut found = Vec::new();
        for state in self.searched_states() {
            found.extend(self.find_jobs(queue, state, filter, MAX_SEARCHED_FOR_JOB).await?.jobs);
        }
        Ok(found)
    }
}
