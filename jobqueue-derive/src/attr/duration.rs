//! Parses durations such as `30s`, `5m`, `2h`, `7d`.

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DurationError {
    Malformed,
    Fractional,
    Zero,
    TooLong,
}

/// The longest duration in seconds: 7 days, Azure's limit for leases and delays.
const MAX_SECONDS: u64 = 604_800;

/// Returns the seconds in a duration of 1 second to 7 days.
pub(crate) fn parse(text: &str) -> Result<u64, DurationError> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(DurationError::Malformed);
    }
    let factor = match unit.trim_start() {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "ms" | "us" | "µs" | "ns" => return Err(DurationError::Fractional),
        other if other.starts_with('.') => return Err(DurationError::Fractional),
        _ => return Err(DurationError::Malformed),
    };
    // A number with too many digits has too many seconds.
    let seconds = number.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(factor);
    match seconds {
        0 => Err(DurationError::Zero),
        1..=MAX_SECONDS => Ok(seconds),
        _ => Err(DurationError::TooLong),
    }
}

#[cfg(test)]
mod tests {
    use super::{DurationError, parse};

    #[test]
    fn whole_seconds_up_to_seven_days() {
        for (text, seconds) in [("1s", 1), ("90 s", 90), ("10m", 600), ("2h", 7_200), ("7d", 604_800)] {
            assert_eq!(parse(text), Ok(seconds), "{text}");
        }
    }

    #[test]
    fn mistakes_are_distinguished() {
        for text in ["", "s", "30", "-1s", "1w", "1h30m", "30S", " 1s"] {
            assert_eq!(parse(text), Err(DurationError::Malformed), "{text}");
        }
        for text in ["1.5s", "500ms"] {
            assert_eq!(parse(text), Err(DurationError::Fractional), "{text}");
        }
        assert_eq!(parse("0s"), Err(DurationError::Zero));
        for text in ["604801s", "8d", "99999999999999999999999d"] {
            assert_eq!(parse(text), Err(DurationError::TooLong), "{text}");
        }
    }
}
