//! The dead letters that a search has found, without their types.

use jobqueue::dead_letters::DeadLetter;

use super::errors::ErrorCounts;
use super::job::Stored;
use super::{DeadLetterPage, JobState, RawDeadLetter, RawJob};

/// The dead letters found so far.
pub(super) struct FoundLetters<'q> {
    queue: &'q str,
    /// The most dead letters that are kept.
    limit: usize,
    pub(super) letters: Vec<RawJob>,
    pub(super) matching: u64,
    errors: ErrorCounts,
}

impl<'q> FoundLetters<'q> {
    pub(super) fn new(queue: &'q str, limit: usize) -> Self {
        Self { queue, limit, letters: Vec::new(), matching: 0, errors: ErrorCounts::default() }
    }

    pub(super) fn add(&mut self, letter: &DeadLetter) {
        self.matching += 1;
        self.errors.add(self.queue, letter);
        if self.letters.len() < self.limit {
            self.letters.push(raw(self.queue, letter));
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

fn raw(queue: &str, letter: &DeadLetter) -> RawJob {
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
