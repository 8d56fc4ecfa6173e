//! The jobs of a queue by state, if the storage shows every message.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jobqueue::storage::{MessageId, MessageIndex, MessageState, QueueName};
use jobqueue::{Error, ErrorKind, Storage};
use jobqueue_message::times::rfc3339;
use serde::Serialize;
use tokio::time::Instant;

use super::event::{ActionResult, ActionTarget};
use super::job::Stored;
use super::listed::LOG_SEARCH_TIME;
use super::membership::Memberships;
use super::payload::RawPayload;
use super::queues::not_found;
use super::text::condition;
use super::{Action, Admin, JobReference, JobState, RawJob};

/// The number of jobs that a filter without a limit selects.
const DEFAULT_LIMIT: usize = 100;
/// The number of messages in a page.
pub(super) const PAGE_SIZE: u32 = 1_000;
/// The most messages of each state that are read to find one job, or the jobs before it.
pub(super) const MAX_SEARCHED_FOR_JOB: usize = 10_000;
/// The most messages of a state that a search reads before it returns the jobs found so far; also the most
/// entries of the history that a search for the outcome of a plan reads.
pub(super) const MAX_SEARCHED: usize = 100_000;

/// Selects the jobs of a queue that meet all its conditions, for [`Admin::jobs`].
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct JobFilter {
    ids: Option<BTreeSet<String>>,
    source: Option<String>,
    key: Option<String>,
    kind: Option<String>,
    error: Option<String>,
    batch: Option<String>,
    from: Option<String>,
    limit: Option<usize>,
}

impl JobFilter {
    /// Returns a filter that selects the first 100 jobs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects jobs with one of these ids.
    pub fn ids<I: Into<String>>(mut self, ids: impl IntoIterator<Item = I>) -> Self {
        self.ids = Some(ids.into_iter().map(Into::into).collect());
        self
    }

    jobqueue_storage::setters! {
        /// Selects jobs of this sender.
        source(source some String);

        /// Selects jobs with this key.
        key(key some String);

        /// Selects jobs of this kind.
        kind(kind some String);

        /// Selects the children of this batch.
        batch(id some String) => batch;

        /// Selects jobs whose last error contains this text, matching case.
        error(text some String) => error;

        /// Starts where an earlier search [stopped](JobPage::next).
        from(next from Option<String>) => from;

        /// Stops after this number of jobs, at least one. With other conditions a page of 1,000 messages is
        /// read to its end, so more jobs may be returned.
        limit(jobs: usize) => limit = Some(jobs.max(1));
    }

    /// Returns a filter that selects one job.
    pub(super) fn of(job: &JobReference) -> Self {
        Self { source: job.source.clone(), ..Self::new().ids([&job.id]).limit(1) }
    }

    /// Returns whether all conditions hold except the batch, which a job only claims until it is proven.
    #[doc(hidden)]
    pub fn selects_in_any_batch(&self, job: &RawJob) -> bool {
        let is =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let fits = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        let error = job.last_error.as_deref().unwrap_or_default();
        self.ids.as_ref().is_none_or(|ids| ids.contains(&job.id))
            && is(&self.source, &job.source)
            && is(&self.kind, &job.kind)
            && fits(&self.key, job.key.as_deref())
            && self.error.as_deref().is_none_or(|text| error.contains(text))
    }

    /// Returns the jobs for which all conditions hold. Proves their batches only if the filter names a batch.
    pub(super) async fn select(
        &self,
        storage: &Storage,
        jobs: impl Iterator<Item = RawJob>,
        memberships: &mut Memberships,
    ) -> Result<Vec<RawJob>, Error> {
        let wanted = self.batch.as_deref();
        let mut jobs: Vec<RawJob> = jobs.filter(|job| self.selects_in_any_batch(job)).collect();
        if wanted.is_some() {
            memberships.prove(storage, &mut jobs, wanted).await?;
        }
        jobs.retain(|job| {
            wanted.is_none_or(|wanted| job.batch.as_ref().is_some_and(|batch| batch.id == wanted))
        });
        Ok(jobs)
    }

    /// Returns the batch whose children the filter selects, if it has no other condition.
    pub(super) fn whole_batch(&self) -> Option<&str> {
        let others = Self { batch: None, ..self.clone() };
        self.batch.as_deref().filter(|_| others.selects_all())
    }

    pub(super) fn selects_all(&self) -> bool {
        let Self { ids, source, key, kind, error, batch, .. } = self;
        ids.is_none() && [source, key, kind, error, batch].into_iter().all(Option::is_none)
    }
}

/// The conditions, as text for the audit.
impl fmt::Display for JobFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let conditions = [
            condition("source", &self.source),
            condition("kind", &self.kind),
            condition("key", &self.key),
            condition("batch", &self.batch),
            self.ids.as_ref().map(|ids| format!("ids {ids:?}")),
            condition("error", &self.error),
        ];
        f.write_str(&conditions.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// Jobs of one state.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct JobPage {
    /// The jobs, in the order in which they are due; on Service Bus in the order of their messages.
    pub jobs: Vec<RawJob>,
    /// The position where the search stopped, if there may be more jobs: pass it to the next search.
    pub next: Option<String>,
    /// True if the storage may have jobs that no search shows, as in a partitioned queue of Service Bus, or
    /// if a part of them could not be read, such as their blobs there.
    pub partial: bool,
}

impl Admin {
    /// Returns whether the storage shows all jobs of a queue: SQLite, PostgreSQL, memory and Service Bus do.
    /// On other storages [`jobs`](Self::jobs) fails, and [`peek`](Self::peek) shows the first 32 visible
    /// jobs.
    pub fn shows_all_jobs(&self) -> bool {
        self.has_index() || self.has_log()
    }

    /// Returns whether the storage shows which jobs run. Service Bus does not: there the waiting jobs include
    /// the running ones, as far as only a lease distinguishes them.
    pub fn shows_running_jobs(&self) -> bool {
        self.has_index()
    }

    /// Returns whether the storage can make jobs [due now](Self::run_now): SQLite, PostgreSQL and memory can.
    pub fn makes_jobs_due(&self) -> bool {
        self.has_index()
    }

    /// Returns the jobs of one state that a filter selects, without changing anything. A search reads 1,000
    /// messages a request, and stops after 100,000. Each batch that its jobs name costs a request.
    ///
    /// On Service Bus a search reads 100 messages by one or two requests, then at most 500 a second, and
    /// stops after two seconds. The waiting jobs include the running ones, which have no list of their own.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{QueueMessage, Storage}; use serde::{Deserialize, Serialize}; use std::time::Duration;
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "mails", kind = "mail")] struct Mail { #[message(key)] to: String }
    /// use jobqueue_admin::{AccessLevel, Admin, JobFilter, JobReference, JobState};
    ///
    /// let storage = Storage::memory();
    /// let mails = storage.queue::<Mail>().await?;
    /// mails.send(&Mail { to: "ada".into() }).delay(Duration::from_secs(3600)).await?;
    /// let admin = Admin::builder(storage).access(AccessLevel::Operate).build();
    /// let delayed = admin.jobs("mails", JobState::Delayed, &JobFilter::new().key("ada")).await?;
    /// let first = &delayed.jobs[0];
    /// println!("{} is due at {}", first.id, first.due.as_deref().unwrap_or("an unknown time"));
    /// assert!(admin.run_now(&JobReference::new("mails", &first.id)).await?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if the storage does not show its jobs, or those of this state, for
    /// dead letters, and if no search stopped where this one is to start;
    /// [`NotFound`](ErrorKind::NotFound) if there is no such queue; [`Conflict`](ErrorKind::Conflict) if a job names the filter's batch but that batch does not
    /// exist because it was swept; [`Storage`](ErrorKind::Storage) if something cannot be read.
    pub async fn jobs(&self, queue: &str, state: JobState, filter: &JobFilter) -> Result<JobPage, Error> {
        let mut page = self.find_jobs(queue, state, filter, MAX_SEARCHED).await?;
        Memberships::default().prove(&self.storage, &mut page.jobs, None).await?;
        Ok(page)
    }

    /// Searches the jobs of one state, or of [every](Self::searched_states) state, among at most about
    /// `max_messages` messages, in a log for at most about [`LOG_SEARCH_TIME`]. Does not prove their batches
    /// unless the filter names a batch.
    pub(super) async fn find_jobs(
        &self,
        queue: &str,
        state: impl Into<Option<JobState>>,
        filter: &JobFilter,
        max_messages: usize,
    ) -> Result<JobPage, Error> {
        let state: Option<JobState> = state.into();
        let (begun, name) = (Instant::now(), QueueName::new(queue)?);
        let limit = filter.limit.unwrap_or(DEFAULT_LIMIT);
        let mut page = JobPage { jobs: Vec::new(), next: filter.from.clone(), partial: false };
        let mut searched = 0;
        let mut memberships = Memberships::default();
        loop {
            let left = u32::try_from(limit.saturating_sub(page.jobs.len())).unwrap_or(u32::MAX);
            let count = if filter.selects_all() { left.clamp(1, PAGE_SIZE) } else { PAGE_SIZE };
            let found = self.list(&name, state, page.next.as_deref(), count).await?;
            searched += found.messages.len();
            let jobs = found.messages.iter().map(|listed| {
                let stored = Stored { due: listed.due, ..Stored::from(&listed.message) };
                RawJob::read(name.as_str(), listed.state, stored, name.is_dead_letter())
            });
            let jobs: Vec<_> = jobs.filter(|job| filter.selects_in_any_batch(job)).collect();
            page.jobs.extend(filter.select(&self.storage, jobs.into_iter(), &mut memberships).await?);
            page.next = found.next;
            page.partial |= found.is_partial;
            let is_over = searched >= max_messages || self.has_log() && begun.elapsed() >= LOG_SEARCH_TIME;
            if page.next.is_none() || page.jobs.len() >= limit || is_over {
                return Ok(page);
            }
        }
    }

    /// Passes the jobs of one state that a filter selects to `take`, page by page, so that not all payloads
    /// are kept, until `take` returns false. A page of a log ends at the filter's limit, and otherwise at
    /// 1,000. Each page costs a request, and another if the filter names a batch and a job claims to be its
    /// child. Returns whether these are all jobs.
    pub(super) async fn each_page(
        &self,
        queue: &str,
        state: impl Into<Option<JobState>>,
        filter: &JobFilter,
        take: &mut (impl FnMut(Vec<RawJob>) -> bool + Send),
    ) -> Result<bool, Error> {
        let state: Option<JobState> = state.into();
        let mut is_partial = false;
        let limit = filter.limit.unwrap_or(PAGE_SIZE as usize);
        let mut filter = filter.clone().limit(limit).from(None);
        loop {
            let page = self.find_jobs(queue, state, &filter, PAGE_SIZE as usize).await?;
            is_partial |= page.partial;
            if !take(page.jobs) || page.next.is_none() {
                return Ok(page.next.is_none() && !is_partial);
            }
            filter = filter.from(page.next);
        }
    }

    /// Makes a job due now that is delayed or backing off. A job that waits for another of its key then runs
    /// as soon as its turn comes. Returns the job with its sender, or `None` if there is no such job: it
    /// waits for no time, runs, or has ended.
    ///
    /// # Errors
    /// [`Forbidden`](ErrorKind::Forbidden) unless [`Action::RunNow`] is allowed;
    /// [`Invalid`](ErrorKind::Invalid) if the message itself says that the job does not run before a future
    /// time, as for a delay of more than 7 days, and if several senders use the id and the reference names
    /// none; the errors of [`identify`](Self::identify) and of [`jobs`](Self::jobs).
    ///
    /// # Cancel safety
    /// If the future is dropped, the job may or may not be due.
    pub async fn run_now(&self, job: &JobReference) -> Result<Option<JobReference>, Error> {
        let work = async {
            let (name, index) = (QueueName::new(&job.queue)?, self.index()?);
            let Some(found) = self.find_delayed(job).await? else { return Ok(None) };
            // A worker would put the message back.
            if let Some(until) = found.delayed_until()
                && until > self.storage_time(&name).await?
            {
                let text = format!(
                    "the message of the job says that it does not run before {}: cancel it, and send it again without a delay",
                    rfc3339(until)
                );
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            let Some(id) = &found.message_id else { return Ok(None) };
            let made = index.make_visible(&name, &MessageId::new(id.clone())).await;
            let made = made.map_err(|error| not_found(error, &name))?;
            Ok(made.then(|| found.reference()))
        };
        let to_result = |made: &Option<JobReference>| {
            let detail = if made.is_some() { "it is due now" } else { "it was not waiting for a time" };
            ActionResult { detail: detail.to_owned(), jobs: made.iter().cloned().collect() }
        };
        self.act_on_jobs(Action::RunNow, ActionTarget::of_job(job), work, to_result).await
    }

    /// Returns the message of a job that waits for a time, in a search without a limit. If the reference
    /// names no sender, compares the senders of all messages with the id, including jobs that wait for no
    /// time.
    async fn find_delayed(&self, job: &JobReference) -> Result<Option<RawJob>, Error> {
        let mut sources: BTreeSet<_> = self.identify(job).await?.source.into_iter().collect();
        let mut first = None;
        // A job that waits for another of its key has its own delay, and may become the first of the key
        // during the search. Delayed jobs are searched again for that reason.
        for state in [JobState::Delayed, JobState::BackingOff, JobState::Waiting, JobState::Delayed] {
            // The waiting jobs may be many, and `identify` has compared the senders of the first of them.
            if first.is_some() && state == JobState::Waiting {
                break;
            }
            let mut filter = JobFilter::of(job);
            loop {
                let page = self.find_jobs(&job.queue, state, &filter, MAX_SEARCHED).await?;
                for found in page.jobs {
                    sources.insert(found.source.clone());
                    // A waiting job of a key may be delayed beyond its turn: the storage decides whether it
                    // is due.
                    if state != JobState::Waiting || found.in_order {
                        first.get_or_insert(found);
                    }
                }
                if first.is_some() && job.source.is_some() {
                    return Ok(first);
                }
                if page.next.is_none() {
                    break;
                }
                filter = filter.from(page.next);
            }
        }
        job.only_sender(sources.iter().map(String::as_str))?;
        Ok(first)
    }

    fn index(&self) -> Result<&dyn MessageIndex, Error> {
        let text = "this storage cannot make a job due before its time";
        let index = self.storage.queues().powers().index.as_deref();
        index.ok_or_else(|| Error::new(ErrorKind::Invalid, text))
    }
}

impl RawJob {
    /// Returns the job without its payload, checkpoint and headers, for a list that is kept.
    #[doc(hidden)]
    #[must_use]
    pub fn without_content(self) -> Self {
        Self {
            payload: RawPayload::None,
            checkpoint: RawPayload::None,
            headers: BTreeMap::new(),
            attributes: BTreeMap::new(),
            ..self
        }
    }
}

impl JobState {
    /// The states of the jobs of a queue, in an order in which a search misses no moving job: a running job
    /// may start to wait during the search, and a waiting job may start to run.
    pub(super) const IN_QUEUE: [Self; 5] =
        [Self::Running, Self::BackingOff, Self::Delayed, Self::Waiting, Self::Running];

    /// Returns the name of the state, as in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Delayed => "delayed",
            Self::BackingOff => "backing_off",
            Self::Running => "running",
            Self::Dead => "dead",
        }
    }

    pub(super) fn of_messages(self) -> Option<MessageState> {
        match self {
            Self::Waiting => Some(MessageState::Waiting),
            Self::Delayed => Some(MessageState::Delayed),
            Self::BackingOff => Some(MessageState::BackingOff),
            Self::Running => Some(MessageState::Running),
            Self::Dead => None,
        }
    }
}
