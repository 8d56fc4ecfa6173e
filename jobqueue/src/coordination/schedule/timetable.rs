//! Computes the slots of a schedule. Pure: no clock, no storage.

use std::collections::BTreeSet;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use croner::Cron;
use croner::errors::CronError;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// The maximum number of times of day that an expression may name by lists and ranges: each minute of a day.
const MAX_TIMES: usize = 1_440;

#[derive(Debug, Clone)]
pub(super) enum Timetable {
    /// The slots of all expressions together.
    Cron {
        crons: Vec<Cron>,
        zone: TimeZone,
    },
    Every {
        millis: i64,
    },
}

impl Timetable {
    pub(super) fn cron(expression: &str, zone: &str) -> Result<Self, String> {
        let crons = Cron::from_str(expression)
            .and_then(|cron| by_time_of_day(cron, expression))
            .map_err(|e| format!("`{expression}` is not a cron expression such as `0 6 * * *`: {e}"))?;
        let zone = TimeZone::get(zone)
            .map_err(|_| format!("`{zone}` is not an IANA time zone such as `Europe/Berlin` or `UTC`"))?;
        let table = Self::Cron { crons, zone };
        // For example 30 February.
        let never = table.next_after(Timestamp::UNIX_EPOCH).is_none();
        if never { Err(format!("`{expression}` never comes")) } else { Ok(table) }
    }

    pub(super) fn every(interval: Duration) -> Result<Self, String> {
        match i64::try_from(interval.as_millis()) {
            Ok(millis) if millis >= 1000 && interval < Duration::from_secs(3660 * 86_400) => {
                Ok(Self::Every { millis })
            }
            _ => Err("an interval lasts from 1 second to 10 years".to_owned()),
        }
    }

    /// Returns the interval in milliseconds; `None` for a cron expression.
    pub(super) fn millis(&self) -> Option<i64> {
        match self {
            Self::Cron { .. } => None,
            Self::Every { millis } => Some(*millis),
        }
    }

    /// Returns the first slot after `moment`; `None` at the end of the calendar.
    pub(super) fn next_after(&self, moment: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Cron { crons, zone } => {
                let from = moment.to_zoned(zone.clone());
                let next = |cron: &Cron| cron.find_next_occurrence(&from, false).ok();
                crons.iter().filter_map(next).map(|slot| slot.timestamp()).min()
            }
            Self::Every { millis } => {
                let slot = (moment.as_millisecond().div_euclid(*millis) + 1).checked_mul(*millis)?;
                Timestamp::from_millisecond(slot).ok()
            }
        }
    }

    /// Returns the last slot up to `moment`.
    pub(super) fn last_until(&self, moment: Timestamp) -> Option<Timestamp> {
        self.parts().filter_map(|part| self.last_of(part, moment)).max()
    }

    /// Returns the numbers of the expressions; an interval counts as a single expression.
    fn parts(&self) -> Range<usize> {
        0..if let Self::Cron { crons, .. } = self { crons.len() } else { 1 }
    }

    /// Returns the last slot of an expression up to `moment`.
    fn last_of(&self, part: usize, moment: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Cron { crons, zone } => {
                // At the end of summer time, a search that begins within a second finds a slot at the end of
                // that second.
                let second = Timestamp::from_second(moment.as_second()).ok()?.to_zoned(zone.clone());
                let last = crons[part].find_previous_occurrence(&second, true);
                Some(last.ok()?.timestamp())
            }
            Self::Every { millis } => {
                let slot = moment.as_millisecond().div_euclid(*millis) * millis;
                Timestamp::from_millisecond(slot).ok()
            }
        }
    }

    /// Returns the latest slots after `done` and up to `now`, at most `limit` of them, the oldest first.
    pub(super) fn due(&self, done: Timestamp, now: Timestamp, limit: usize) -> Vec<Timestamp> {
        let last = |part, moment| {
            let slot = self.last_of(part, moment).filter(|slot| *slot > done)?;
            Some((slot, part))
        };
        let mut latest: BTreeSet<_> = self.parts().filter_map(|part| last(part, now)).collect();
        let mut due = Vec::new();
        while due.len() < limit
            && let Some((slot, part)) = latest.pop_last()
        {
            if due.last() != Some(&slot) {
                due.push(slot);
            }
            // The latest slots of the other expressions are already in `latest`.
            let before = slot.checked_sub(SignedDuration::from_millis(1)).ok();
            latest.extend(before.and_then(|before| last(part, before)));
        }
        due.reverse();
        due
    }
}

/// Returns an expression for each time of day that `cron` names by lists and ranges. Returns `cron` itself if
/// it steps through hours, minutes or seconds, or names more than [`MAX_TIMES`] times of day.
///
/// Only an expression with a single time of day fires once when summer time begins or ends: croner treats any
/// other expression as an interval.
fn by_time_of_day(cron: Cron, expression: &str) -> Result<Vec<Cron>, CronError> {
    let (seconds, minutes, hours) = (&cron.pattern.seconds, &cron.pattern.minutes, &cron.pattern.hours);
    let steps = [seconds, minutes, hours].iter().any(|field| field.from_wildcard || field.step != 1);
    let (seconds, minutes, hours) = (seconds.values(), minutes.values(), hours.values());
    let times = seconds.len() * minutes.len() * hours.len();
    if steps || times == 1 || times > MAX_TIMES {
        return Ok(vec![cron]);
    }
    // An expression of five fields has no seconds.
    let fields: Vec<_> = expression.split_whitespace().collect();
    let date = fields[if fields.len() == 5 { 2 } else { 3 }..].join(" ");
    let mut crons = Vec::with_capacity(times);
    for (hour, minute) in hours.iter().flat_map(|hour| minutes.iter().map(move |minute| (hour, minute))) {
        for second in &seconds {
            crons.push(Cron::from_str(&format!("{second} {minute} {hour} {date}"))?);
        }
    }
    Ok(crons)
}
