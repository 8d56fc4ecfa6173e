//! Texts for a page: visible, bounded, and in units that people read. Anybody may have written them.

use std::fmt;
use std::time::SystemTime;

use askama::Template;
use jiff::Timestamp;
pub(crate) use jobqueue_admin::short_duration as age;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

const LINE: usize = 200;

/// The most bytes of a payload or a checkpoint that are shown.
pub(crate) const BLOCK: usize = 64 * 1024;

/// All characters except the unreserved ones of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns a text as a part of a query.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Returns whether a character changes how others are shown, or is not seen itself.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// Makes control characters, and characters that change the direction of writing, visible.
fn visible(text: &str, keeps_lines: bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' if keeps_lines => shown.push(c),
            c if is_hidden(c) => shown.extend(c.escape_debug()),
            c => shown.push(c),
        }
    }
    shown
}

/// Returns a text for one line, cut where it is too long.
pub(crate) fn line(text: &str) -> String {
    match text.char_indices().nth(LINE) {
        None => visible(text, false),
        Some((end, _)) => format!("{}…", visible(&text[..end], false)),
    }
}

/// Returns the first 64 KiB of a text, and the number of the bytes behind them.
pub(crate) fn beginning(text: &str) -> (String, usize) {
    let end = (0..=BLOCK.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    (text[..end].to_owned(), text.len() - end)
}

/// Returns a text with its lines, cut after 64 KiB, and the number of bytes that are missing.
pub(crate) fn block(text: &str) -> (String, usize) {
    let (shown, missing) = beginning(text);
    (visible(&shown, true), missing)
}

/// Returns JSON text with line breaks and indentation, and the number of bytes behind the first 64 KiB of that, which are not looked at.
/// Nothing else changes: numbers keep all their digits.
pub(crate) fn indented(json: &str) -> (String, usize) {
    let mut out = String::new();
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    let mut rest = json.chars().peekable();
    let mut missing = json.len();
    while out.len() < BLOCK
        && let Some(c) = rest.next()
    {
        missing -= c.len_utf8();
        if quoted {
            out.push(c);
            (quoted, escaped) = (escaped || c != '"', !escaped && c == '\\');
            continue;
        }
        match c {
            '"' => {
                quoted = true;
                out.push(c);
            }
            '{' | '[' => {
                out.push(c);
                while rest.next_if(char::is_ascii_whitespace).is_some() {
                    missing -= 1;
                }
                if let Some(end) = rest.next_if(|next| matches!(next, '}' | ']')) {
                    missing -= 1;
                    out.push(end);
                    continue;
                }
                depth += 1;
                new_line(&mut out, depth);
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => out.push(c),
        }
    }
    (out, missing)
}

fn new_line(out: &mut String, depth: usize) {
    out.push('\n');
    // Deeply nested JSON must not grow without bound.
    for _ in 0..depth.min(32) {
        out.push_str("  ");
    }
}

pub(crate) fn known(number: Option<u64>) -> String {
    number.map_or_else(|| "?".to_owned(), amount)
}

/// A sum of which some parts may not be known.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Sum {
    pub(crate) at_least: u64,
    is_whole: bool,
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

/// Returns an amount with thin gaps between the thousands.
pub(crate) fn amount(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// A point of time: UTC, and the viewer's zone where scripts run.
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
    /// Returns the time of an RFC 3339 text; a text that is none is shown as it is.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_are_not_seen_are_made_visible() {
        assert_eq!(line("a\u{202e}b\u{0}c\nd\u{200b}"), "a\\u{202e}b\\0c\\nd\\u{200b}");
        assert_eq!(line("Grüße, नमस्ते"), "Grüße, नमस्ते");
        assert_eq!(block("a\n\tb\u{1b}[2J").0, "a\n\tb\\u{1b}[2J");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(line(&"ä".repeat(300)).chars().count(), LINE + 1);
        let (shown, missing) = block(&"ä".repeat(BLOCK));
        assert_eq!((shown.len(), missing), (BLOCK, BLOCK));
    }

    #[test]
    fn indentation_changes_neither_numbers_nor_strings() {
        let json = r#"{"n":12345678901234567890,"s":"a{\"b\":[1,2]}\\","e":[],"o":{ }}"#;
        let text = "{\n  \"n\": 12345678901234567890,\n  \"s\": \"a{\\\"b\\\":[1,2]}\\\\\",\n  \"e\": [],\n  \"o\": {}\n}";
        assert_eq!(indented(json), (text.to_owned(), 0));
    }

    // D22
    #[test]
    fn json_is_indented_as_far_as_it_is_shown() {
        let json = format!("{}{}", "[".repeat(40), "0,".repeat(1_000_000));
        let (shown, missing) = indented(&json);
        assert!((BLOCK..BLOCK + 100).contains(&shown.len()), "{}", shown.len());
        let source: String = shown.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        assert_eq!(source.len() + missing, json.len());
        assert!(json.starts_with(&source));
    }

    #[test]
    fn amounts_have_gaps_between_the_thousands() {
        assert_eq!(
            (amount(999), amount(1_234_567)),
            ("999".to_owned(), "1\u{202f}234\u{202f}567".to_owned())
        );
    }

    #[test]
    fn times_are_shown_in_utc_for_scripts_to_change() {
        let when = When::read("2026-11-22T08:20:01.5Z").render().unwrap();
        assert_eq!(when, "<time datetime=\"2026-11-22T08:20:02Z\">2026-11-22 08:20:02 UTC</time>");
        assert_eq!(When::read("<b>").render().unwrap(), "&#60;b&#62;");
    }
}
