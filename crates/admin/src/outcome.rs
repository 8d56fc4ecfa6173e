//! The outcome of a redrive: where the jobs of its plan are now.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use jobqueue::__internals::{PassAction, is_of_this_life};
use jobqueue::Error;
use jobqueue::dead_letters::{DeadLetter, DeadLetterOptions};
use jobqueue_message::times::parse_rfc3339;
use serde::Serialize;

use super::event::ActionTarget;
use super::jobs::MAX_SEARCHED;
use super::plan::check_storage;
use super::{
    Action, Admin, BulkReport, DeadLetterPlan, HistoryFilter, HistoryRecord, JobFilter, JobReference,
    JobState, PlannedLetter, RawJob,
};

/// The assumed limit of the skew between a worker's clock and the storage's, as for the journal.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(3_600);
/// The precision of times in the journal.
const JOURNAL_PRECISION: Duration = Duration::from_millis(1);
/// The precision of the time of a pass over dead letters that the service keeps: it shows its time in whole
/// seconds.
const SERVICE_PRECISION: Duration = Duration::from_secs(2);

/// The outcome of a plan that was redriven: the number of its jobs in each place. A job counts once, even if
/// the plan names several of its dead letters: a redrive puts back one of them, and deletes the others as
/// copies.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct PlanOutcome {
    /// The number of jobs whose dead letters were not put back or deleted. If a storage does not keep the
    /// times at which letters arrive, as Service Bus, also includes jobs that have died again.
    pub left: u64,
    /// The number of jobs that wait, are delayed, or run.
    pub open: u64,
    /// The number of jobs that have ended and are not dead letters.
    pub ended: u64,
    /// The jobs that are dead letters again.
    pub dead_again: Vec<DeadAgain>,
    /// The number of jobs that were not found, if not all messages were read: they have ended, or are
    /// delayed, or leased by a worker without a record, or behind the messages that were read. Also includes
    /// texts that are not events, once they are put back: their messages then have other ids.
    pub unknown: u64,
    /// True if there are dead letters that were not read, and may include unknown jobs:
    /// [`Admin::search_outcome`] reads all.
    pub more_letters: bool,
    /// True if there are jobs that were not read, because the queue has more than 100,000 of a
    /// state, and may include unknown jobs. Delayed jobs do not count: a redrive sets no delay.
    pub more_jobs: bool,
    /// True if a search that receives dead letters has not met all: other readers have leased some, or the
    /// search was interrupted.
    #[serde(skip)]
    pub(super) hidden_letters: bool,
}

/// A job that was put back and died again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeadAgain {
    /// The job.
    pub job: JobReference,
    /// The error of the new dead letter.
    pub error: Option<String>,
}

/// The place in which a search has found a job. If several messages of a job are found, the last of these
/// places counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Nowhere,
    Left,
    Open,
    DeadAgain(Option<String>),
}

/// The options of a search.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SearchMode {
    /// True if the search also receives the dead letters behind the first 32, which are invisible to other
    /// readers during that time.
    pub(super) receives: bool,
    /// True if all jobs were put back: a letter from before the redrive is a copy of a letter that was put
    /// back.
    pub(super) was_put_back: bool,
}

/// A job of a plan.
struct Planned<'p> {
    job: &'p JobReference,
    letters: Vec<&'p PlannedLetter>,
}

impl<'p> Planned<'p> {
    /// Returns the jobs of a plan, in its order.
    fn all(plan: &'p DeadLetterPlan) -> Vec<Self> {
        let (mut jobs, mut numbers) = (Vec::<Self>::new(), HashMap::new());
        for letter in &plan.letters {
            let number = *numbers.entry(&letter.job).or_insert(jobs.len());
            if number == jobs.len() {
                jobs.push(Self { job: &letter.job, letters: Vec::new() });
            }
            jobs[number].letters.push(letter);
        }
        jobs
    }
}

/// A search for the jobs of a plan.
struct Search<'p> {
    jobs: Vec<&'p Planned<'p>>,
    /// The time of the plan: a letter that arrived earlier is not a new death of a job that was put back.
    /// `None` if the storage does not keep the times at which letters arrive.
    before: Option<SystemTime>,
    was_put_back: bool,
    places: Vec<Place>,
    of_id: HashMap<&'p str, Vec<usize>>,
    /// True if a job that was not found is certainly in no queue.
    sees_all: bool,
    /// True if there are jobs that were not read, although the storage shows all.
    more_jobs: bool,
    /// True if there are dead letters that were not read.
    more_letters: bool,
    /// True if the search received dead letters, and may not have met all.
    hidden_letters: bool,
}

impl<'p> Search<'p> {
    fn new(jobs: Vec<&'p Planned<'p>>, before: Option<SystemTime>, mode: SearchMode) -> Self {
        let mut of_id = HashMap::<_, Vec<_>>::new();
        for (index, planned) in jobs.iter().enumerate() {
            of_id.entry(planned.job.id.as_str()).or_default().push(index);
        }
        let places = vec![Place::Nowhere; jobs.len()];
        Self {
            jobs,
            before,
            was_put_back: mode.was_put_back,
            places,
            of_id,
            sees_all: true,
            more_jobs: false,
            more_letters: false,
            hidden_letters: false,
        }
    }

    /// Records a place of a job.
    fn found(&mut self, source: &str, id: &str, place: impl Fn(&Planned<'_>) -> Place) {
        for index in self.of_id.get(id).into_iter().flatten() {
            let planned = self.jobs[*index];
            if planned.job.is(source, id) {
                let place = place(planned);
                self.places[*index] = self.places[*index].clone().max(place);
            }
        }
    }

    fn found_dead(&mut self, letter: &DeadLetter) {
        let inserted = letter.inserted();
        // Times may be rounded to seconds: a letter from the same moment as the redrive may be a later
        // letter.
        let was_there = inserted.zip(self.before).is_some_and(|(inserted, before)| inserted < before);
        let is_later = inserted.zip(self.before).is_some_and(|(inserted, before)| inserted > before);
        let was_put_back = self.was_put_back;
        self.found(&letter.source, &letter.id, |planned| {
            let has_message = |id: Option<&str>| planned.letters.iter().any(|of| of.message.as_deref() == id);
            let is_any = has_message(None);
            let is_planned = letter.message_id().is_some_and(|id| has_message(Some(id)));
            let may_be_later = planned.letters.iter().any(|of| of.may_precede(letter));
            // The clocks of two shards may differ: the time alone does not show that a job which was put back
            // before has not died again.
            let was_there = was_there && (is_planned || !may_be_later);
            if was_there && was_put_back {
                // A copy of the letter that was put back.
                Place::Nowhere
            } else if is_planned || (is_any && !is_later) {
                Place::Left
            } else if was_there {
                // Another message of the job, which died before the redrive.
                Place::Nowhere
            } else {
                Place::DeadAgain(letter.error.clone())
            }
        });
    }

    fn has_found_all(&self) -> bool {
        !self.places.contains(&Place::Nowhere)
    }

    fn missing(&self) -> Vec<&'p Planned<'p>> {
        let places = self.jobs.iter().zip(&self.places);
        places.filter(|(_, place)| **place == Place::Nowhere).map(|(planned, _)| *planned).collect()
    }
}

impl Admin {
    /// Searches for the jobs of a plan that was redriven, without changing anything: which of them have
    /// ended, which wait or run, and which died again. On SQLite, PostgreSQL and in memory the search
    /// reads up to 100,000 jobs and dead letters of each state, and a job that is in none of them has ended. Otherwise it
    /// reads the first 32 messages and dead letters, the records of workers and their journal, and jobs that
    /// are in none of these are [`unknown`](PlanOutcome::unknown).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::Storage; use jobqueue_admin::{AccessLevel, Admin, DeadLetterFilter};
    /// # let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).build();
    /// # admin.create_queue("mails").await?;
    /// let report = admin.redrive("mails").filter(DeadLetterFilter::all()).run().await?;
    /// let outcome = admin.outcome(&report.plan()).await?;
    /// println!("{} ended, {} wait or run, {} died again", outcome.ended, outcome.open, outcome.dead_again.len());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Invalid`](jobqueue::ErrorKind::Invalid) if the plan belongs to another storage;
    /// [`NotFound`](jobqueue::ErrorKind::NotFound) if there is no such queue;
    /// [`Storage`](jobqueue::ErrorKind::Storage) if something cannot be read.
    pub async fn outcome(&self, plan: &DeadLetterPlan) -> Result<PlanOutcome, Error> {
        self.outcome_with(plan, SearchMode::default()).await
    }

    /// Searches for the jobs that a redrive has put back, as [`outcome`](Self::outcome) does for the jobs of
    /// a plan. A dead letter from before the redrive is a copy of a letter that was put back, and does not
    /// count as [`left`](PlanOutcome::left).
    ///
    /// # Errors
    /// As [`outcome`](Self::outcome).
    pub async fn outcome_of(&self, report: &BulkReport) -> Result<PlanOutcome, Error> {
        self.outcome_with(&report.put_back(), SearchMode { receives: false, was_put_back: true }).await
    }

    /// Searches for the jobs of a plan like [`outcome`](Self::outcome), but also behind the first 32 dead
    /// letters, which are invisible to other readers during that time. Costs one request for 32 dead letters,
    /// and one for each letter to put it back.
    ///
    /// # Errors
    /// [`Forbidden`](jobqueue::ErrorKind::Forbidden) unless [`Action::Inspect`] is allowed; otherwise as
    /// [`outcome`](Self::outcome).
    ///
    /// # Cancel safety
    /// If the future is dropped, the dead letters that it has leased come back after at most 10 minutes.
    pub async fn search_outcome(&self, plan: &DeadLetterPlan) -> Result<PlanOutcome, Error> {
        let work = self.outcome_with(plan, SearchMode { receives: true, was_put_back: false });
        let summary = |outcome: &PlanOutcome| format!("{} jobs have ended", outcome.ended);
        let target = ActionTarget { jobs: plan.jobs(), ..format!("dead letters of {}", plan.queue).into() };
        self.act(Action::Inspect, target, work, summary).await
    }

    pub(super) async fn outcome_with(
        &self,
        plan: &DeadLetterPlan,
        mode: SearchMode,
    ) -> Result<PlanOutcome, Error> {
        check_storage(plan.storage.as_deref(), self)?;
        let jobs = Planned::all(plan);
        let first = self.search(plan, jobs.iter().collect(), mode).await?;
        // If a job moved during the first search, every read may have missed it.
        let again = if self.stop.is_cancelled() {
            Search { sees_all: false, ..Search::new(first.missing(), None, mode) }
        } else {
            self.search(plan, first.missing(), mode).await?
        };
        let is_certain = first.sees_all && again.sees_all;
        let done =
            if is_certain || again.has_found_all() { HashMap::new() } else { self.completed(plan).await? };
        let hidden_letters = first.hidden_letters || again.hidden_letters;
        let (more_jobs, more_letters) = (first.more_jobs || again.more_jobs, again.more_letters);
        let mut outcome = PlanOutcome { more_letters, more_jobs, hidden_letters, ..PlanOutcome::default() };
        let found = first.jobs.iter().zip(&first.places).filter(|(_, place)| **place != Place::Nowhere);
        for (planned, place) in found.chain(again.jobs.iter().zip(&again.places)) {
            let job = planned.job;
            match place {
                Place::Left => outcome.left += 1,
                Place::Open => outcome.open += 1,
                Place::DeadAgain(error) => {
                    outcome.dead_again.push(DeadAgain { job: job.clone(), error: error.clone() });
                }
                // Its message got another id in the redrive.
                Place::Nowhere if planned.letters.iter().any(|letter| letter.text) => outcome.unknown += 1,
                Place::Nowhere if is_certain => outcome.ended += 1,
                Place::Nowhere => {
                    let mut sources = done.get(&job.id).into_iter().flatten();
                    let is_done = sources.any(|source| job.is(source, &job.id));
                    *(if is_done { &mut outcome.ended } else { &mut outcome.unknown }) += 1;
                }
            }
        }
        Ok(outcome)
    }

    /// Searches once, in the order in which jobs move: running, waiting, running, dead.
    async fn search<'p>(
        &self,
        plan: &DeadLetterPlan,
        jobs: Vec<&'p Planned<'p>>,
        mode: SearchMode,
    ) -> Result<Search<'p>, Error> {
        // A service that dead-letters messages itself gives a letter the time of its message, by the sender's
        // clock.
        let arrivals_are_known = self.storage.queues().powers().dead_letters.is_none();
        let before = plan.before.filter(|_| arrivals_are_known);
        let (queue, mut search) = (plan.queue.as_str(), Search::new(jobs, before, mode));
        if search.jobs.is_empty() {
            return Ok(search);
        }
        self.search_queue(queue, &mut search).await?;
        let dead = self.dead_letter_queue(queue).await?;
        let (count, peeked) = (dead.known_count().await?, dead.peek().await?);
        peeked.letters.iter().for_each(|letter| search.found_dead(letter));
        if count.is_some_and(|count| peeked.looked_at >= count) || search.has_found_all() {
            return Ok(search);
        }
        if !mode.receives {
            let select = |letter: &DeadLetter| {
                search.found_dead(letter);
                search.of_id.contains_key(letter.id.as_str())
            };
            // A log is not walked for each of many checks.
            let searched =
                if self.has_index() { dead.search(self.max_searched, select).await? } else { None };
            search.more_letters = searched.is_none_or(|searched| !searched.complete);
            search.sees_all &= !search.more_letters;
            return Ok(search);
        }
        let options = DeadLetterOptions::new().stop(self.stop.clone());
        let report = dead.pass(&options, PassAction::Report, &mut |letter| search.found_dead(letter)).await?;
        search.hidden_letters = report.unseen != Some(0) || report.stopped.is_some();
        search.sees_all &= !search.hidden_letters;
        Ok(search)
    }

    /// Searches for the waiting and running jobs.
    async fn search_queue(&self, queue: &str, search: &mut Search<'_>) -> Result<(), Error> {
        if self.has_index() {
            // A record is older than the leases that the storage shows: its job may have ended since.
            for state in JobState::IN_QUEUE {
                if !search.has_found_all() {
                    self.search_state(queue, state, search).await?;
                }
            }
            return Ok(());
        }
        for worker in self.workers().await? {
            for run in worker.record.running.iter().filter(|run| run.queue == queue) {
                search.found(&run.source, &run.id, |_| Place::Open);
            }
        }
        for job in self.peek_without_batches(queue).await? {
            search.found(&job.source, &job.id, |_| Place::Open);
        }
        search.sees_all = self.queue(queue).await?.length == Some(0);
        Ok(())
    }

    async fn search_state(&self, queue: &str, state: JobState, search: &mut Search<'_>) -> Result<(), Error> {
        let mut searched = 0;
        let mut take = |jobs: Vec<RawJob>| {
            jobs.iter().for_each(|job| search.found(&job.source, &job.id, |_| Place::Open));
            searched += jobs.len();
            searched < self.max_searched && !search.has_found_all()
        };
        let read_all = self.each_page(queue, state, &JobFilter::new(), &mut take).await?;
        // A letter is put back without a delay.
        if !read_all && state != JobState::Delayed && !search.has_found_all() {
            (search.sees_all, search.more_jobs) = (false, true);
        }
        Ok(())
    }

    /// Returns the sources of the jobs that have completed since the plan was made, by job id, as far as the
    /// journal shows it.
    async fn completed(&self, plan: &DeadLetterPlan) -> Result<HashMap<String, Vec<String>>, Error> {
        let Some(before) = plan.before else { return Ok(HashMap::new()) };
        // Ends are recorded by the clocks of workers.
        let since = before.checked_sub(MAX_CLOCK_SKEW).unwrap_or(SystemTime::UNIX_EPOCH);
        let filter = HistoryFilter::new().queue(&plan.queue).since(since).outcome("completed");
        // If the history cannot be read, for example for lack of permission, the outcome goes without it.
        let jobs = self.history(&filter.limit(MAX_SEARCHED)).await.map(|page| page.jobs).unwrap_or_default();
        let mut completed = HashMap::<_, Vec<_>>::new();
        // Insertions are recorded by the storage's clock, to the millisecond. A message inserted earlier
        // belongs to an earlier life of the job.
        let is_of_service = self.storage.queues().powers().dead_letters.is_some();
        let precision = if is_of_service { SERVICE_PRECISION } else { JOURNAL_PRECISION };
        let is_later = |end: &HistoryRecord| {
            let inserted = parse_rfc3339(&end.inserted);
            inserted.is_none_or(|at| before <= at + precision || is_of_this_life(at, before))
        };
        for end in jobs.into_iter().filter(is_later) {
            completed.entry(end.id).or_default().push(end.source);
        }
        Ok(completed)
    }
}
