//! Texts on a terminal: escaped, shortened, and in units that people read.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

pub(crate) use jobqueue_admin::short_duration as age;

/// The most characters of a cell on a terminal.
const MAX_CELL_CHARS: usize = 60;

/// The number of columns of the terminal on standard output; `None` for a pipe or a file, where no text is cut.
static TERMINAL_WIDTH: LazyLock<Option<usize>> = LazyLock::new(|| {
    let size = terminal_size::terminal_size_of(std::io::stdout());
    size.map(|(width, _)| usize::from(width.0))
});

/// Cuts the lines of a table at the width of the terminal, if there is one. The last column keeps the room of a cell.
pub(crate) fn fit<'l>(lines: impl IntoIterator<Item = &'l str>) -> String {
    fit_to(*TERMINAL_WIDTH, lines)
}

fn fit_to<'l>(width: Option<usize>, lines: impl IntoIterator<Item = &'l str>) -> String {
    let mut lines = lines.into_iter().map(str::trim_end).peekable();
    // Two blanks are between two columns. Their names are ASCII.
    let last = lines.peek().and_then(|head| head.rfind("  ")).map_or(0, |end| end + 2);
    let most = width.map(|width| width.max(last + MAX_CELL_CHARS));
    lines.map(|line| most.map_or_else(|| line.to_owned(), |most| cut(line, most)) + "\n").collect()
}

/// Returns a text of at most so many characters; its last one is an ellipsis if there are more.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
    }
}

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
    if cleaned.chars().all(is_plain) { cleaned } else { format!("'{}'", cleaned.replace('\'', r"'\''")) }
}

/// Returns a text for a cell: escaped, and cut where it is too long for a terminal.
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

    // newcomers 28, C10: the word that mattered was cut off, also in a file.
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

    #[test]
    fn numbers_have_their_thousands_apart_and_things_their_plural() {
        assert_eq!(count(-0.0), "0");
        assert_eq!((count(999.6), count(1_234_567.0)), ("1,000".to_owned(), "1,234,567".to_owned()));
        assert_eq!((things(1, "queue"), things(0, "queue")), ("1 queue".to_owned(), "0 queues".to_owned()));
    }
}
