//! The jobs: their messages, and their work, which follows from their ids.

use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A job without order, or a unique one.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "tasks", kind = "task", poison_threshold = 3, backoff(base = "1s", max = "1s"))]
pub struct Task(pub Freight);

/// A job in the order of its key.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order", poison_threshold = 3, backoff(base = "1s", max = "1s"))]
pub struct Order(pub Freight);

/// A child of a batch.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "slices", kind = "slice", poison_threshold = 3, backoff(base = "1s", max = "1s"))]
pub struct Slice(pub Freight);

/// A continuation.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "joins", kind = "join", poison_threshold = 3, backoff(base = "1s", max = "1s"))]
pub struct Join(pub Freight);

/// A text, with its digest.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Freight {
    data: String,
    digest: String,
}

impl Freight {
    /// Returns the payload of a job: always the same for one id, and too large for a message in every eighth job.
    pub fn of(job: &str) -> Self {
        let data = if byte(job, 0).is_multiple_of(8) {
            format!("{job}é\u{1F69A}\n").repeat(2_000)
        } else {
            job.into()
        };
        Self { digest: digest(&data), data }
    }

    /// Returns the payload of a continuation, which must fit into one message.
    pub fn small(job: &str) -> Self {
        Self { data: job.to_owned(), digest: digest(job) }
    }

    pub fn is_whole(&self, job: &str) -> bool {
        self.digest == digest(&self.data) && self.data.starts_with(job)
    }
}

fn digest(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a number that follows from an id.
fn byte(id: &str, nth: usize) -> u8 {
    Sha256::digest(id)[nth]
}

/// The work of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Todo {
    /// Returns at once: many are deleted together.
    Short,
    /// Saves its progress three times.
    Staged,
    /// Is put back once.
    Snooze,
    /// Fails at its first attempt.
    Fail,
    /// Fails half of the time until the cause is fixed, so that most are dead-lettered, some more than once.
    Poison,
    /// Completes itself in a transaction that has an effect in the file.
    Commit,
    /// Sends a batch.
    Fan,
    /// Reads the results of a batch.
    Join,
}

impl Todo {
    const BY_LETTER: [(char, Self); 6] = [
        ('s', Self::Short),
        ('c', Self::Staged),
        ('z', Self::Snooze),
        ('f', Self::Fail),
        ('p', Self::Poison),
        ('e', Self::Commit),
    ];

    /// Returns the first letter of the ids of such jobs.
    pub fn letter(self) -> char {
        Self::BY_LETTER.iter().find(|(_, todo)| *todo == self).unwrap().0
    }

    /// Returns the work of the job with this id. The work of a batch's child follows from its whole id, that of
    /// others from the first letter.
    pub fn of(id: &str) -> Self {
        if id.contains('/') {
            return match byte(id, 1) % 16 {
                0 => Self::Poison,
                1..=2 => Self::Staged,
                3 => Self::Snooze,
                4 => Self::Fail,
                5..=6 if !is_inner(id) => Self::Fan,
                7..=9 => Self::Commit,
                _ => Self::Short,
            };
        }
        let letter = id.chars().next().unwrap();
        Self::BY_LETTER.iter().find(|(known, _)| *known == letter).map_or(Self::Join, |(_, todo)| *todo)
    }
}

/// Returns whether a batch, or the batch of a child, lies within another.
fn is_inner(id: &str) -> bool {
    id.contains("-in-")
}

/// Returns the batch that a child with the todo [`Todo::Fan`] sends.
pub fn inner_batch(child: &str) -> String {
    child.replace('/', "-in-")
}

/// Returns the number of children of a batch.
pub fn children(batch: &str) -> u64 {
    if is_inner(batch) { 3 } else { 3 + u64::from(byte(batch, 2) % 12) }
}

/// Returns whether a batch continues without children that are dead letters.
pub fn goes_on(batch: &str) -> bool {
    byte(batch, 3).is_multiple_of(2)
}

/// Returns the ids of a batch's children.
pub fn children_of(batch: &str) -> impl Iterator<Item = String> + '_ {
    (0..children(batch)).map(move |n| format!("{batch}/{n}"))
}
