//! The options and the reports of a redrive and a purge, and the results of a listing.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use tokio_util::sync::CancellationToken;

use super::letter::DeadLetter;

type Filter = dyn Fn(&DeadLetter, SystemTime) -> bool + Send + Sync;

/// The options of a [redrive](super::DeadLetters::redrive) or a [purge](super::DeadLetters::purge): which
/// dead letters to put back or delete, and how fast.
///
/// ```
/// use jobqueue::dead_letters::DeadLetterOptions;
/// use jobqueue::Reason;
///
/// // A few first, to test whether the cause is fixed; then the rest, slowly.
/// let probe = DeadLetterOptions::new().limit(3);
/// let rest = DeadLetterOptions::new()
///     .filter(|letter| letter.reason == Reason::ATTEMPTS_EXHAUSTED && letter.kind == "charge")
///     .per_second(20);
/// # let _ = (probe, rest);
/// ```
#[derive(Clone, Default)]
pub struct DeadLetterOptions {
    filter: Option<Arc<Filter>>,
    pub(crate) limit: Option<u64>,
    pub(crate) per_second: Option<u32>,
    pub(crate) dry_run: bool,
    pub(crate) stop: Option<CancellationToken>,
    pub(crate) before: Option<SystemTime>,
    /// True if the filter selects letters by the ids of their messages.
    pub(super) names_messages: bool,
}

impl DeadLetterOptions {
    /// Returns options without a filter: a redrive takes all dead letters, as fast as possible, and a purge
    /// is refused.
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects the dead letters for which `filter` returns true. Several filters select those for which all
    /// return true.
    #[must_use]
    pub fn filter(self, filter: impl Fn(&DeadLetter) -> bool + Send + Sync + 'static) -> Self {
        self.filter_at(move |letter, _| filter(letter))
    }

    /// Selects the dead letters for which `filter` returns true. Its second argument is the time at which the
    /// pass began, by the storage's clock.
    #[doc(hidden)]
    #[must_use]
    pub fn filter_at(
        mut self,
        filter: impl Fn(&DeadLetter, SystemTime) -> bool + Send + Sync + 'static,
    ) -> Self {
        let earlier = self.filter.take();
        self.filter = Some(Arc::new(move |letter: &DeadLetter, began: SystemTime| {
            earlier.as_ref().is_none_or(|earlier| earlier(letter, began)) && filter(letter, began)
        }));
        self
    }

    /// States that the filter selects letters by the ids of their messages. Such a letter did not arrive
    /// after the pass had begun, because a job that is dead-lettered again is another message.
    #[doc(hidden)]
    #[must_use]
    pub fn names_messages(mut self) -> Self {
        self.names_messages = true;
        self
    }

    jobqueue_storage::setters! {
        /// Sets the maximum number of dead letters to put back or delete.
        limit(letters: u64) => limit;

        /// Sets the maximum rate, so that redriven jobs do not overwhelm the workers.
        per_second(rate: u32) => per_second = Some(rate.max(1));

        /// Reports the dead letters without putting them back or deleting them. The default is off.
        dry_run(dry: bool) => dry_run;

        /// Ends the pass when `token` fires, after the letters that are being handled, at most 16. The other
        /// letters that the pass has leased become visible again immediately.
        stop(token: CancellationToken) => stop;

        /// Ignores dead letters that arrived after `time`, by the storage's clock. The default is the
        /// beginning of the pass. On Service Bus, the time of a letter is the time that its worker wrote into
        /// it; a letter that the service itself moved counts as old as its message.
        before(time: Option<SystemTime>) => before;
    }

    pub(super) fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    pub(super) fn picks(&self, letter: &DeadLetter, began: SystemTime) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter(letter, began))
    }
}

impl fmt::Debug for DeadLetterOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterOptions")
            .field("filtered", &self.filter.is_some())
            .field("limit", &self.limit)
            .field("per_second", &self.per_second)
            .field("dry_run", &self.dry_run)
            .finish()
    }
}

/// The dead letters that a [redrive](super::DeadLetters::redrive) put back or skipped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct RedriveReport {
    /// The ids of the redriven jobs; in a dry run, of the jobs that would be put back.
    pub moved: Vec<String>,
    /// The selected dead letters that were not certainly moved, with the cause of each. None of them is in
    /// `moved`.
    pub skipped: Vec<SkippedLetter>,
    /// The number of dead letters that were read but not selected.
    pub left: u64,
    /// The number of these that arrived after the pass had begun; a lower bound.
    pub newer: u64,
    /// The number of dead letters that were deleted as copies: of a letter that was handled, or of the same
    /// job in another message. In a dry run, the number that would be deleted.
    pub copies: u64,
    /// The number of deleted dead letters with a payload that could not be deleted: it stays until a sweep of
    /// [drained queues](crate::maintenance::SweepOptions::drained_queues).
    pub payloads_left: u64,
    /// The approximate number of dead letters that the pass did not see: other readers hold them for up to 10
    /// minutes, they arrived during the pass, or the pass ended early. `None` if the storage did not return
    /// their number.
    pub unseen: Option<u64>,
    /// The time at which the pass began, by the storage's clock; `None` if there was no dead letter. Letters
    /// that arrived later were ignored.
    pub began: Option<SystemTime>,
    /// The cause, if the redrive ended early or may have missed dead letters: it was
    /// [stopped](DeadLetterOptions::stop) before it had met all that it was to take, the storage failed
    /// several times in a row, a part of it did not answer, the answer to a request was lost, or the first
    /// dead letters became visible again before all were read.
    pub stopped: Option<String>,
}

/// The dead letters that a [purge](super::DeadLetters::purge) deleted or skipped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct PurgeReport {
    /// The ids of the jobs whose dead letters were deleted; in a dry run, would be deleted.
    pub deleted: Vec<String>,
    /// The selected dead letters that were not certainly deleted, with the cause of each.
    pub skipped: Vec<SkippedLetter>,
    /// The number of dead letters that were read but not selected.
    pub left: u64,
    /// The number of dead letters that were deleted as copies of a letter that was handled.
    pub copies: u64,
    /// As in [`RedriveReport`].
    pub payloads_left: u64,
    /// As in [`RedriveReport`].
    pub unseen: Option<u64>,
    /// The cause, if the purge ended early or may have missed dead letters: it was
    /// [stopped](DeadLetterOptions::stop) before it had met all that it was to take, the storage failed
    /// several times in a row, a part of it did not answer, the answer to a request was lost, or the first
    /// dead letters became visible again before all were read.
    pub stopped: Option<String>,
}

/// The dead letters that a [list](super::DeadLetters::list) returned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedLetters {
    /// The dead letters, without copies of earlier ones.
    pub letters: Vec<DeadLetter>,
    /// As in [`VisitReport`].
    pub unseen: Option<u64>,
}

/// The dead letters that a [`for_each`](super::DeadLetters::for_each) visited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct VisitReport {
    /// The number of dead letters that were visited.
    pub visited: u64,
    /// The approximate number of dead letters that were not visited: other readers hold them for up to 10
    /// minutes, also if such a reader was killed, or they arrived during the call. `None` if the storage did
    /// not return their number. Only `Some(0)` says that there were no others.
    pub unseen: Option<u64>,
}

/// A selected dead letter with which a redrive or a purge failed. As far as is known, it is still in the
/// dead-letter queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedLetter {
    /// The id of the job.
    pub id: String,
    /// The sender of the job.
    pub source: String,
    /// The error with its causes, in one line.
    pub why: String,
    /// True if a redrive has put the job back, or may have, so that the job is in both queues. In a purge,
    /// true if the dead letter may be deleted.
    pub maybe_moved: bool,
}

impl From<RedriveReport> for VisitReport {
    fn from(report: RedriveReport) -> Self {
        let unseen = report.unseen.map(|unseen| unseen.saturating_add(report.left));
        Self { visited: report.moved.len() as u64, unseen }
    }
}

impl From<RedriveReport> for PurgeReport {
    fn from(report: RedriveReport) -> Self {
        let RedriveReport { moved, skipped, left, copies, payloads_left, unseen, stopped, .. } = report;
        Self { deleted: moved, skipped, left, copies, payloads_left, unseen, stopped }
    }
}
