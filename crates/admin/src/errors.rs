//! Dead letters with one cause, counted together.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jobqueue::dead_letters::DeadLetter;
use jobqueue_message::envelope::{MAX_ERROR_CHARS, Parsed, parse};
use jobqueue_storage::fast::hex::to_hex;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::JobReference;

/// The most groups that are kept: messages can bring any number of errors.
const MAX_GROUPS: usize = 1_000;
/// The number of characters of an error that count.
const MAX_SHAPE: usize = 300;

/// Dead letters of one kind with the same reason and the same error, but for the numbers, ids and quoted texts in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ErrorGroup {
    /// The name of the group, which is the same in every look: [`DeadLetterFilter::fingerprint`](super::DeadLetterFilter::fingerprint)
    /// selects the dead letters of the group.
    pub fingerprint: String,
    /// The kind.
    pub kind: String,
    /// The reason.
    pub reason: String,
    /// The error, at most 300 characters, with `#` for numbers and ids and `"…"` for quoted texts. A number of three digits stays, unless
    /// it is that of a task that panicked: it may be the status of an answer. Empty if the dead letters have no error.
    pub error: String,
    /// The number of dead letters.
    pub count: u64,
    /// The time of the first death, as RFC 3339 by the clock of its worker; `None` if no letter has one.
    pub first: Option<String>,
    /// The time of the last death.
    pub last: Option<String>,
    /// The versions of the payloads, as far as the messages have one.
    pub versions: BTreeSet<u32>,
    /// The job that died last.
    pub sample: JobReference,
    /// The error of this job: all of one that a worker has written, and the first 2,000 characters of another.
    pub sample_error: Option<String>,
}

/// Counts dead letters by their errors.
#[derive(Debug, Default)]
pub(super) struct ErrorCounts {
    groups: HashMap<String, ErrorGroup>,
    ungrouped: u64,
}

impl ErrorCounts {
    pub(super) fn add(&mut self, queue: &str, letter: &DeadLetter) {
        let fingerprint = fingerprint(letter);
        if self.groups.len() >= MAX_GROUPS && !self.groups.contains_key(&fingerprint) {
            self.ungrouped += 1;
            return;
        }
        let time = letter.time_text();
        let group = self.groups.entry(fingerprint.clone()).or_insert_with(|| ErrorGroup {
            fingerprint,
            kind: letter.kind.clone(),
            reason: letter.reason.to_string(),
            error: shape(letter.error.as_deref().unwrap_or_default()),
            count: 0,
            first: time.clone(),
            last: None,
            versions: BTreeSet::new(),
            sample: JobReference::new(queue, &letter.id),
            sample_error: None,
        });
        group.count += 1;
        if let Ok(Parsed::Event(event)) = parse(letter.raw_text()) {
            group.versions.extend(event.version);
        }
        if time.is_some() && (group.first.is_none() || time < group.first) {
            group.first.clone_from(&time);
        }
        if group.count == 1 || time > group.last {
            group.last = time;
            group.sample = JobReference::new(queue, &letter.id).with_source(&letter.source);
            // That of a worker may have an ellipsis behind its last character.
            let error = letter.error.as_deref();
            group.sample_error = error.map(|error| error.chars().take(MAX_ERROR_CHARS + 1).collect());
        }
    }

    /// Returns the groups, the largest first, and the number of dead letters in none of them.
    pub(super) fn finish(self) -> (Vec<ErrorGroup>, u64) {
        let sorted: BTreeMap<_, _> = self
            .groups
            .into_values()
            .map(|group| ((std::cmp::Reverse(group.count), group.fingerprint.clone()), group))
            .collect();
        (sorted.into_values().collect(), self.ungrouped)
    }
}

/// Returns the name of the group of a dead letter.
pub(super) fn fingerprint(letter: &DeadLetter) -> String {
    let shape = shape(letter.error.as_deref().unwrap_or_default());
    let parts = serde_json::json!([letter.kind, letter.reason.as_str(), shape]);
    to_hex(&Sha256::digest(parts.to_string())[..8])
}

/// Returns an error without what differs from job to job.
fn shape(error: &str) -> String {
    let (mut shape, mut rest) = (String::new(), error);
    while let Some(first) = rest.chars().next()
        && shape.len() <= 4 * MAX_SHAPE
    {
        let is_quote = matches!(first, '"' | '`');
        let quoted = if is_quote { rest[1..].find(first).map(|end| end + 2) } else { None };
        let length = if is_word(first) {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(length);
            // Tokio numbers the task of a `spawn_blocking` that panics.
            let is_task = shape.ends_with("task ") && behind.starts_with(" panicked");
            let may_be_status = word.len() == 3 && word.bytes().all(|byte| byte.is_ascii_digit()) && !is_task;
            shape.push_str(if word.contains(char::is_numeric) && !may_be_status { "#" } else { word });
            length
        } else if let Some(length) = quoted {
            shape.push_str("\"…\"");
            length
        } else {
            shape.push(first);
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    shape.chars().take(MAX_SHAPE).collect()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '-' || c == '_'
}

#[cfg(test)]
mod tests {
    use super::shape;

    #[test]
    fn errors_that_differ_in_numbers_and_names_have_one_shape() {
        let cases = [
            ("no answer from 10.0.0.17:5432 after 30s", "no answer from #.#.#.#:# after #"),
            ("row 4711 is locked", "row # is locked"),
            ("HTTP 503 for order 550e8400-e29b-41d4-a716-446655440000", "HTTP 503 for order #"),
            ("unknown field \"to\" in `a b`, don't", "unknown field \"…\" in \"…\", don't"),
            // newcomers 28, A4: from the hundredth task on, each job had a group of its own.
            ("task 436 panicked with message \"no paper\"", "task # panicked with message \"…\""),
            ("task 436 is late", "task 436 is late"),
            ("äöü 12 ß", "äöü # ß"),
            ("can't connect to 'alice'", "can't connect to 'alice'"),
            ("\"never closed", "\"never closed"),
            ("", ""),
        ];
        for (error, expected) in cases {
            assert_eq!(shape(error), expected);
        }
        assert_eq!(shape(&"x ".repeat(100_000)).chars().count(), 300);
    }
}
