//! Texts on a terminal: escaped, shortened, and in units that people read.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

pub(crate) use jobqueue_admin::short_duration as age;

/// The maximum number of characters of a cell on a terminal.
const MAX_CELL_CHARS: usize = 60;

/// The width of the terminal on standard output; `None` for a pipe or a file, where no text is cut.
static TERMINAL_WIDTH: LazyLock<Option<usize>> = LazyLock::new(|| {
    let size = terminal_size::terminal_size_of(std::io::stdout());
    size.map(|(width, _)| usize::from(width.0))
});

/// Cuts the lines of a table at the width of the terminal, if there is one. The last column keeps at least
/// [`MAX_CELL_CHARS`].
pub(crate) fn fit<'l>(lines: impl IntoIterator<Item = &'l str>) -> String {
    fit_to(*TERMINAL_WIDTH, lines)
}

fn fit_to<'l>(width: Option<usize>, lines: impl IntoIterator<Item = &'l str>) -> String {
    let mut lines = lines.into_iter().map(str::trim_end).peekable();
    // Two blanks separate columns. The column names are ASCII, so that a byte is a character.
    let last = lines.peek().and_then(|head| head.rfind("  ")).map_or(0, |end| end + 2);
    let max_chars = width.map(|width| width.max(last + MAX_CELL_CHARS));
    lines.map(|line| max_chars.map_or_else(|| line.to_owned(), |max| cut(line, max)) + "\n").collect()
}

/// Cuts a text to `max_chars` characters, of which the last is then an ellipsis.
fn cut(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        None => text.to_owned(),
        Some(_) => text.chars().take(max_chars.saturating_sub(1)).chain(['…']).collect(),
    }
}

pub(crate) fn colour_is_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Escapes characters of an untrusted text that control a terminal, change the writing direction or are
/// invisible.
pub(crate) fn clean(text: &str) -> String {
    jobqueue::__internals::visible(text, &[])
}

/// Returns a text as an argument of a command to copy, in shell quotes if it needs them; of an option, only
/// its value. Ids are untrusted, because senders choose them.
pub(crate) fn argument(text: &str) -> String {
    let is_option = |name: &str| {
        name.starts_with("--") && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    };
    if let Some((name, value)) = text.split_once('=').filter(|(name, _)| is_option(name)) {
        return format!("{name}={}", argument(value));
    }
    jobqueue_admin::shell_word(text)
}

/// Returns a text for a cell: escaped, and on a terminal cut if it is too long.
pub(crate) fn cell(text: &str) -> String {
    let cleaned = clean(text);
    match *TERMINAL_WIDTH {
        Some(_) => cut(&cleaned, MAX_CELL_CHARS),
        None => cleaned,
    }
}

/// Returns a text for the last cell of a row, which [`fit`] cuts, or a dash if there is none.
pub(crate) fn last(text: Option<&str>) -> String {
    text.map_or_else(|| "-".to_owned(), clean)
}

/// Returns a text for a cell, or a dash if there is none.
pub(crate) fn optional(text: Option<&str>) -> String {
    text.map_or_else(|| "-".to_owned(), cell)
}

/// Rounds a number and separates its thousands. The result is never "-0".
pub(crate) fn count(number: f64) -> String {
    // The cast saturates.
    jobqueue_admin::grouped(number.max(0.0).round() as u64, ',')
}

/// Returns a number with its noun: `1 queue`, `2 queues`.
pub(crate) fn things(number: usize, thing: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{end}")
}

/// Returns a time as RFC 3339 in UTC, to the second.
pub(crate) fn time(at: std::time::SystemTime) -> String {
    let timestamp = jiff::Timestamp::try_from(at).and_then(|at| at.round(jiff::Unit::Second));
    timestamp.map_or_else(|_| "-".to_owned(), |at| at.to_string())
}

/// Parses a duration such as `90s`, `2h 30m` or `7d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let problem = || format!("`{}` is not a duration; write for example 90s, 2h30m or 7d", clean(text));
    jobqueue_admin::parse_duration(text).ok_or_else(problem)
}

/// Parses a time such as `2026-11-22T15:00:00Z`, `2026-11-22 15:00` or `2026-11-22`, in UTC unless it has an
/// offset.
pub(crate) fn moment(text: &str) -> Result<SystemTime, String> {
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return Ok(time.into());
    }
    // A zone in brackets would be ignored.
    let civil = text.parse::<jiff::civil::DateTime>().ok().filter(|_| !text.contains('['));
    let in_utc = civil.and_then(|civil| civil.to_zoned(jiff::tz::TimeZone::UTC).ok());
    let problem = || format!("`{}` is not a time; write for example '2026-11-22 15:00', in UTC", clean(text));
    in_utc.map(|time| time.timestamp().into()).ok_or_else(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_of_a_command_to_copy_is_one_word() {
        assert_eq!(argument("mosaic/1"), "mosaic/1");
        assert_eq!(argument("7; touch x"), "'7; touch x'");
        assert_eq!(argument("7'$(x)`y`"), r"'7'\''$(x)`y`'");
        assert_eq!(argument("--id=7; touch x"), "--id='7; touch x'");
        assert_eq!(argument("--source=/shop"), "--source=/shop");
        assert_eq!(argument("--$(x)=7"), "'--$(x)=7'");
        assert_eq!(argument(""), "''");
    }

    #[test]
    fn lines_are_cut_at_the_width_of_the_terminal_and_not_in_a_pipe() {
        let error = "ä".repeat(200);
        let row = format!("a-1  {error}  ");
        let lines = ["ID   ERROR", row.as_str()];
        let shown = |width| fit_to(width, lines).lines().nth(1).unwrap().to_owned();
        assert_eq!(shown(None), format!("a-1  {error}"));
        assert_eq!(shown(Some(120)), format!("a-1  {}…", "ä".repeat(114)));
        assert_eq!(shown(Some(40)).chars().count(), 5 + MAX_CELL_CHARS, "no fewer than in a cell");
        assert_eq!(shown(Some(300)), shown(None));
    }

    // newcomers 33, 5
    #[test]
    fn times_may_be_typed_without_seconds_and_zone() {
        for text in ["2026-11-22T15:00:00Z", "2026-11-22 15:00", "2026-11-22T15:00", "2026-11-22 16:00+01:00"]
        {
            assert_eq!(moment(text).map(time).as_deref(), Ok("2026-11-22T15:00:00Z"), "{text}");
        }
        assert_eq!(moment("2026-11-22").map(time).as_deref(), Ok("2026-11-22T00:00:00Z"));
        for text in
            ["", "15:00", "2h ago", "2026-11-22 15:00[Europe/Berlin]", "2026-13-01", "2026-11-22 15:00 x"]
        {
            assert!(moment(text).is_err(), "{text}");
        }
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!(count(-0.0), "0");
        assert_eq!(count(999.6), "1,000");
        assert_eq!(count(1_234_567.0), "1,234,567");
    }

    #[test]
    fn nouns_are_pluralised() {
        assert_eq!(things(1, "queue"), "1 queue");
        assert_eq!(things(0, "queue"), "0 queues");
    }
}
