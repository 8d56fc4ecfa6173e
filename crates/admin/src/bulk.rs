//! Redriving and purging the dead letters that a plan names, or that a filter selects.

use std::time::SystemTime;

use jobqueue::__internals::PassAction;
use jobqueue::dead_letters::{DeadLetter, DeadLetterOptions, RedriveReport};
use jobqueue::{Error, ErrorKind};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::dead_letters::{DeadLetterFilter, selecting};
use super::errors::{ErrorCounts, ErrorGroup};
use super::event::{Changes, Deed};
use super::text::exact_time_option;
use super::{Action, Admin, DeadLetterPlan, JobReference, PlannedLetter, plan};

/// The progress of a redrive or a purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BulkProgress {
    /// The number of dead letters that were dealt with.
    pub done: u64,
    /// The number of dead letters of the plan; without one, about how many there were when it began, those included that the filter does
    /// not select.
    pub total: u64,
    /// True while a redrive waits until the jobs of its canary have ended.
    pub waits: bool,
}

/// The result of a redrive or a purge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[must_use]
#[non_exhaustive]
pub struct BulkReport {
    /// The queue.
    pub queue: String,
    /// The time after which it left dead letters alone, by the storage's clock: its beginning, or that of the dry run of its plan.
    #[serde(serialize_with = "exact_time_option")]
    pub before: Option<SystemTime>,
    /// True for a dry run: the jobs are the ones that would have been changed.
    pub dry_run: bool,
    /// The number of jobs that were put back, or whose dead letters were deleted.
    pub count: u64,
    /// These jobs.
    pub jobs: Vec<JobReference>,
    /// After a dry run, these by their errors, the largest group first: at most the 1,000 groups that were met first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ErrorGroup>,
    /// The number of these in none of the groups, because there are more.
    pub ungrouped: u64,
    /// The dead letters that were selected and with which it failed.
    pub skipped: Vec<SkippedJob>,
    /// The number of dead letters that were deleted as copies, or after a dry run would be: of one that was dealt with, or of the same job in
    /// another message.
    pub copies: u64,
    /// The number of deleted dead letters with a payload that could not be deleted: it stays until a sweep of drained queues.
    pub payloads_left: u64,
    /// The number of dead letters that were looked at and left.
    pub left: u64,
    /// The number of these that came after [`before`](Self::before), at least.
    pub newer: u64,
    /// The number of dead letters of its plan that it did not meet: they are gone, or other operations or programs hold them. `None` without
    /// a plan, and if it ended before it had looked at all.
    pub missing: Option<u64>,
    /// About how many dead letters are there that it did not meet: other readers hold them for up to 10 minutes, they came meanwhile, or
    /// it ended before. `None` if the storage did not return their number.
    pub unseen: Option<u64>,
    /// True if it met all that it was to take: as many as its limit or its plan has, or else every dead letter that is there. If not, others
    /// may hold some that are selected, or some came meanwhile: run it again.
    pub complete: bool,
    /// The cause, if it ended before it had looked at all.
    pub stopped: Option<String>,
    #[serde(skip)]
    pub(super) letters: Vec<PlannedLetter>,
    /// The skipped jobs that it may have changed.
    #[serde(skip)]
    maybe_changed: Vec<JobReference>,
}

/// A dead letter that was selected and not dealt with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SkippedJob {
    /// The id of the job.
    pub id: String,
    /// The error with its causes, in one line.
    pub error: String,
    /// True if the job was put back, or perhaps was: then it is in both queues. In a purge, true if its dead letter may be deleted.
    pub maybe_moved: bool,
}

/// The dead letters that a redrive or a purge may take.
#[derive(Debug)]
pub(super) enum Selection {
    Filter(DeadLetterFilter),
    Plan(DeadLetterPlan),
}

/// A redrive or a purge that is put together; [`run`](Self::run) does it. Begun by [`Admin::redrive`] and [`Admin::purge`].
#[must_use = "nothing happens before `run`"]
pub struct Bulk<'a> {
    pub(super) admin: &'a Admin,
    queue: String,
    purges: bool,
    pub(super) selection: Selection,
    pub(super) limit: Option<u64>,
    /// The jobs of the canary, which were put back: their other letters are left alone.
    pub(super) put_back: Vec<PlannedLetter>,
    per_second: Option<u32>,
    canary: Option<u64>,
    /// The number of dead letters of the canary, and of all that it may meet, for the progress.
    pub(super) done_before: u64,
    pub(super) total: u64,
    dry_run: bool,
    pub(super) stop: CancellationToken,
    pub(super) progress: Box<dyn FnMut(BulkProgress) + Send + 'a>,
}

impl Admin {
    /// Begins to put dead letters back into their queue: their jobs get all their attempts again. The rules are those of
    /// [`DeadLetters::redrive`](jobqueue::dead_letters::DeadLetters::redrive).
    pub fn redrive(&self, queue: &str) -> Bulk<'_> {
        self.bulk(queue, false)
    }

    /// Begins to delete dead letters with their payloads. There is no way back. The rules are those of
    /// [`DeadLetters::purge`](jobqueue::dead_letters::DeadLetters::purge).
    pub fn purge(&self, queue: &str) -> Bulk<'_> {
        self.bulk(queue, true)
    }

    fn bulk(&self, queue: &str, purges: bool) -> Bulk<'_> {
        Bulk {
            admin: self,
            queue: queue.to_owned(),
            purges,
            selection: Selection::Filter(DeadLetterFilter::new()),
            limit: None,
            put_back: Vec::new(),
            per_second: None,
            canary: None,
            done_before: 0,
            total: 0,
            dry_run: false,
            stop: CancellationToken::new(),
            progress: Box::new(|_| {}),
        }
    }
}

impl<'a> Bulk<'a> {
    /// Selects the dead letters for which the filter's conditions hold when it runs: also those that died in the meantime. After a
    /// preview, execute its [plan](Self::plan).
    pub fn filter(mut self, filter: DeadLetterFilter) -> Self {
        self.selection = Selection::Filter(filter);
        self
    }

    /// Selects the dead letters of the plan, instead of a filter's. It ends when it has found them, without reading the others.
    pub fn plan(mut self, plan: DeadLetterPlan) -> Self {
        self.selection = Selection::Plan(plan);
        self
    }

    /// Takes at most this many.
    pub fn limit(mut self, jobs: u64) -> Self {
        self.limit = Some(jobs);
        self
    }

    /// Takes at most this many a second.
    pub fn per_second(mut self, rate: u32) -> Self {
        self.per_second = Some(rate);
        self
    }

    /// Puts so many back first, and the others when these jobs have ended and none of them died again. Otherwise the report says why it
    /// [stopped](BulkReport::stopped), and the others are left alone. It waits as long as a job of the canary waits or runs; where the storage does not
    /// show whether it has ended, and no journal does, it stops after two minutes. Zero is none. It has no effect on a purge or a dry run.
    pub fn canary(mut self, jobs: u64) -> Self {
        self.canary = Some(jobs).filter(|jobs| *jobs > 0);
        self
    }

    /// Reports the changes without making them, for a [plan](BulkReport::plan). It receives all dead letters, which are invisible to others meanwhile,
    /// and requires [`Action::Inspect`] instead of the action itself.
    pub fn dry_run(mut self, dry: bool) -> Self {
        self.dry_run = dry;
        self
    }

    /// Ends once `token` fires, after the dead letters that are under way, at most 16. The others become visible again at once, which
    /// they do not if the future is dropped.
    pub fn stop_when(mut self, token: CancellationToken) -> Self {
        self.stop = token;
        self
    }

    /// Calls `listener` after each dead letter.
    pub fn on_progress(mut self, listener: impl FnMut(BulkProgress) + Send + 'a) -> Self {
        self.progress = Box::new(listener);
        self
    }

    /// Does it.
    ///
    /// # Errors
    /// [`Forbidden`](jobqueue::ErrorKind::Forbidden); [`Invalid`](jobqueue::ErrorKind::Invalid) if nothing is selected, or a plan is that of
    /// another queue; [`NotFound`](jobqueue::ErrorKind::NotFound) if there is no such queue;
    /// [`Storage`](jobqueue::ErrorKind::Storage) when the dead letters cannot be read at all: nothing was changed. What fails later is in
    /// the report.
    ///
    /// # Cancel safety
    /// If the future is dropped, dead letters that it held come back after at most 10 minutes; the one under way may be in
    /// both queues.
    pub async fn run(mut self) -> Result<BulkReport, Error> {
        let (admin, deed) = (self.admin, self.deed());
        let action = match (self.dry_run, self.purges) {
            (true, _) => Action::Inspect,
            (false, true) => Action::Purge,
            (false, false) => Action::Redrive,
        };
        let verb = if self.purges { "deleted" } else { "put back" };
        let would = if self.dry_run { "would be " } else { "" };
        let changes = |report: &BulkReport| {
            let stopped =
                report.stopped.as_ref().map(|why| format!("; it ended early: {why}")).unwrap_or_default();
            let jobs = report.jobs.iter().chain(&report.maybe_changed).filter(|_| !report.dry_run);
            Changes {
                detail: format!("{} {would}{verb}, {} skipped{stopped}", report.count, report.skipped.len()),
                jobs: jobs.cloned().collect(),
            }
        };
        let work = async {
            match self.canary.filter(|_| action == Action::Redrive) {
                Some(jobs) => self.after_canary(jobs).await,
                None => self.pass(None).await,
            }
        };
        admin.act_on_jobs(action, deed, work, changes).await
    }

    fn deed(&self) -> Deed {
        let (selection, jobs) = match &self.selection {
            Selection::Filter(filter) => (filter.to_string(), Vec::new()),
            Selection::Plan(plan) => (format!("a plan of {} dead letters", plan.letters.len()), plan.jobs()),
        };
        let limit = self.limit.map(|limit| format!("at most {limit}"));
        let rate = self.per_second.map(|rate| format!("at most {rate} a second"));
        let canary = self.canary.map(|jobs| format!("{jobs} first"));
        let parts = Some(selection).filter(|text| !text.is_empty()).into_iter();
        let parts = parts.chain(limit).chain(rate).chain(canary);
        let selection = parts.collect::<Vec<_>>().join(", ");
        Deed { subject: format!("dead letters of {}", self.queue), selection, jobs }
    }

    /// Looks through the dead letters once. Leaves those alone that came after `before`.
    pub(super) async fn pass(&mut self, before: Option<SystemTime>) -> Result<BulkReport, Error> {
        let mut options = self.options()?.stop(self.stop.clone());
        if before.is_some() {
            options = options.before(before);
        }
        let letters = self.admin.dead_letter_queue(&self.queue).await?;
        self.total = self.done_before
            + match &self.selection {
                Selection::Plan(plan) => plan.letters.len() as u64,
                Selection::Filter(_) => letters.count().await?,
            };
        let total = self.total;
        if let Some(rate) = self.per_second {
            options = options.per_second(rate);
        }
        let action = match (self.dry_run, self.purges) {
            (true, true) => PassAction::Tell,
            (true, false) => PassAction::TellPutBack,
            (false, true) => PassAction::Delete,
            (false, false) => PassAction::PutBack,
        };
        let (mut told, mut copies, mut errors) = (Vec::new(), Vec::new(), ErrorCounts::default());
        let mut tell = |letter: &DeadLetter| {
            if self.dry_run {
                errors.add(&self.queue, letter);
            }
            told.push(PlannedLetter::of(&self.queue, letter));
            let done = self.done_before + told.len() as u64;
            (self.progress)(BulkProgress { done, total: total.max(done), waits: false });
        };
        let mut tell_copy = |letter: &DeadLetter| copies.push(PlannedLetter::of(&self.queue, letter));
        let report = letters.pass_telling_copies(&options, action, &mut tell, &mut tell_copy).await?;
        let copies = plan::beside(&told, copies);
        let stopped = self.stop.is_cancelled().then(|| "it was stopped by a request".to_owned());
        let mut report = BulkReport::of(self.queue.clone(), report, told, self.dry_run, stopped);
        (report.errors, report.ungrouped) = errors.finish();
        self.complete(&mut report, copies.len() as u64);
        if self.dry_run {
            report.letters.extend(copies);
        }
        Ok(report)
    }

    /// Sets what of the plan was not met, and whether all was. `copies` are the letters of the plan that were deleted as copies.
    fn complete(&self, report: &mut BulkReport, copies: u64) {
        let planned = match &self.selection {
            Selection::Plan(plan) => Some(plan.letters.len() as u64),
            Selection::Filter(_) => None,
        };
        let met = report.count + report.skipped.len() as u64;
        let is_full = self.limit.is_some_and(|limit| met >= limit);
        // A limit ends it before it has looked for all.
        let looked_for = planned.filter(|_| report.stopped.is_none());
        report.missing = looked_for.map(|all| if is_full { 0 } else { all.saturating_sub(met + copies) });
        let has_met_all =
            report.unseen == Some(0) || is_full || planned.is_some_and(|planned| met + copies >= planned);
        report.complete = has_met_all && report.stopped.is_none();
    }

    fn options(&self) -> Result<DeadLetterOptions, Error> {
        let (mut options, found) = match &self.selection {
            Selection::Filter(filter) if filter.is_empty() => {
                let text = "no dead letters are selected: give a plan, a filter with a condition, or `DeadLetterFilter::all()`";
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            Selection::Plan(plan) if plan.queue != self.queue => {
                let text = format!("the plan is for the queue `{}` and not for `{}`", plan.queue, self.queue);
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            Selection::Filter(filter) => (selecting(filter, &self.put_back), None),
            Selection::Plan(plan) => {
                let options = DeadLetterOptions::new().filter(plan.selection()).before(plan.before);
                (options, Some(plan.letters.len() as u64))
            }
        };
        if let Some(limit) = self.limit.into_iter().chain(found).min() {
            options = options.limit(limit);
        }
        Ok(options)
    }
}

impl BulkReport {
    /// Returns the plan that takes exactly these dead letters, and what a redrive deletes as copies of them. After an empty dry run it takes
    /// nothing.
    pub fn plan(&self) -> DeadLetterPlan {
        DeadLetterPlan { queue: self.queue.clone(), before: self.before, letters: self.letters.clone() }
    }

    /// Says that it ended before it had looked at all.
    pub(super) fn stop(&mut self, why: String) {
        (self.stopped, self.complete, self.missing) = (Some(why), false, None);
    }

    /// Adds a later pass over the same dead letters.
    pub(super) fn extend(&mut self, later: Self) {
        self.count += later.count;
        self.jobs.extend(later.jobs);
        self.skipped.extend(later.skipped);
        self.copies += later.copies;
        self.payloads_left += later.payloads_left;
        (self.left, self.newer, self.missing) = (later.left, later.newer, later.missing);
        (self.unseen, self.complete, self.stopped) = (later.unseen, later.complete, later.stopped);
        self.letters.extend(later.letters);
        self.maybe_changed.extend(later.maybe_changed);
    }

    fn of(
        queue: String,
        report: RedriveReport,
        letters: Vec<PlannedLetter>,
        dry_run: bool,
        stopped: Option<String>,
    ) -> Self {
        let RedriveReport {
            skipped, left, newer, copies, payloads_left, unseen, began, stopped: failed, ..
        } = report;
        let maybe_changed = skipped.iter().filter(|skipped| skipped.maybe_moved);
        let maybe_changed = maybe_changed
            .map(|skipped| JobReference::new(&queue, &skipped.id).with_source(&skipped.source))
            .collect();
        let skipped = skipped.into_iter().map(|skipped| SkippedJob {
            id: skipped.id,
            error: skipped.why,
            maybe_moved: skipped.maybe_moved,
        });
        let (count, skipped) = (letters.len() as u64, skipped.collect());
        let jobs = letters.iter().map(|letter| letter.job.clone()).collect();
        let (stopped, missing, complete) = (failed.or(stopped), None, false);
        Self {
            queue,
            before: began,
            dry_run,
            count,
            jobs,
            errors: Vec::new(),
            ungrouped: 0,
            skipped,
            copies,
            payloads_left,
            left,
            newer,
            missing,
            unseen,
            complete,
            stopped,
            letters,
            maybe_changed,
        }
    }
}

impl std::fmt::Debug for Bulk<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bulk")
            .field("queue", &self.queue)
            .field("purges", &self.purges)
            .field("selection", &self.selection)
            .field("dry_run", &self.dry_run)
            .finish_non_exhaustive()
    }
}
