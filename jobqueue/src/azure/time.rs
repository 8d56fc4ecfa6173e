//! Durations and dates in the service's form.

use std::time::{Duration, SystemTime};

use super::call::Call;
use super::error::http_date;
use crate::storage::StoreError;

/// The year that means "never".
const NEVER: &str = " 9999 ";

/// Whole seconds, rounded up: a lease is never shorter than asked for.
pub(super) fn seconds(call: Call<'_>, what: &str, duration: Duration) -> Result<i32, StoreError> {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i32::try_from(seconds).map_err(|_| call.refuse(format!("{what} of {seconds} s is too long")))
}

/// A date of an answer; the epoch when it is missing or unreadable, which nothing is decided by.
pub(super) fn date(text: Option<&str>) -> SystemTime {
    text.and_then(http_date).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// When a message vanishes; the end of the calendar is never.
pub(super) fn expiry(text: Option<&str>) -> Option<SystemTime> {
    text.filter(|text| !text.contains(NEVER)).and_then(http_date)
}
