//! Texts on a terminal: escaped, shortened, and in units that people read.

use std::time::{Duration, SystemTime};

pub(crate) use jobqueue_admin::short_duration as age;

const CELL: usize = 60;

pub(crate) fn colour_is_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Escapes characters that control a terminal, change the direction of writing or are not seen. The text is untrusted.
pub(crate) fn clean(text: &str) -> String {
    jobqueue::__internals::visible(text, &[])
}

/// Returns a text as an argument of a command that is shown: in quotes of the shell, unless it needs none. Senders choose ids.
pub(crate) fn argument(text: &str) -> String {
    let cleaned = clean(text);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c);
    match cleaned.chars().all(is_plain) {
        true => cleaned,
        false => format!("'{}'", cleaned.replace('\'', r"'\''")),
    }
}

/// Returns a text for a cell: escaped, and cut where it is too long.
pub(crate) fn cell(text: &str) -> String {
    let cleaned = clean(text);
    match cleaned.char_indices().nth(CELL) {
        None => cleaned,
        Some((end, _)) => format!("{}…", &cleaned[..end]),
    }
}

/// Returns a text for a cell, or a dash if there is none.
pub(crate) fn optional(text: Option<&str>) -> String {
    text.map_or_else(|| "-".to_owned(), cell)
}

/// Returns a number rounded, with its thousands apart. It is never "-0".
pub(crate) fn count(number: f64) -> String {
    // A float converts by saturation.
    jobqueue_admin::grouped(number.max(0.0).round() as u64, ',')
}

/// Returns a number of things: `1 queue`, `2 queues`.
pub(crate) fn things(number: usize, thing: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{end}")
}

/// Returns a time as RFC 3339 in UTC, to the second.
pub(crate) fn time(at: std::time::SystemTime) -> String {
    let timestamp = jiff::Timestamp::try_from(at).and_then(|at| at.round(jiff::Unit::Second));
    timestamp.map_or_else(|_| "-".to_owned(), |at| at.to_string())
}

/// Reads a length of time such as `90s`, `2h 30m` or `7d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let problem = || format!("`{}` is not a duration; write for example 90s, 2h30m or 7d", clean(text));
    jobqueue_admin::parse_duration(text).ok_or_else(problem)
}

/// Reads a time such as `2026-11-22T15:00:00Z`.
pub(crate) fn moment(text: &str) -> Result<SystemTime, String> {
    let problem = |_| format!("`{}` is not a time; write for example 2026-11-22T15:00:00Z", clean(text));
    text.parse::<jiff::Timestamp>().map(SystemTime::from).map_err(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_of_a_shown_command_is_one_word() {
        assert_eq!(argument("mosaic/1"), "mosaic/1");
        assert_eq!(argument("7; touch x"), "'7; touch x'");
        assert_eq!(argument("7'$(x)`y`"), r"'7'\''$(x)`y`'");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let cut = cell(&"ä".repeat(100));
        assert_eq!(cut.chars().count(), CELL + 1);
    }

    #[test]
    fn numbers_have_their_thousands_apart_and_things_their_plural() {
        assert_eq!(count(-0.0), "0");
        assert_eq!((count(999.6), count(1_234_567.0)), ("1,000".to_owned(), "1,234,567".to_owned()));
        assert_eq!((things(1, "queue"), things(0, "queue")), ("1 queue".to_owned(), "0 queues".to_owned()));
    }
}
