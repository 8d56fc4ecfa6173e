//! The jobs that a cancellation covers: selected by a filter, or named.

use std::collections::BTreeSet;

use jobqueue::__internals::{batch_children, batch_source};
use jobqueue::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

use super::event::ActionTarget;
use super::jobs::{MAX_SEARCHED, MAX_SEARCHED_FOR_JOB, PAGE_SIZE};
use super::membership::Memberships;
use super::{Admin, JobFilter, JobReference, RawJob};

/// The most jobs in a plan.
const MAX_PLANNED: usize = 100_000;
/// The most searches through all jobs until a search finds no new one.
const MAX_SEARCHES: u32 = 8;

/// The jobs that a cancellation covers, and no others: the jobs that [`Admin::plan_cancel`] has found, or
/// named jobs. In JSON it is a file that one operator writes and another executes; unknown fields are
/// refused.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use jobqueue::Storage;
/// use jobqueue_admin::{AccessLevel, Admin, JobFilter};
///
/// # let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).build();
/// # admin.create_queue("mails").await?;
/// let plan = admin.plan_cancel("mails", &JobFilter::new().key("ada")).await?;
/// println!("{} jobs would be cancelled", plan.jobs.len());
/// let _ = admin.cancel_all(&plan).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CancelPlan {
    /// The [description](jobqueue::Storage::description) of the storage that was searched: no other storage
    /// executes the plan. `None` if the jobs were named, or if any storage may execute it.
    pub storage: Option<String>,
    /// The jobs by name: a job that was sent or redriven under such a name after the plan was made is
    /// cancelled too.
    pub jobs: Vec<JobReference>,
    /// True if no request is missing after this plan, as far as consecutive searches can show it: the storage
    /// shows all jobs, and a further search found no new job that the filter selects; or there were no more
    /// messages than were read. A job that starts and fails every second or two may be missed by all
    /// searches.
    pub complete: bool,
    /// The conditions that selected the jobs, for the audit. A file does not have them: it could name others,
    /// and would hold a key.
    #[serde(skip)]
    selection: String,
}

impl CancelPlan {
    /// Returns the plan for these jobs.
    pub fn of_jobs(jobs: impl IntoIterator<Item = JobReference>) -> Self {
        let jobs = jobs.into_iter().collect();
        Self { storage: None, jobs, complete: true, selection: String::new() }
    }

    pub(super) fn target(&self) -> ActionTarget {
        if let [job] = &self.jobs[..] {
            return ActionTarget { selection: self.selection.clone(), ..ActionTarget::of_job(job) };
        }
        let queues: BTreeSet<_> = self.jobs.iter().map(|job| job.queue.as_str()).collect();
        let queues = queues.into_iter().collect::<Vec<_>>().join(", ");
        let conditions = Some(self.selection.clone()).filter(|conditions| !conditions.is_empty());
        let parts = conditions.into_iter().chain([format!("a plan of {} jobs", self.jobs.len())]);
        let selection = parts.collect::<Vec<_>>().join(", ");
        ActionTarget { subject: format!("jobs of {queues}"), selection, jobs: self.jobs.clone() }
    }
}

impl Admin {
    /// Returns the waiting, delayed, backing-off and running jobs of a queue that a filter selects, without
    /// changing anything. If the storage does not show all jobs, these are the first 32 visible jobs and the
    /// jobs in the records of workers, and the filter cannot select running jobs by their errors. On Service
    /// Bus these are added to the messages that ten searches of two seconds read, some 9,000 at most, if
    /// there are more. For a whole batch they include the children that have not ended, if these have the ids
    /// that a batch assigns. A plan has at most 100,000 jobs, found among the first 100,000 messages of each
    /// state; the filter's limit and start are ignored. If there are more jobs, the next plan finds others once
    /// workers have received these.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a filter without a condition; [`NotFound`](ErrorKind::NotFound) if
    /// there is no such queue; [`Conflict`](ErrorKind::Conflict) if a job names the filter's batch but that
    /// batch does not exist because it was swept; [`Storage`](ErrorKind::Storage) if something cannot be
    /// read.
    pub async fn plan_cancel(&self, queue: &str, filter: &JobFilter) -> Result<CancelPlan, Error> {
        if filter.selects_all() {
            let text = "no jobs are selected: give the filter a condition";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let mut found = BTreeSet::new();
        let mut complete = self.shows_all_jobs() && self.select_all(queue, filter, &mut found).await?;
        if !complete && !self.has_index() {
            complete = self.select_shown(queue, filter, &mut found).await?;
        }
        complete &= found.len() <= MAX_PLANNED;
        let storage = Some(self.storage.description().to_owned());
        let jobs = found.into_iter().take(MAX_PLANNED).collect();
        Ok(CancelPlan { storage, jobs, complete, selection: filter.to_string() })
    }

    /// Adds the jobs that a filter selects among those that a peek and the records of workers show. Returns
    /// whether these are all.
    async fn select_shown(
        &self,
        queue: &str,
        filter: &JobFilter,
        found: &mut BTreeSet<JobReference>,
    ) -> Result<bool, Error> {
        let ids = |jobs: &[RawJob]| jobs.iter().map(|job| job.message_id.clone()).collect::<BTreeSet<_>>();
        let before = ids(&self.peek_without_batches(queue).await?);
        let overview = self.queue(queue).await?;
        let running = self.workers().await?.into_iter().flat_map(|worker| worker.record.running);
        let running = running.filter(|run| run.queue == queue).map(|run| RawJob::of_run(&run));
        let peeked = self.peek_without_batches(queue).await?;
        // Messages that were there both before and after the queue was counted are among those counted.
        let complete = overview.length == Some(peeked.len() as u64) && ids(&peeked) == before;
        let selected =
            filter.select(&self.storage, running.chain(peeked), &mut Memberships::default()).await?;
        found.extend(selected.iter().map(RawJob::reference));
        if let Some(batch) = filter.whole_batch() {
            found.extend(self.open_children(queue, batch).await?);
        }
        Ok(complete)
    }

    /// Returns the children of a batch that have not ended, by the identities that a batch assigns. A child
    /// may be in another queue, have another identity, or be a dead letter: then the request affects no job.
    async fn open_children(&self, queue: &str, batch: &str) -> Result<Vec<JobReference>, Error> {
        let found = batch_children(&self.storage, batch).await?;
        let (Some(found), Some(source)) = (found, batch_source(&self.storage, batch).await?) else {
            return Ok(Vec::new());
        };
        let open = (0..found.progress.children).filter(|index| !found.ended.contains(index));
        let child = |index| JobReference::new(queue, format!("{batch}/{index}")).with_source(&source);
        Ok(open.map(child).take(MAX_PLANNED + 1).collect())
    }

    /// Adds the jobs that a filter selects, in every state. Returns whether these are all: a further search
    /// found no new job.
    async fn select_all(
        &self,
        queue: &str,
        filter: &JobFilter,
        found: &mut BTreeSet<JobReference>,
    ) -> Result<bool, Error> {
        let most = if self.has_log() { MAX_SEARCHED_FOR_JOB } else { MAX_SEARCHED };
        let filter = &filter.clone().limit(PAGE_SIZE as usize);
        for search in 0..MAX_SEARCHES {
            let (known, mut all) = (found.len(), true);
            for state in self.searched_states() {
                let mut pages = 0;
                let mut take = |jobs: Vec<RawJob>| {
                    found.extend(jobs.iter().map(RawJob::reference));
                    pages += 1;
                    found.len() <= MAX_PLANNED && pages < most / PAGE_SIZE as usize
                };
                all &= self.each_page(queue, state, filter, &mut take).await?;
            }
            if !all || found.len() > MAX_PLANNED {
                return Ok(false);
            }
            // A search may miss a job in every state if the job starts, fails or becomes due during the
            // search. The next search finds it.
            if search > 0 && found.len() == known {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
