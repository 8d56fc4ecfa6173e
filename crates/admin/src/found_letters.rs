//! The dead letters that a search has found, without their types.

use jobqueue::dead_letters::DeadLetter;
use serde::Serialize;

use super::errors::{ErrorCounts, ErrorGroup};
use super::job::Stored;
use super::{JobState, RawDeadLetter, RawJob};

/// Dead letters that were found.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct DeadLetterPage {
    /// The dead letters, up to the requested number.
    pub letters: Vec<RawJob>,
    /// The number of examined dead letters that match the filter.
    pub matching: u64,
    /// The matching dead letters grouped by error, the largest group first: at most the first 1,000 groups
    /// that were met.
    pub errors: Vec<ErrorGroup>,
    /// The number of matching dead letters in none of the groups, because there are more groups.
    pub ungrouped: u64,
    /// The number of dead letters that were examined.
    pub looked_at: u64,
    /// True if all dead letters were examined: other readers held none, and none arrived during the search.
    pub complete: bool,
    /// The cause, if a search stopped before it had examined all.
    pub stopped: Option<String>,
    /// The position behind the examined dead letters, if there may be more: pass it to
    /// [`Admin::dead_letters_from`](crate::Admin::dead_letters_from).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The size of texts, in bytes, beyond which matching dead letters are only counted.
const MAX_KEPT_BYTES: usize = 8 << 20;

/// The dead letters found so far.
pub(super) struct FoundLetters<'q> {
    queue: &'q str,
    /// The most dead letters that are kept.
    limit: usize,
    pub(super) letters: Vec<RawJob>,
    /// The size of their texts.
    kept_bytes: usize,
    pub(super) matching: u64,
    errors: ErrorCounts,
}

impl<'q> FoundLetters<'q> {
    pub(super) fn new(queue: &'q str, limit: usize) -> Self {
        Self { queue, limit, letters: Vec::new(), kept_bytes: 0, matching: 0, errors: ErrorCounts::default() }
    }

    pub(super) fn add(&mut self, letter: &DeadLetter) {
        self.matching += 1;
        self.errors.add(self.queue, letter);
        if self.letters.len() < self.limit && self.kept_bytes < MAX_KEPT_BYTES {
            self.kept_bytes += letter.raw_text().len();
            self.letters.push(raw_letter(self.queue, letter));
        }
    }

    pub(super) fn page(self, looked_at: u64, complete: bool) -> DeadLetterPage {
        let (errors, ungrouped) = self.errors.finish();
        DeadLetterPage {
            letters: self.letters,
            matching: self.matching,
            errors,
            ungrouped,
            looked_at,
            complete,
            stopped: None,
            next: None,
        }
    }
}

/// Returns a dead letter as raw data.
pub(super) fn raw_letter(queue: &str, letter: &DeadLetter) -> RawJob {
    let stored = Stored {
        id: None,
        text: letter.text_problem().map_or(Ok(letter.raw_text()), Err),
        dequeue_count: letter.deliveries,
        next_delivery: None,
        inserted: None,
        expires: None,
        due: None,
    };
    let mut job = RawJob::read(queue, JobState::Dead, stored, false);
    if job.id.is_empty() {
        job.id.clone_from(&letter.id);
    }
    job.inserted = letter.time_text();
    let dead = job.dead.get_or_insert_with(|| RawDeadLetter {
        reason: letter.reason.to_string(),
        time: job.inserted.clone(),
        deliveries: letter.deliveries,
        worker: letter.worker.clone(),
        message: letter.message_id().map(str::to_owned),
        inserted: None,
    });
    dead.inserted = letter.inserted();
    job
}
