//! The state of a pass through a dead-letter queue: the letters that it has seen and handled, its failures,
//! and its report. Makes no request.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::duplicates::{LetterKey, LetterRole, SeenLetters};
use super::held::{HeldLetter, PassAction};
use super::letter::DeadLetter;
use super::options::{DeadLetterOptions, RedriveReport, SkippedLetter};
use crate::error::{Error, ErrorKind};
use crate::job::outcome::chain;
use crate::storage::{Certainty, MessageId, MessageRef};

/// The number of failures of the storage in a row after which the pass ends.
const MAX_FAILURES: u32 = 3;
/// The maximum number of letters that are handled, or made visible again, concurrently.
pub(super) const MAX_CONCURRENT_LETTERS: usize = 16;
/// The maximum number of bytes in payload blobs that are copied concurrently; a single letter may have more.
const MAX_CONCURRENT_BYTES: u64 = 64 * 1024 * 1024;

/// Called for each letter that was handled.
pub(super) type LetterListener<'l> = dyn FnMut(&DeadLetter) + Send + 'l;

/// The listeners of a pass.
#[expect(missing_debug_implementations, reason = "functions")]
pub struct PassListeners<'l, 'f> {
    /// Called for each letter that was handled.
    pub of_letters: &'l mut LetterListener<'f>,
    /// Called for each letter that was, or would be, deleted as a copy.
    pub of_copies: &'l mut LetterListener<'f>,
    /// Called for each selected letter that stays, because it may be a later death of a job of the pass.
    pub of_stayed: &'l mut LetterListener<'f>,
}

pub(super) struct Pass<'p> {
    pub(super) seen: &'p mut SeenLetters,
    pub(super) options: &'p DeadLetterOptions,
    pub(super) action: PassAction,
    /// The time at which the pass began, by the storage's clock. The pass ignores later dead letters.
    pub(super) began: Option<SystemTime>,
    /// The time at which the current page was leased, by the storage's clock.
    pub(super) now: Option<SystemTime>,
    pub(super) known_ids: HashSet<MessageId>,
    /// The earliest time for the next letter at the requested rate.
    pub(super) next_at: Instant,
    /// The number of letters that are handled concurrently: doubled after each success, 1 after a failure.
    pub(super) concurrency: usize,
    pub(super) failures: u32,
    pub(super) report: RedriveReport,
    /// The letters to make visible again.
    pub(super) to_release: Vec<MessageRef>,
    /// True if a request for letters failed and may have leased some.
    pub(super) answer_lost: bool,
}

impl Pass<'_> {
    /// Returns the number of letters that may still be changed.
    pub(super) fn remaining(&self) -> u64 {
        // A job that is put back counts, whether or not its letter could be deleted.
        let changed =
            self.report.moved.len() + self.report.skipped.iter().filter(|letter| letter.maybe_moved).count();
        self.options.limit.map_or(u64::MAX, |limit| limit.saturating_sub(changed as u64))
    }

    pub(super) fn is_over(&self) -> bool {
        self.remaining() == 0
            || self.report.stopped.is_some()
            || self.options.stop.as_ref().is_some_and(CancellationToken::is_cancelled)
    }

    /// Counts a letter that is not handled, and keeps it for its release.
    pub(super) fn leave(&mut self, message: MessageRef) {
        self.report.left += 1;
        self.to_release.push(message);
    }

    /// Counts a failure, and returns its text. [`MAX_FAILURES`] failures of the storage in a row end the
    /// pass; failures of single letters do not.
    pub(super) fn count_failure(&mut self, letter: &DeadLetter, error: &Error) -> String {
        let why = chain(error);
        crate::log::warn!(job = %letter.id.escape_debug(), error = %why, "a dead letter was not handled completely");
        let is_of_storage =
            matches!(error.kind(), ErrorKind::Storage | ErrorKind::Rejected | ErrorKind::Unknown);
        self.failures = if is_of_storage { self.failures + 1 } else { 0 };
        if self.failures >= MAX_FAILURES {
            self.report.stopped = Some(why.clone());
        }
        why
    }

    /// Takes the next letters that can be handled concurrently: letters of different jobs and groups, with
    /// payloads that together fit into memory.
    pub(super) fn next_letters(
        &mut self,
        picked: &mut VecDeque<HeldLetter>,
        listeners: &mut PassListeners<'_, '_>,
    ) -> Vec<Task> {
        let remaining = usize::try_from(self.remaining()).unwrap_or(usize::MAX);
        let (mut jobs, mut groups) = (HashSet::new(), HashSet::new());
        let (mut tasks, mut bytes) = (Vec::new(), 0);
        while tasks.len() < self.concurrency.min(remaining)
            && let Some(next) = picked.front()
        {
            bytes = next.blob_bytes().saturating_add(bytes);
            let is_independent = jobs.insert(LetterKey::of(next))
                && next.ordering_group().is_none_or(|group| groups.insert(group));
            // The stop is checked between rounds, so no round may wait long for its rate.
            let starts_soon = self.next_at <= Instant::now() + Duration::from_secs(1);
            let may_join = is_independent && starts_soon && bytes <= MAX_CONCURRENT_BYTES;
            if !tasks.is_empty() && !may_join {
                break;
            }
            let Some(held) = picked.pop_front() else { break };
            if Instant::now() >= held.until {
                // Another client may have leased the letter by now; a later page returns it again.
                self.known_ids.remove(&held.message.id);
                continue;
            }
            let role = self.seen.role(&held, self.began);
            let begin = self.next_at;
            match (role, self.options.per_second) {
                (LetterRole::Leave, _) => {
                    (listeners.of_stayed)(&held.letter);
                    self.leave(held.message);
                    continue;
                }
                (LetterRole::First, Some(rate)) if !self.action.only_reports() => {
                    self.next_at = self.next_at.max(Instant::now()) + Duration::from_secs(1) / rate;
                }
                _ => {}
            }
            tasks.push(Task { held, is_copy: role == LetterRole::Duplicate, begin });
        }
        tasks
    }

    pub(super) fn record(
        &mut self,
        held: HeldLetter,
        handled: Result<Handled, (Certainty, Error)>,
        listeners: &mut PassListeners<'_, '_>,
    ) {
        match handled {
            Ok(Handled { is_copy, payload_left }) => {
                match payload_left {
                    Some(error) => {
                        self.report.payloads_left += 1;
                        self.count_failure(&held.letter, &error);
                    }
                    None if !is_copy => {
                        self.failures = 0;
                        self.concurrency = (self.concurrency * 2).min(MAX_CONCURRENT_LETTERS);
                    }
                    None => {}
                }
                if is_copy {
                    self.report.copies += 1;
                    (listeners.of_copies)(&held.letter);
                } else {
                    self.seen.done(&held, self.action);
                    (listeners.of_letters)(&held.letter);
                    self.report.moved.push(held.letter.id);
                }
                if self.action.only_reports() {
                    self.to_release.push(held.message);
                }
            }
            Err((certainty, error)) => {
                if certainty == Certainty::Applied {
                    self.seen.done(&held, self.action);
                }
                let why = self.count_failure(&held.letter, &error);
                let DeadLetter { id, source, .. } = held.letter;
                let maybe_moved = certainty != Certainty::NotApplied;
                self.report.skipped.push(SkippedLetter { id, source, why, maybe_moved });
                self.to_release.push(held.message);
            }
        }
    }

    /// Returns how many of the `count` letters in the queue the pass did not see.
    pub(super) fn unseen(&self, count: u64) -> u64 {
        let gone = match self.action {
            PassAction::Report | PassAction::ReportPutBack => 0,
            PassAction::PutBack | PassAction::Delete => self.report.moved.len() as u64 + self.report.copies,
        };
        count.saturating_sub((self.known_ids.len() as u64).saturating_sub(gone))
    }
}

/// The result of a letter that was reported, put back or deleted.
pub(super) struct Handled {
    /// True for a copy of a letter that was handled.
    pub(super) is_copy: bool,
    /// The error of a blob that was not deleted with its letter.
    pub(super) payload_left: Option<Error>,
}

pub(super) struct Task {
    pub(super) held: HeldLetter,
    /// True for a copy of a letter that was handled.
    pub(super) is_copy: bool,
    /// The time before which the letter is not changed.
    pub(super) begin: Instant,
}
