//! Groups of dead letters with the same cause.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jobqueue::dead_letters::DeadLetter;
use jobqueue_message::envelope::{MAX_ERROR_CHARS, Parsed, parse};
use jobqueue_storage::fast::hex::to_hex;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::JobReference;

/// The most groups that are kept: messages can contain any number of different errors.
const MAX_GROUPS: usize = 1_000;
/// The most versions of payloads that a group names: a producer can send any number of them.
const MAX_VERSIONS: usize = 20;
/// The most characters in the shape of an error.
pub(crate) const MAX_SHAPE: usize = 300;

/// Dead letters of one kind with the same reason and the same error, except for the numbers, ids and quoted
/// texts in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ErrorGroup {
    /// The identifier of the group, which is the same in every search:
    /// [`DeadLetterFilter::fingerprint`](super::DeadLetterFilter::fingerprint) selects the dead letters of
    /// the group.
    pub fingerprint: String,
    /// The kind.
    pub kind: String,
    /// The reason.
    pub reason: String,
    /// The error, at most 300 characters, with `"…"` for quoted texts and `#` for numbers and ids: each word
    /// with a digit, however short, except for codes. A code is `E` with three to five digits (`E0599`), and
    /// a number of at most three digits whose last word before it without a digit is `HTTP`, `status` or
    /// `code` (`HTTP 503`), also at the end of a name such as `exit_code` or `StatusCode`. Empty if the dead
    /// letters have no error.
    pub error: String,
    /// The number of dead letters.
    pub count: u64,
    /// The time of the first death, as RFC 3339 and by the clock of [`DeadLetter::time`]; `None` if no
    /// letter has a time.
    pub first: Option<String>,
    /// The time of the last death.
    pub last: Option<String>,
    /// The versions of the payloads, of the messages that have one: at most the 20 highest.
    pub versions: BTreeSet<u32>,
    /// The job that died last.
    pub sample: JobReference,
    /// The error of this job: in full if a worker wrote it, otherwise its first 2,000 characters.
    pub sample_error: Option<String>,
}

/// Groups and counts dead letters by error.
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
            if group.versions.len() > MAX_VERSIONS {
                group.versions.pop_first();
            }
        }
        if time.is_some() && (group.first.is_none() || time < group.first) {
            group.first.clone_from(&time);
        }
        if group.count == 1 || time > group.last {
            group.last = time;
            group.sample = JobReference::new(queue, &letter.id).with_source(&letter.source);
            // An error that a worker wrote may have an ellipsis after its last character.
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

/// Returns the identifier of a dead letter's group.
pub(super) fn fingerprint(letter: &DeadLetter) -> String {
    let shape = shape(letter.error.as_deref().unwrap_or_default());
    let parts = serde_json::json!([letter.kind, letter.reason.as_str(), shape]);
    to_hex(&Sha256::digest(parts.to_string())[..8])
}

/// Returns an error without the parts that differ from job to job.
pub(crate) fn shape(error: &str) -> String {
    // A worker cuts an error at this length, and writes an ellipsis. Other programs may not.
    let end = error.char_indices().nth(MAX_ERROR_CHARS + 1).map_or(error.len(), |(end, _)| end);
    let is_cut = end < error.len() || error.ends_with('…');
    let (mut shape, mut rest, mut is_status) = (String::new(), &error[..end], false);
    while let Some(first) = rest.chars().next()
        && shape.len() <= 4 * MAX_SHAPE
    {
        let is_quote = matches!(first, '"' | '`');
        let quoted = if is_quote { quoted_length(rest, first, is_cut) } else { None };
        let length = if is_word(first) {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let word = &rest[..length];
            if !word.contains(char::is_numeric) {
                is_status = names_status(word);
                shape.push_str(word);
            } else if is_code(word) || is_status && word.len() <= 3 && is_number(word) {
                shape.push_str(word);
            } else {
                shape.push('#');
            }
            length
        } else if let Some(length) = quoted {
            is_status = false;
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

/// Returns whether a number after this word is the status of a response or of a process. `barcode` is one
/// word, and names none.
fn names_status(word: &str) -> bool {
    ["http", "status", "code"].into_iter().any(|name| {
        let Some((before, end)) = word.split_at_checked(word.len().wrapping_sub(name.len())) else {
            return false;
        };
        let begins_word = end.starts_with(char::is_uppercase) || !before.ends_with(char::is_lowercase);
        end.eq_ignore_ascii_case(name) && begins_word
    })
}

/// Returns whether a word is the code of an error, such as `E0599`.
fn is_code(word: &str) -> bool {
    word.strip_prefix('E').is_some_and(|digits| (3..=5).contains(&digits.len()) && is_number(digits))
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the length of the quoted text with which `text` begins. It ends at the next quote without a
/// backslash of `{:?}` before it, or where the error was cut.
fn quoted_length(text: &str, quote: char, is_cut: bool) -> Option<usize> {
    let mut is_escaped = false;
    let end = text[1..].find(|c: char| {
        let is_end = c == quote && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    });
    match end {
        None if is_cut => Some(text.len()),
        // A text that nothing has escaped may end with a backslash.
        end => end.or_else(|| text[1..].find(quote)).map(|end| end + 2),
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '-' || c == '_'
}

#[cfg(test)]
mod tests {
    use jobqueue_storage::text::printable;

    use super::{MAX_ERROR_CHARS, MAX_SHAPE, shape};

    // newcomers 33, 2: each number of three digits made a group of its own.
    #[test]
    fn numbers_are_left_out_however_short_they_are_and_codes_stay() {
        let cases = [
            ("account 417: no funds", "account #: no funds"),
            ("account 5: no funds", "account #: no funds"),
            ("503 of 904 rows", "# of # rows"),
            ("code review 417", "code review #"),
            ("barcode 417, status \"late\" 12", "barcode #, status \"…\" #"),
            ("HTTP 503", "HTTP 503"),
            ("HTTP/1.1 404 for order 417", "HTTP/1.1 404 for order #"),
            ("status code: 404 after 417 ms", "status code: 404 after # ms"),
            ("StatusCode(502), exit_code=137", "StatusCode(502), exit_code=137"),
            ("code 4711", "code #"),
            ("E0599: no such method in job 7", "E0599: no such method in job #"),
            ("E7 and E123456", "# and #"),
        ];
        for (error, expected) in cases {
            assert_eq!(shape(error), expected);
        }
    }

    #[test]
    fn errors_that_differ_in_numbers_and_names_have_one_shape() {
        let cases = [
            ("no answer from 10.0.0.17:5432 after 30s", "no answer from #.#.#.#:# after #"),
            ("row 4711 is locked", "row # is locked"),
            ("HTTP 503 for order 550e8400-e29b-41d4-a716-446655440000", "HTTP 503 for order #"),
            ("unknown field \"to\" in `a b`, don't", "unknown field \"…\" in \"…\", don't"),
            ("task 436 panicked with message \"no paper\"", "task # panicked with message \"…\""),
            ("äöü 12 ß", "äöü # ß"),
            ("can't connect to 'alice'", "can't connect to 'alice'"),
            ("\"never closed", "\"never closed"),
            ("said \"{\\\"name\\\":\\\"Ada\\\"}\" at 7", "said \"…\" at #"),
            ("no file \"C:\\\" on 7", "no file \"…\" on #"),
            ("", ""),
        ];
        for (error, expected) in cases {
            assert_eq!(shape(error), expected);
        }
        assert_eq!(shape(&"x ".repeat(100_000)).chars().count(), MAX_SHAPE);
        for quoted in ["x y ".repeat(600), "{\\\"x\\\":1} ".repeat(600)] {
            let error = format!("said \"{quoted}\"");
            assert_eq!(shape(&printable(&error, MAX_ERROR_CHARS)), "said \"…\"");
            assert_eq!(shape(&printable(&error, 100)), "said \"…\"");
            assert_eq!(shape(&format!("{error} at 7")), "said \"…\"");
        }
    }
}
