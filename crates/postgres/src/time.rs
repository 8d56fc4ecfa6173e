//! Converts times between the milliseconds of the tables and the types of the port.

use std::time::{Duration, SystemTime};

/// The end of the year 9999, a time that every platform can represent.
const FAR_FUTURE: Duration = Duration::from_secs(253_402_300_799);

/// Returns the time that is `millis` milliseconds after 1970. A time that the platform cannot represent
/// becomes the end of the year 9999, or 1970 if `millis` is negative.
pub(crate) fn to_instant(millis: i64) -> SystemTime {
    let (epoch, distance) = (SystemTime::UNIX_EPOCH, Duration::from_millis(millis.unsigned_abs()));
    if millis < 0 {
        epoch.checked_sub(distance).unwrap_or(epoch)
    } else {
        epoch.checked_add(distance).unwrap_or_else(|| epoch + FAR_FUTURE)
    }
}

/// Returns the milliseconds since 1970, or 0 for an earlier time.
pub(crate) fn from_instant(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Returns a number of milliseconds as a duration, or zero for a negative number.
pub(crate) fn to_duration(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// Returns whole milliseconds, rounded up, so that no positive duration becomes zero.
pub(crate) fn to_millis(duration: Duration) -> i64 {
    // Small enough that a sum with the current time does not overflow.
    const MAX_MILLIS: i64 = i64::MAX / 4;
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).map_or(MAX_MILLIS, |millis| millis.min(MAX_MILLIS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_up_and_times_survive() {
        assert_eq!(to_millis(Duration::from_nanos(1)), 1);
        assert_eq!(to_millis(Duration::from_millis(7)), 7);
        assert!(to_millis(Duration::MAX).checked_mul(2).is_some());
        for millis in [0, 1, 1_800_000_000_123] {
            assert_eq!(from_instant(to_instant(millis)), millis);
        }
        assert_eq!(to_duration(-5), Duration::ZERO);
    }
}
