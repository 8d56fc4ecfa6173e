//! Times in whole microseconds since 1970, as the journal keeps them.

use std::time::{Duration, SystemTime};

/// Returns the microseconds since 1970, rounded down.
pub fn to_micros(time: SystemTime) -> i64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
        Err(before) => {
            i64::try_from(before.duration().as_nanos().div_ceil(1_000)).map_or(i64::MIN, |micros| -micros)
        }
    }
}

/// Returns the time `micros` microseconds after 1970; 1970 if the platform cannot represent it.
pub fn from_micros(micros: i64) -> SystemTime {
    let distance = Duration::from_micros(micros.unsigned_abs());
    let time = if micros < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(distance)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(distance)
    };
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Returns a time rounded down to whole microseconds.
pub fn whole_micros(time: SystemTime) -> SystemTime {
    from_micros(to_micros(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_down() {
        let at = |nanos| SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos);
        assert_eq!(to_micros(at(1_999)), 1);
        assert_eq!(to_micros(SystemTime::UNIX_EPOCH - Duration::from_nanos(1)), -1);
        assert_eq!(whole_micros(at(1_999)), at(1_000));
        assert_eq!(from_micros(-7), SystemTime::UNIX_EPOCH - Duration::from_micros(7));
    }
}
