//! Times as text and as numbers, in messages and records.

use std::time::SystemTime;

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;

/// Always prints three digits after the point.
const MILLISECONDS: DateTimePrinter = DateTimePrinter::new().precision(Some(3));

/// Formats a time as RFC 3339, in UTC with milliseconds. A time outside the calendar becomes the nearest end
/// of the calendar.
pub fn rfc3339(time: SystemTime) -> String {
    let end = if time < SystemTime::UNIX_EPOCH { Timestamp::MIN } else { Timestamp::MAX };
    MILLISECONDS.timestamp_to_string(&Timestamp::try_from(time).unwrap_or(end))
}

/// Parses an RFC 3339 timestamp.
pub fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    text.parse::<Timestamp>().ok().map(SystemTime::from)
}

/// Returns the milliseconds from 1970 to `time`, the form of times in records, or 0 for an earlier time.
pub fn unix_millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
