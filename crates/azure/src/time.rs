//! Converts durations and dates to and from the service's form.

use std::time::{Duration, SystemTime};

use super::call::Call;
use super::error::http_date;
use jobqueue_storage::StoreError;

/// The year that means "never".
const NEVER: &str = " 9999 ";

/// Returns whole seconds, rounded up: a lease is never shorter than requested.
pub(super) fn seconds(call: Call<'_>, what: &str, duration: Duration) -> Result<i32, StoreError> {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i32::try_from(seconds).map_err(|_| call.refuse(format!("{what} of {seconds} s is too long")))
}

/// Parses a date of an answer; returns the epoch when it is missing or unreadable, since nothing depends on it.
pub(super) fn date(text: Option<&str>) -> SystemTime {
    text.and_then(http_date).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Returns the time at which a message expires; the end of the calendar means never.
pub(super) fn expiry(text: Option<&str>) -> Option<SystemTime> {
    text.filter(|text| !text.contains(NEVER)).and_then(http_date)
}
