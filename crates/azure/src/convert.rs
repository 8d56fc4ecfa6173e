//! Converts durations, dates and metadata to and from the service's form.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use azure_core::http::headers::Headers;
use jiff::Timestamp;
use jiff::fmt::rfc2822;

use super::call::Call;
use jobqueue_storage::{Metadata, StoreError};

/// The year that means "never".
const NEVER_YEAR: &str = " 9999 ";

/// Returns whole seconds, rounded up, so that a lease is never shorter than requested.
pub(super) fn seconds(call: Call<'_>, what: &str, duration: Duration) -> Result<i32, StoreError> {
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    i32::try_from(seconds).map_err(|_| call.refuse(format!("{what} of {seconds} s is too long")))
}

pub(super) fn http_date(text: &str) -> Option<SystemTime> {
    let timestamp: Timestamp = rfc2822::DateTimeParser::new().parse_timestamp(text.trim()).ok()?;
    Some(timestamp.into())
}

/// Parses a date of an answer. The service sends one with every message. A message without a date keeps its
/// text, and has the epoch as its time.
pub(super) fn date(text: Option<&str>) -> SystemTime {
    text.and_then(http_date).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Returns the time at which a message expires; the end of the calendar means never.
pub(super) fn expiry(text: Option<&str>) -> Option<SystemTime> {
    text.filter(|text| !text.contains(NEVER_YEAR)).and_then(http_date)
}

/// Returns the checked metadata in the SDK's form.
pub(super) fn to_headers(call: Call<'_>, metadata: &Metadata) -> Result<HashMap<String, String>, StoreError> {
    metadata.check().map_err(|problem| call.refuse(problem))?;
    Ok(metadata.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

pub(super) fn from_headers(headers: &Headers) -> Metadata {
    let ours =
        headers.iter().filter_map(|(name, value)| Some((name.as_str().strip_prefix("x-ms-meta-")?, value)));
    ours.map(|(name, value)| (name, value.as_str())).collect()
}
