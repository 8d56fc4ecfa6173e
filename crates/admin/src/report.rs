//! The progress and the result of a redrive or a purge.

use std::time::SystemTime;

use jobqueue::dead_letters::RedriveReport;
use serde::Serialize;

use super::errors::ErrorGroup;
use super::text::exact_time_option;
use super::{DeadLetterPlan, JobReference, PlannedLetter, QueueHold};

/// The progress of a redrive or a purge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BulkProgress {
    /// The number of dead letters that were dealt with.
    pub done: u64,
    /// The number of dead letters of the plan; without one, about how many there were when it began, those included that the filter does
    /// not select. `None` if the storage cannot count them.
    pub total: Option<u64>,
    /// True while a redrive waits until the jobs of its canary have ended.
    pub waits: bool,
    /// The reason why these do not begin, while it waits for them.
    pub held_up: Option<QueueHold>,
}

/// The result of a redrive or a purge.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
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
    /// The number of these jobs that are children for which batches [wait](jobqueue::batch::OnDeadLetters::Wait). Once its dead letter is purged,
    /// such a child cannot end, and its batch never continues. `None` if a batch cannot be read, or all of them not within a minute, and in the report of a
    /// redrive that was made.
    pub waited_for: Option<u64>,
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
    /// The description of the storage, for the [plan](Self::plan).
    #[serde(skip)]
    pub(super) storage: Option<String>,
    #[serde(skip)]
    pub(super) letters: Vec<PlannedLetter>,
    /// The jobs of the dead letters that were deleted as copies.
    #[serde(skip)]
    pub(super) of_copies: Vec<JobReference>,
    /// The skipped jobs that it may have changed.
    #[serde(skip)]
    pub(super) maybe_changed: Vec<JobReference>,
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

impl BulkReport {
    /// Returns the plan that takes exactly these dead letters, after a dry run also those that would be deleted as copies. After an empty dry run it
    /// takes nothing.
    pub fn plan(&self) -> DeadLetterPlan {
        let (storage, queue) = (self.storage.clone(), self.queue.clone());
        DeadLetterPlan { storage, queue, before: self.before, letters: self.letters.clone() }
    }

    /// Returns each job that the report holds, as often as it does, also for its plan and the audit.
    #[doc(hidden)]
    pub fn held_jobs(&self) -> impl Iterator<Item = &JobReference> {
        let planned = self.letters.iter().map(|letter| &letter.job);
        self.jobs.iter().chain(planned).chain(&self.of_copies).chain(&self.maybe_changed)
    }

    /// Returns what became of the other dead letters as people read it: how many were looked at and left, and how many were not looked at. `number` writes
    /// a number.
    #[doc(hidden)]
    pub fn rest_text(&self, number: impl Fn(u64) -> String) -> String {
        let mut text = format!("{} looked at and left", number(self.left));
        if self.newer > 0 {
            text.push_str(&format!(", of which {} or more are newer", number(self.newer)));
        }
        match self.unseen {
            Some(0) => {}
            Some(unseen) => text.push_str(&format!(", about {} not looked at", number(unseen))),
            None => text.push_str(", an unknown number not looked at"),
        }
        text
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
        self.of_copies.extend(later.of_copies);
        self.maybe_changed.extend(later.maybe_changed);
    }

    pub(super) fn of(
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
        Self {
            queue,
            before: began,
            dry_run,
            count,
            jobs,
            skipped,
            copies,
            payloads_left,
            left,
            newer,
            unseen,
            stopped: failed.or(stopped),
            letters,
            maybe_changed,
            ..Self::default()
        }
    }
}
