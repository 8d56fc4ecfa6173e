//! The sender of a job that is named by its id alone.

use jobqueue::Error;

use super::obstacle::SEARCHED;
use crate::{Admin, DeadLetterFilter, JobFilter, JobReference, JobState, RawJob};

/// The most jobs of one state and id that are compared by their senders.
const COMPARED: usize = 100;

impl Admin {
    /// Returns the reference with the sender of its job, if it names none: a job is named by its source and its id, and several senders may
    /// use the same id. A reference to a job that is not found stays as it is. It looks at the records of workers and the messages at which
    /// [`explain`](Self::explain) looks, and at no history; a reference with a sender costs nothing.
    ///
    /// # Errors
    /// [`Invalid`](jobqueue::ErrorKind::Invalid) if several senders use the id: the text lists them. [`NotFound`](jobqueue::ErrorKind::NotFound) if there is no
    /// such queue; [`Storage`](jobqueue::ErrorKind::Storage) when something cannot be read.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn identify(&self, job: &JobReference) -> Result<JobReference, Error> {
        if job.source.is_some() {
            return Ok(job.clone());
        }
        let mut found = self.peek_without_batches(&job.queue).await?;
        let running = self.workers().await?.into_iter().flat_map(|worker| worker.record.running);
        found.extend(running.filter(|run| run.queue == job.queue).map(|run| RawJob::of_run(&run)));
        if self.shows_all_jobs() {
            let filter = JobFilter::of(job, SEARCHED).limit(COMPARED).without_batches();
            for state in JobState::IN_QUEUE {
                found.extend(self.jobs(&job.queue, state, &filter).await?.jobs);
            }
        }
        // The operator may not be allowed to read the dead letters: then the other jobs are compared.
        let dead = DeadLetterFilter::new().ids([job.id.as_str()]);
        if let Ok(page) = self.dead_letters(&job.queue, &dead).await {
            found.extend(page.letters);
        }
        let found = found.iter().filter(|found| found.id == job.id);
        let source = job.only_sender(found.map(|found| found.source.as_str()))?;
        Ok(source.map_or_else(|| job.clone(), |source| job.clone().with_source(source)))
    }
}
