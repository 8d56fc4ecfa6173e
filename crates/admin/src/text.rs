//! Texts for times, durations and bytes: RFC 3339 in UTC, seconds and base64 in JSON; short texts for people.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jobqueue_message::times;
use serde::{Serialize, Serializer};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Returns an untrusted text as one word of a command to copy: escaped, and in shell quotes if it needs them.
pub fn shell_word(text: &str) -> String {
    let cleaned = jobqueue_storage::text::visible(text, &[]);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c);
    let needs_none = !cleaned.is_empty() && cleaned.chars().all(is_plain);
    if needs_none { cleaned } else { format!("'{}'", cleaned.replace('\'', r"'\''")) }
}

/// Returns a condition of a filter as text for the audit, if it is set.
pub(super) fn condition(name: &str, value: &Option<String>) -> Option<String> {
    value.as_ref().map(|value| format!("{name} {value:?}"))
}

/// Returns a duration in its two largest units, as the command line and the dashboard show it.
pub fn short_duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, ..) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// Returns a duration like [`short_duration`] if that says it exactly, and otherwise in seconds, for a
/// record from which a selection is repeated.
pub(super) fn exact_duration(time: Duration) -> String {
    let short = short_duration(time);
    if parse_duration(&short) == Some(time) { short } else { format!("{time:?}") }
}

/// Parses a duration such as `90s`, `2h 30m` or `7d`, where a day has 24 hours. Returns `None` for any other
/// text, and for a negative duration.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.parse().ok()?;
    let length = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).ok()?;
    Duration::try_from(length).ok()
}

/// Returns JSON text with line breaks and indentation instead of its own white space, cut after about `limit`
/// bytes, and the number of bytes of `json` after the cut, which are not examined. Numbers and strings stay
/// as they are.
pub fn indented_json(json: &str, limit: usize) -> (String, usize) {
    let mut out = String::new();
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    let mut rest = json.chars().peekable();
    let mut missing = json.len();
    while out.len() < limit
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
    // Deeply nested JSON must not multiply the length of the text.
    for _ in 0..depth.min(32) {
        out.push_str("  ");
    }
}

/// Returns a number with its thousands separated.
pub fn grouped(number: u64, separator: char) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(separator);
        }
        grouped.push(digit);
    }
    grouped
}

/// Returns a time as RFC 3339 in UTC with all its digits, so that parsing it returns the same time.
pub(super) fn exact_time(time: SystemTime) -> String {
    Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

pub(super) fn exact_time_option<S: Serializer>(
    at: &Option<SystemTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    at.map(exact_time).serialize(serializer)
}

pub(super) fn rfc3339<S: Serializer>(at: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    times::rfc3339(*at).serialize(serializer)
}

pub(super) fn rfc3339_option<S: Serializer>(
    at: &Option<SystemTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    at.map(times::rfc3339).serialize(serializer)
}

/// Returns seconds, rounded down to milliseconds: their text is short, and exact enough.
fn in_seconds(time: Duration) -> f64 {
    u32::try_from(time.as_millis()).map_or(time.as_secs_f64(), |millis| f64::from(millis) / 1e3)
}

pub(super) fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    in_seconds(*time).serialize(serializer)
}

pub(super) fn seconds_option<S: Serializer>(
    time: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    time.map(in_seconds).serialize(serializer)
}

pub(super) fn base64<S: Serializer>(bytes: &bytes::Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    STANDARD.encode(bytes).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_and_shown() {
        assert_eq!(short_duration(Duration::from_secs(11_530)), "3h 12m");
        assert_eq!(short_duration(Duration::from_secs(59)), "59s");
        assert_eq!(parse_duration("2h 30m"), Some(Duration::from_secs(9_000)));
        // round 34, A10: 26h 59m were recorded as 1d 2h.
        for (seconds, exact) in [(9_000, "2h 30m"), (97_140, "97140s"), (86_400, "1d 0h")] {
            let text = exact_duration(Duration::from_secs(seconds));
            assert_eq!((text.as_str(), parse_duration(&text)), (exact, Some(Duration::from_secs(seconds))));
        }
        assert_eq!(parse_duration("-1s"), None);
        assert_eq!(parse_duration("soon"), None);
    }

    #[test]
    fn indentation_changes_neither_numbers_nor_strings() {
        let json = r#"{"n":12345678901234567890,"s":"a{\"b\":[1,2]}\\","e":[],"o":{ }}"#;
        let text = "{\n  \"n\": 12345678901234567890,\n  \"s\": \"a{\\\"b\\\":[1,2]}\\\\\",\n  \"e\": [],\n  \"o\": {}\n}";
        assert_eq!(indented_json(json, usize::MAX), (text.to_owned(), 0));
    }

    #[test]
    fn json_is_indented_as_far_as_it_is_shown() {
        const LIMIT: usize = 64 * 1024;
        let json = format!("{}{}", "[".repeat(40), "0,".repeat(1_000_000));
        let (shown, missing) = indented_json(&json, LIMIT);
        assert!((LIMIT..LIMIT + 100).contains(&shown.len()), "{}", shown.len());
        let source: String = shown.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        assert_eq!(source.len() + missing, json.len());
        assert!(json.starts_with(&source));
    }
}
