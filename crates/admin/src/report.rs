//! The progress and the result of a redrive or a purge.

use std::time::{Duration, SystemTime};

use jobqueue::dead_letters::RedriveReport;
use serde::Serialize;

use super::errors::ErrorGroup;
use super::price::queues_of;
use super::text::{exact_time_option, short_duration};
use super::{AzurePrices, DeadLetterPlan, JobReference, PlannedLetter, QueueHold};

/// The progress of a redrive or a purge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BulkProgress {
    /// The number of dead letters that were handled.
    pub done: u64,
    /// The number of dead letters in the plan; without a plan, the approximate number of all dead letters at
    /// the start, including those that the filter does not select. `None` if the storage cannot count them.
    pub total: Option<u64>,
    /// True while a redrive waits until the jobs of its canary have ended.
    pub waits: bool,
    /// During that wait, the reason why these jobs do not start.
    pub held_up: Option<QueueHold>,
}

/// The result of a redrive or a purge.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[must_use]
#[non_exhaustive]
pub struct BulkReport {
    /// The queue.
    pub queue: String,
    /// Dead letters that arrived after this time, by the storage's clock, were left alone. It is the start of
    /// the operation, or of the dry run that made its plan.
    #[serde(serialize_with = "exact_time_option")]
    pub before: Option<SystemTime>,
    /// True for a dry run: the jobs are those that would have been changed.
    pub dry_run: bool,
    /// The number of jobs that were put back, or whose dead letters were deleted.
    pub count: u64,
    /// The affected jobs.
    pub jobs: Vec<JobReference>,
    /// After a dry run, the affected dead letters grouped by error, the largest group first: at most the
    /// first 1,000 groups that were met.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ErrorGroup>,
    /// The number of affected dead letters in none of the groups, because there are more groups.
    pub ungrouped: u64,
    /// The selected dead letters that could not be handled.
    pub skipped: Vec<SkippedJob>,
    /// The number of dead letters that were deleted as copies, or would be in a real run: copies of a letter
    /// that was handled, or letters of the same job from another message.
    pub copies: u64,
    /// The number of deleted dead letters whose payload could not be deleted: it stays until a sweep of
    /// drained queues.
    pub payloads_left: u64,
    /// The number of affected jobs that are children for which batches
    /// [wait](jobqueue::batch::OnDeadLetters::Wait), or continuations of batches. Once its dead letter is
    /// purged, such a job cannot end, and its batch never continues. `None` if a batch cannot be read, if not
    /// all batches were read within a minute, and in the report of a redrive that was not a dry run.
    pub waited_for: Option<u64>,
    /// The number of dead letters that were examined and left alone.
    pub left: u64,
    /// The least number of these that arrived after [`before`](Self::before).
    pub newer: u64,
    /// The number of dead letters of the plan that were not met: they are gone, or other operations or
    /// programs have leased them. `None` without a plan, and if the operation stopped before it had examined
    /// all.
    pub missing: Option<u64>,
    /// The approximate number of dead letters that were not met: other readers have leased them for up to 10
    /// minutes, they arrived during the operation, or it stopped before. `None` if the storage did not return
    /// their number.
    pub unseen: Option<u64>,
    /// True if the operation met all dead letters that it was to take: as many as its limit, all of its plan,
    /// or else all that there are. If false, other readers may have leased selected letters, or some arrived
    /// during the operation: run it again.
    pub complete: bool,
    /// The cause, if the operation stopped before it had examined all.
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
    /// The time at which the operation received its first dead letters, by the storage's clock.
    #[serde(skip)]
    pub(super) received: Option<SystemTime>,
}

/// A selected dead letter that could not be handled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SkippedJob {
    /// The id of the job.
    pub id: String,
    /// The error with its causes, in one line.
    pub error: String,
    /// True if the job was put back or may have been: then it is in both queues. In a purge, true if its dead
    /// letter may have been deleted.
    pub maybe_moved: bool,
}

impl BulkReport {
    /// Returns the plan that takes exactly these dead letters. After a dry run it includes those that would
    /// be deleted as copies; after an empty dry run it takes nothing.
    pub fn plan(&self) -> DeadLetterPlan {
        let (storage, queue) = (self.storage.clone(), self.queue.clone());
        DeadLetterPlan { storage, queue, before: self.before, letters: self.letters.clone() }
    }

    /// Returns the plan for a search for the jobs that were put back. A dead letter or an end from before the
    /// first of them was put back says nothing about them, also if it is later than a preview.
    pub(super) fn put_back(&self) -> DeadLetterPlan {
        DeadLetterPlan { before: self.received.or(self.before), ..self.plan() }
    }

    /// Returns all jobs referenced by the report, including those only for its plan and the audit; may
    /// repeat.
    #[doc(hidden)]
    pub fn held_jobs(&self) -> impl Iterator<Item = &JobReference> {
        let planned = self.letters.iter().map(|letter| &letter.job);
        self.jobs.iter().chain(planned).chain(&self.of_copies).chain(&self.maybe_changed)
    }

    /// Returns a text about the other dead letters: how many were examined and left alone, and how many were
    /// not examined. `number` formats a number.
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

    /// Returns what it costs at least to execute the [plan](Self::plan): the requests of a redrive, or of a
    /// purge, where a storage bills them, and the time at this many dead letters a second. Each dead letter
    /// that is in front of one of the plan costs two requests more, as one with a payload in a blob does. `None`
    /// if there is nothing to say.
    #[doc(hidden)]
    pub fn cost_text(&self, purges: bool, per_second: Option<u32>) -> Option<String> {
        let letters = self.letters.len() as f64;
        let storage = self.storage.as_deref().unwrap_or_default();
        // Gets of 32, deletions, and for a redrive a put each; on Azure Storage also records: one before the
        // change, and one after a redrive. Service Bus has one, of a redrive.
        let (requests, records) = if purges { (1.0 + 1.0 / 32.0, 0.0) } else { (2.0 + 1.0 / 32.0, 1.0) };
        let records = if queues_of(storage).starts_with("azure:") { records + 1.0 } else { records };
        let (requests, writes) = ((letters * requests).ceil(), letters * records);
        let price = AzurePrices::DEFAULT.text(storage, requests, writes, "writes of blobs");
        let price = price.map(|price| {
            let more = if price.starts_with("about") { ", or more" } else { "" };
            format!("It costs {price}{more}")
        });
        let time = per_second.map(|rate| {
            let least = Duration::from_secs_f64((letters / f64::from(rate.max(1))).ceil());
            format!("At {rate} a second it takes {} or longer", short_duration(least))
        });
        let parts: Vec<String> = price.into_iter().chain(time).collect();
        (letters > 0.0 && !parts.is_empty()).then(|| parts.join(". "))
    }

    /// Marks the operation as stopped before it had examined all.
    pub(super) fn stop(&mut self, why: String) {
        (self.stopped, self.complete, self.missing) = (Some(why), false, None);
    }

    /// Adds the report of a later pass over the same dead letters.
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
    ) -> Self {
        let RedriveReport { skipped, left, newer, copies, payloads_left, unseen, began, stopped, .. } =
            report;
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
            stopped,
            letters,
            maybe_changed,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(storage: &str, letters: usize) -> BulkReport {
        let letter = || PlannedLetter::from(JobReference::new("mails", "1"));
        BulkReport {
            storage: Some(storage.to_owned()),
            letters: std::iter::repeat_with(letter).take(letters).collect(),
            ..BulkReport::default()
        }
    }

    #[test]
    fn cost_of_a_plan_is_its_requests_and_the_time_at_its_rate() {
        let azure = report("azure:shop", 5_000);
        let redrive = azure.cost_text(false, Some(20)).unwrap();
        assert_eq!(
            redrive,
            "It costs about 10157 requests and 10000 writes of blobs, or $0.059 on Azure, or more. At 20 a second it takes 4m 10s or longer"
        );
        let purge = azure.cost_text(true, None).unwrap();
        assert_eq!(
            purge,
            "It costs about 5157 requests and 5000 writes of blobs, or $0.030 on Azure, or more"
        );
        let sharded = report("sharded over 2 accounts, azure:shop", 5_000).cost_text(true, None).unwrap();
        assert_eq!(sharded, "It costs at least 5157 requests and 5000 writes of blobs, or $0.030 on Azure");
        let bus = report("servicebus:shop", 32).cost_text(true, None).unwrap();
        assert_eq!(bus, "It costs about 33 requests, or more");
    }

    #[test]
    fn plan_costs_nothing_where_requests_are_free_or_nothing_matches() {
        let sqlite = report("sqlite:jobs.db", 90);
        assert_eq!(sqlite.cost_text(false, None), None);
        assert_eq!(sqlite.cost_text(false, Some(1)).unwrap(), "At 1 a second it takes 1m 30s or longer");
        assert_eq!(report("azure:shop", 0).cost_text(false, Some(1)), None);
    }
}
