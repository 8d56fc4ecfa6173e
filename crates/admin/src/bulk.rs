//! Redriving and purging the dead letters of a plan, or those that a filter selects.

use std::time::SystemTime;

use jobqueue::__internals::{PassAction, PassListeners, SeenLetters};
use jobqueue::dead_letters::{DeadLetter, DeadLetterOptions};
use jobqueue::{Error, ErrorKind};

use super::dead_letters::{DeadLetterFilter, selecting};
use super::errors::ErrorCounts;
use super::event::{ActionResult, ActionTarget};
use super::given::Given;
use super::membership::{Memberships, WaitedFor};
use super::plan::check_storage;
use super::report::{BulkProgress, BulkReport};
use super::{Action, Admin, DeadLetterPlan, PlannedLetter};

/// The dead letters that a redrive or a purge may take.
#[derive(Debug)]
pub(super) enum Selection {
    Filter(DeadLetterFilter),
    Plan(DeadLetterPlan),
}

/// A configured redrive or purge, which [`run`](Self::run) executes. Created by [`Admin::redrive`] and
/// [`Admin::purge`].
#[must_use = "nothing happens before `run`"]
pub struct Bulk<'a> {
    pub(super) admin: &'a Admin,
    queue: String,
    purges: bool,
    pub(super) selection: Selection,
    pub(super) limit: Option<u64>,
    /// The letters that the canary's pass has handled, so that the next pass recognises their copies.
    seen: Option<SeenLetters>,
    per_second: Option<u32>,
    canary: Option<u64>,
    /// For the progress: the number of dead letters that the canary's pass has handled, and the number of all
    /// dead letters.
    pub(super) done_before: u64,
    pub(super) total: Option<u64>,
    dry_run: bool,
    pub(super) progress: Box<dyn FnMut(BulkProgress) + Send + 'a>,
}

impl Admin {
    /// Prepares to put dead letters back into their queue, where their jobs get all their attempts again. The
    /// rules of [`DeadLetters::redrive`](jobqueue::dead_letters::DeadLetters::redrive) apply.
    pub fn redrive(&self, queue: &str) -> Bulk<'_> {
        self.bulk(queue, false)
    }

    /// Prepares to delete dead letters with their payloads. A purge cannot be undone. The rules of
    /// [`DeadLetters::purge`](jobqueue::dead_letters::DeadLetters::purge) apply.
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
            seen: None,
            per_second: None,
            canary: None,
            done_before: 0,
            total: None,
            dry_run: false,
            progress: Box::new(|_| {}),
        }
    }
}

impl<'a> Bulk<'a> {
    jobqueue_storage::setters! {
        /// Selects the dead letters that meet the filter's conditions when the operation runs, including
        /// those that died after a preview. To take only those that a preview found, execute its
        /// [plan](Self::plan).
        filter(filter: DeadLetterFilter) => selection = Selection::Filter(filter);

        /// Selects the dead letters of the plan instead of a filter's. The operation ends when it has found
        /// them, without reading the other dead letters; if the plan contains copies, it reads all.
        plan(plan: DeadLetterPlan) => selection = Selection::Plan(plan);

        /// Takes at most this many dead letters.
        limit(jobs: u64) => limit;

        /// Takes at most this many dead letters a second.
        per_second(rate: u32) => per_second;

        /// Puts back this number of letters first, and the rest once the jobs of these have ended, if none of
        /// them died again. Otherwise the report says why the redrive [stopped](BulkReport::stopped), and the
        /// rest is left alone. The redrive waits as long as a job of the canary waits or runs, or is not found
        /// while the queue has more than 100,000 jobs of a state. If otherwise neither the storage nor a
        /// journal shows whether the job has ended, the redrive stops after two minutes. Zero means no
        /// canary. It has no effect on a purge or a dry run. Once none of these jobs waits or runs, a check
        /// receives all dead letters of the queue, twice, and puts them back.
        canary(jobs: u64) => canary = Some(jobs).filter(|jobs| *jobs > 0);

        /// Reports the changes without making them, for a [plan](BulkReport::plan). A dry run receives all
        /// dead letters, which are invisible to other readers during that time, and requires
        /// [`Action::Inspect`] instead of the action itself.
        dry_run(dry: bool) => dry_run;

        /// Calls `listener` after each dead letter.
        on_progress(listener: impl FnMut(BulkProgress) + Send + 'a) => progress = Box::new(listener);
    }

    /// Runs the redrive or the purge.
    ///
    /// # Errors
    /// [`Forbidden`](jobqueue::ErrorKind::Forbidden); [`Invalid`](jobqueue::ErrorKind::Invalid) if nothing is
    /// selected, or the plan belongs to another queue or storage; [`NotFound`](jobqueue::ErrorKind::NotFound)
    /// if there is no such queue; [`Storage`](jobqueue::ErrorKind::Storage) if the dead letters cannot be
    /// read at all: nothing was changed. Later failures are in the report.
    ///
    /// # Cancel safety
    /// If the future is dropped, the dead letters that it has leased come back after at most 10 minutes; the
    /// letter in progress may be in both queues.
    pub async fn run(mut self) -> Result<BulkReport, Error> {
        let (admin, target) = (self.admin, self.target());
        let action = match (self.dry_run, self.purges) {
            (true, _) => Action::Inspect,
            (false, true) => Action::Purge,
            (false, false) => Action::Redrive,
        };
        let verb = if self.purges { "deleted" } else { "put back" };
        let would = if self.dry_run { "would be " } else { "" };
        let to_result = |report: &BulkReport| {
            let stopped =
                report.stopped.as_ref().map(|why| format!("; it ended early: {why}")).unwrap_or_default();
            let jobs = report.jobs.iter().chain(&report.of_copies).chain(&report.maybe_changed);
            let jobs = jobs.filter(|_| !report.dry_run);
            let copies = match report.copies {
                0 => String::new(),
                copies => format!(", {copies} {would}deleted as copies"),
            };
            let skipped = report.skipped.len();
            ActionResult {
                detail: format!("{} {would}{verb}{copies}, {skipped} skipped{stopped}", report.count),
                jobs: jobs.cloned().collect(),
            }
        };
        let work = async {
            match self.canary.filter(|_| action == Action::Redrive) {
                Some(jobs) => self.after_canary(jobs).await,
                None => self.pass(None).await,
            }
        };
        admin.act_on_jobs(action, target, work, to_result).await
    }

    fn target(&self) -> ActionTarget {
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
        ActionTarget { subject: format!("dead letters of {}", self.queue), selection, jobs }
    }

    fn pass_options(&self, before: Option<SystemTime>) -> Result<DeadLetterOptions, Error> {
        let options = self.options()?.stop(self.admin.stop.clone());
        let options = options.given(before, |options, time| options.before(Some(time)));
        Ok(options.given(self.per_second, DeadLetterOptions::per_second))
    }

    fn action(&self) -> PassAction {
        match (self.dry_run, self.purges) {
            (true, true) => PassAction::Report,
            (true, false) => PassAction::ReportPutBack,
            (false, true) => PassAction::Delete,
            (false, false) => PassAction::PutBack,
        }
    }

    /// Passes over the dead letters once. Leaves alone those that arrived after `before`.
    pub(super) async fn pass(&mut self, before: Option<SystemTime>) -> Result<BulkReport, Error> {
        let options = self.pass_options(before)?;
        let letters = self.admin.dead_letter_queue(&self.queue).await?;
        let expected = match &self.selection {
            Selection::Plan(plan) => Some(plan.letters.len() as u64),
            Selection::Filter(_) => letters.known_count().await?,
        };
        self.total = expected.map(|letters| self.done_before + letters);
        let (total, counts_waited, action) = (self.total, self.dry_run || self.purges, self.action());
        let (mut reported, mut copies, mut waited_for) = (Vec::new(), Vec::new(), Vec::new());
        let mut errors = ErrorCounts::default();
        let mut report_letter = |letter: &DeadLetter| {
            if self.dry_run {
                errors.add(&self.queue, letter);
            }
            if counts_waited {
                waited_for.extend(WaitedFor::of(letter));
            }
            reported.push(PlannedLetter::of(&self.queue, letter));
            let done = self.done_before + reported.len() as u64;
            let total = total.map(|total| total.max(done));
            (self.progress)(BulkProgress { done, total, waits: false, held_up: None });
        };
        let of_copies = &mut |letter: &DeadLetter| copies.push(PlannedLetter::of(&self.queue, letter));
        let mut stayed = Vec::new();
        let of_stayed = &mut |letter: &DeadLetter| stayed.push(PlannedLetter::of(&self.queue, letter));
        let seen = self.seen.get_or_insert_with(|| letters.none_seen());
        let listeners = PassListeners { of_letters: &mut report_letter, of_copies, of_stayed };
        let report = letters.pass_reporting_copies(seen, &options, action, listeners).await?;
        let mut report = BulkReport::of(self.queue.clone(), report, reported, self.dry_run);
        report.received = seen.received;
        (report.errors, report.ungrouped) = errors.finish();
        report.storage = Some(self.admin.storage().description().to_owned());
        if counts_waited {
            let memberships = Memberships::default();
            report.waited_for = memberships.count(&self.admin.storage, &waited_for, &self.admin.stop).await;
        }
        self.complete(&mut report, &copies, &stayed);
        if self.dry_run {
            report.letters.extend(copies);
        } else {
            report.of_copies = copies.into_iter().map(|copy| copy.job).collect();
        }
        Ok(report)
    }

    /// Removes the letters that were met from the plan: those that were handled, `copies`, and those that
    /// `stayed`. Sets the number of planned letters that were not met, and whether the pass is complete.
    fn complete(&mut self, report: &mut BulkReport, copies: &[PlannedLetter], stayed: &[PlannedLetter]) {
        let skipped = report.skipped.len() as u64;
        let rest = match &mut self.selection {
            Selection::Plan(plan) => {
                plan.remove(report.letters.iter().chain(copies).chain(stayed));
                Some((plan.letters.len() as u64).saturating_sub(skipped))
            }
            Selection::Filter(_) => None,
        };
        // A letter that was certainly not changed takes no place of the limit.
        let changed =
            report.count + report.skipped.iter().filter(|skipped| skipped.maybe_moved).count() as u64;
        let is_full = self.limit.is_some_and(|limit| changed >= limit);
        // A pass that reaches its limit stops before it has looked for all letters.
        report.missing = rest.filter(|rest| report.stopped.is_none() && (!is_full || *rest == 0));
        let has_met_all = report.unseen == Some(0) || is_full || rest == Some(0);
        report.complete = has_met_all && report.stopped.is_none();
    }

    fn options(&self) -> Result<DeadLetterOptions, Error> {
        if let Selection::Plan(plan) = &self.selection {
            check_storage(plan.storage.as_deref(), self.admin)?;
        }
        let (mut options, found) = match &self.selection {
            Selection::Filter(filter) if filter.is_empty() => {
                let text = "no dead letters are selected: give a plan, a filter with a condition, or `DeadLetterFilter::all()`";
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            Selection::Plan(plan) if plan.queue != self.queue => {
                let text = format!("the plan is for the queue `{}` and not for `{}`", plan.queue, self.queue);
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            Selection::Filter(filter) => (selecting(filter), None),
            Selection::Plan(plan) => {
                let options =
                    DeadLetterOptions::new().filter(plan.selection()).names_messages().before(plan.before);
                (options, Some(plan.letters.len() as u64))
            }
        };
        if let Some(limit) = self.limit.into_iter().chain(found).min() {
            options = options.limit(limit);
        }
        Ok(options)
    }
}

jobqueue_storage::debug_fields! {
    Bulk<'a> { queue, purges, selection, dry_run }
}
