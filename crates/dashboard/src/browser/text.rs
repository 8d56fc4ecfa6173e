//! Escapes and truncates untrusted text for pages, and formats numbers and times for people.

use std::fmt;
use std::time::SystemTime;

use askama::Template;
use jiff::Timestamp;
use jobqueue::__internals::visible;
use jobqueue_admin::indented_json;
pub(crate) use jobqueue_admin::short_duration as age;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The maximum length of a text that is shown in one line.
const MAX_LINE_CHARS: usize = 200;

/// The maximum size of an error's text. Each of its causes may quote a sender's text.
const MAX_ERROR_BYTES: usize = 8 * 1024;

/// The maximum size of a payload or a checkpoint on a page.
pub(crate) const MAX_BLOCK_BYTES: usize = 64 * 1024;

/// All characters except the unreserved ones of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns a text percent-encoded for a query.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Returns a text for one line, truncated to [`MAX_LINE_CHARS`].
pub(crate) fn line(text: &str) -> String {
    match text.char_indices().nth(MAX_LINE_CHARS) {
        None => visible(text, &[]),
        Some((end, _)) => format!("{}…", visible(&text[..end], &[])),
    }
}

/// Returns the text of an error with all its causes. It is longer than a [`line`], because the last cause may
/// say what to do.
pub(crate) fn error_text(text: &str) -> String {
    visible(jobqueue_storage::text::beginning(text, MAX_ERROR_BYTES), &[])
}

/// Returns the first 64 KiB of a text, and the number of bytes after them.
pub(crate) fn beginning(text: &str) -> (String, usize) {
    let shown = jobqueue_storage::text::beginning(text, MAX_BLOCK_BYTES);
    (shown.to_owned(), text.len() - shown.len())
}

/// Returns a text with its line breaks, truncated to 64 KiB, and the number of missing bytes.
pub(crate) fn block(text: &str) -> (String, usize) {
    let (shown, missing) = beginning(text);
    (visible(&shown, &['\n', '\t']), missing)
}

/// Returns a JSON text with line breaks and indentation, truncated to 64 KiB, and the number of bytes of
/// `json` that are missing.
pub(crate) fn indented(json: &str) -> (String, usize) {
    indented_json(json, MAX_BLOCK_BYTES)
}

pub(crate) fn known(number: Option<u64>) -> String {
    number.map_or_else(|| "?".to_owned(), amount)
}

/// A sum of which some parts may be unknown.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Sum {
    pub(crate) at_least: u64,
    is_whole: bool,
}

impl Sum {
    /// Returns the sum if all its parts are known.
    pub(crate) fn whole(&self) -> Option<u64> {
        self.is_whole.then_some(self.at_least)
    }

    /// Returns whether the sum is known to be 0.
    pub(crate) fn is_zero(&self) -> bool {
        self.whole() == Some(0)
    }
}

impl FromIterator<Option<u64>> for Sum {
    fn from_iter<I: IntoIterator<Item = Option<u64>>>(parts: I) -> Self {
        parts.into_iter().fold(Self { at_least: 0, is_whole: true }, |sum, part| Self {
            at_least: sum.at_least + part.unwrap_or_default(),
            is_whole: sum.is_whole && part.is_some(),
        })
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.at_least, self.is_whole) {
            (0, false) => f.write_str("?"),
            (sum, is_whole) => write!(f, "{}{}", if is_whole { "" } else { "≥ " }, amount(sum)),
        }
    }
}

/// Returns an amount with thin spaces between the thousands.
pub(crate) fn amount(number: u64) -> String {
    jobqueue_admin::grouped(number, '\u{202f}')
}

/// A point in time, shown in UTC. The script of the pages converts it to the viewer's time zone.
#[derive(Debug, Clone, PartialEq, Eq, Template)]
#[template(
    source = "{% if iso.is_empty() %}{{ text }}{% else %}<time datetime=\"{{ iso }}\">{{ text }}</time>{% endif %}",
    ext = "html"
)]
pub(crate) struct When {
    iso: String,
    text: String,
}

impl askama::filters::HtmlSafe for When {}

impl When {
    /// Returns the time of an RFC 3339 text. Any other text is shown as a line.
    pub(crate) fn read(text: &str) -> Self {
        text.parse::<Timestamp>().map_or_else(|_| Self { iso: String::new(), text: line(text) }, Self::at)
    }

    pub(crate) fn of(time: SystemTime) -> Self {
        Timestamp::try_from(time).map_or_else(|_| Self { iso: String::new(), text: "-".to_owned() }, Self::at)
    }

    fn at(time: Timestamp) -> Self {
        let seconds = time.round(jiff::Unit::Second).unwrap_or(time);
        Self { iso: seconds.to_string(), text: format!("{} UTC", seconds.strftime("%Y-%m-%d %H:%M:%S")) }
    }
}

/// A text whose times, which are RFC 3339 in UTC, are shown like a [`When`].
#[derive(Debug, Clone, PartialEq, Eq, Template)]
#[template(
    source = "{% for (text, time) in parts %}{{ text }}{% if let Some(at) = time %}{{ at }}{% endif %}{% endfor %}",
    ext = "html"
)]
pub(crate) struct Timed {
    /// Each text, and the time after it.
    parts: Vec<(String, Option<When>)>,
}

impl askama::filters::HtmlSafe for Timed {}

impl Timed {
    /// Finds the times in a text that a page may show, such as a [`line`].
    pub(crate) fn of(text: &str) -> Self {
        let (mut parts, mut rest, mut searched) = (Vec::new(), text, 0);
        while let Some(length) = rest[searched..].find('Z') {
            let last = searched + length;
            let is_of_time = |c: char| c.is_ascii_digit() || "T:.-".contains(c);
            let start = rest[..last].trim_end_matches(is_of_time).len();
            searched = last + 1;
            if let Ok(time) = rest[start..searched].parse::<Timestamp>() {
                parts.push((rest[..start].to_owned(), Some(When::at(time))));
                (rest, searched) = (&rest[searched..], 0);
            }
        }
        parts.push((rest.to_owned(), None));
        Self { parts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(line(&"ä".repeat(300)).chars().count(), MAX_LINE_CHARS + 1);
        let (shown, missing) = block(&"ä".repeat(MAX_BLOCK_BYTES));
        assert_eq!(shown.len(), MAX_BLOCK_BYTES);
        assert_eq!(missing, MAX_BLOCK_BYTES);
    }

    #[test]
    fn amounts_have_thin_spaces_between_the_thousands() {
        assert_eq!(amount(999), "999");
        assert_eq!(amount(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!([Some(2_000)].into_iter().collect::<Sum>().to_string(), "2\u{202f}000");
    }

    #[test]
    fn times_are_shown_in_utc_for_scripts_to_change() {
        let when = When::read("2026-11-22T08:20:01.5Z").render().unwrap();
        assert_eq!(when, "<time datetime=\"2026-11-22T08:20:02Z\">2026-11-22 08:20:02 UTC</time>");
        assert_eq!(When::read("<b>").render().unwrap(), "&#60;b&#62;");
    }

    #[test]
    fn times_in_a_text_are_shown_like_others() {
        let text =
            "<b> until 2026-11-22T08:20:01.5Z: Z, not 2026-13-01T00:00:00Z, since 2026-11-22T08:20:00Z.";
        let time = |iso: &str, shown: &str| format!("<time datetime=\"{iso}\">{shown} UTC</time>");
        let until = time("2026-11-22T08:20:02Z", "2026-11-22 08:20:02");
        let since = time("2026-11-22T08:20:00Z", "2026-11-22 08:20:00");
        let expected = format!("&#60;b&#62; until {until}: Z, not 2026-13-01T00:00:00Z, since {since}.");
        assert_eq!(Timed::of(text).render().unwrap(), expected);
        assert_eq!(Timed::of("").render().unwrap(), "");
    }
}
