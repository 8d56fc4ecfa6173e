//! Writes times, durations and bytes: into JSON as RFC 3339 in UTC, seconds and base64; for people in short.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Returns a length of time with its two largest units, as the command line and the dashboard show it.
///
/// ```
/// use jobqueue_admin::short_duration;
/// use std::time::Duration;
///
/// assert_eq!(short_duration(Duration::from_secs(11_530)), "3h 12m");
/// assert_eq!(short_duration(Duration::from_secs(59)), "59s");
/// ```
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

/// Reads a length of time such as `90s`, `2h 30m` or `7d`, where a day has 24 hours. Returns `None` for any other text, and for less than
/// nothing.
///
/// ```
/// use jobqueue_admin::parse_duration;
/// use std::time::Duration;
///
/// assert_eq!(parse_duration("2h 30m"), Some(Duration::from_secs(9_000)));
/// assert_eq!((parse_duration("-1s"), parse_duration("soon")), (None, None));
/// ```
pub fn parse_duration(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.parse().ok()?;
    let length = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).ok()?;
    Duration::try_from(length).ok()
}

/// Returns a time as RFC 3339 in UTC with milliseconds; the ends of the calendar for a time outside it.
pub(super) fn time(time: SystemTime) -> String {
    let end = if time < SystemTime::UNIX_EPOCH { Timestamp::MIN } else { Timestamp::MAX };
    let timestamp = Timestamp::try_from(time).unwrap_or(end);
    jiff::fmt::temporal::DateTimePrinter::new().precision(Some(3)).timestamp_to_string(&timestamp)
}

/// Returns a time as RFC 3339 in UTC with all its digits, from which the same time can be read.
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
    time(*at).serialize(serializer)
}

pub(super) fn rfc3339_option<S: Serializer>(
    at: &Option<SystemTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    at.map(time).serialize(serializer)
}

/// Returns seconds. Milliseconds are exact enough, and their text is short.
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
