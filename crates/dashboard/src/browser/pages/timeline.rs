//! The events of a job, in chronological order.

use jobqueue_admin::{Explanation, HistoryRecord, RawJob};

use super::rows::shown;
use crate::browser::app::AuthorizedRequest;
use crate::browser::redact::Field;
use crate::browser::text::{When, line};

/// The maximum difference between the times of a dead letter, by the storage's clock, and of the journal's
/// record of the same death, by the worker's.
const SAME_DEATH_MILLIS: u64 = 60_000;

/// An event of a job.
pub(crate) struct Moment {
    pub(crate) at: When,
    pub(crate) what: String,
    pub(crate) text: String,
    pub(crate) is_bad: bool,
    /// Sorts the events by time.
    order: String,
}

pub(crate) fn moments(
    request: &AuthorizedRequest,
    found: &Explanation,
    ended: &[HistoryRecord],
) -> Vec<Moment> {
    let mut records: Vec<_> = ended.iter().collect();
    if let Some(message) = &found.message {
        remove_deaths(message, &mut records);
    }
    let mut moments: Vec<Moment> = records.into_iter().map(|record| of_record(request, record)).collect();
    if let Some(message) = &found.message {
        of_message(request, message, &mut moments);
    }
    if let Some(run) = &found.run {
        let what = format!("Attempt {} of {} began", run.attempt, run.max_attempts);
        moments.push(Moment::new(&run.since, what, String::new(), false));
    }
    if let jobqueue_admin::Cancellation::Requested { by, at, .. } = &found.cancellation {
        moments.push(Moment::new(
            at,
            format!("{} requested its cancellation", line(by)),
            String::new(),
            false,
        ));
    }
    moments.sort_by(|one, other| one.order.cmp(&other.order));
    moments
}

/// Removes the journal's records of the deaths that the message shows, as a dead letter now or before a
/// redrive: of each death the nearest record in time.
fn remove_deaths(message: &RawJob, records: &mut Vec<&HistoryRecord>) {
    let millis = |text: &str| text.parse::<jiff::Timestamp>().ok().map(|at| at.as_millisecond());
    let mut remove = |reason: &str, time: Option<String>, worker: Option<&str>| {
        let Some(died) = time.and_then(|time| millis(&time)) else { return };
        // A dead letter has the beginning of a long name.
        let is_same = |record: &HistoryRecord| {
            record.outcome == "dead_lettered"
                && record.reason.as_deref() == Some(reason)
                && worker.is_none_or(|worker| record.worker.starts_with(worker))
        };
        let same = records.iter().enumerate().filter(|(_, record)| is_same(record));
        let distances =
            same.filter_map(|(index, record)| Some((millis(&record.ended)?.abs_diff(died), index)));
        if let Some((_, index)) = distances.min().filter(|(distance, _)| *distance <= SAME_DEATH_MILLIS) {
            records.remove(index);
        }
    };
    for past in &message.past {
        remove(past.reason.as_str(), past.time_text(), past.worker.as_deref());
    }
    if let Some(dead) = &message.dead {
        remove(&dead.reason, dead.time.clone(), dead.worker.as_deref());
    }
}

fn of_record(request: &AuthorizedRequest, record: &HistoryRecord) -> Moment {
    let what = match (record.outcome.as_str(), &record.reason) {
        ("dead_lettered", Some(reason)) => format!("Dead-lettered: {}", line(reason)),
        (outcome, _) => format!("Ended: {}", line(outcome)),
    };
    let error = record.error.as_deref();
    let error = error.map(|error| shown(request, &record.queue, &record.kind, Field::Error, error));
    let seconds = (record.run_seconds * 1e3).round() / 1e3;
    let run = format!("attempt {}, {seconds} s, by {}", record.attempt, line(&record.worker));
    let text = error.map_or_else(|| run.clone(), |error| format!("{error} ({run})"));
    Moment::new(&record.ended, what, text, record.outcome == "dead_lettered")
}

fn of_message(request: &AuthorizedRequest, message: &RawJob, moments: &mut Vec<Moment>) {
    let error = |error: Option<&str>| {
        error
            .map(|error| shown(request, &message.queue, &message.kind, Field::Error, error))
            .unwrap_or_default()
    };
    if let Some(sent) = &message.sent {
        moments.push(Moment::new(sent, format!("Sent by {}", line(&message.source)), String::new(), false));
    }
    for past in &message.past {
        let what = format!("Dead-lettered: {}, and put back later", line(&past.reason.to_string()));
        let text = format!("{} (failed attempts: {})", error(past.error.as_deref()), past.attempts);
        moments.push(Moment::new(&past.time_text().unwrap_or_default(), what, text, true));
    }
    if let Some(deferral) = &message.deferral {
        let text = format!("put back {} times since then", deferral.count);
        moments.push(Moment::new(&deferral.since, format!("Waits: {}", line(&deferral.cause)), text, false));
    }
    match &message.dead {
        Some(dead) => {
            let what = format!("Dead-lettered: {}", line(&dead.reason));
            let by = dead.worker.as_deref().map(|worker| format!("by {}", line(worker))).unwrap_or_default();
            let text = format!(
                "{} (failed attempts: {}, deliveries: {}) {by}",
                error(message.last_error.as_deref()),
                message.attempts,
                dead.deliveries
            );
            moments.push(Moment::new(dead.time.as_deref().unwrap_or_default(), what, text, true));
        }
        None if message.attempts > 0 => {
            let what = format!("Failed {} times so far", message.attempts);
            let at = message.inserted.as_deref().unwrap_or_default();
            moments.push(Moment {
                at: When::read(""),
                ..Moment::new(at, what, error(message.last_error.as_deref()), true)
            });
        }
        None => {}
    }
}

impl Moment {
    fn new(at: &str, what: String, text: String, is_bad: bool) -> Self {
        // Texts that are not a time are sorted last.
        let order = at
            .parse::<jiff::Timestamp>()
            .map_or_else(|_| format!("~{at}"), |at| format!("{:020}", at.as_millisecond()));
        Self { at: When::read(at), what, text, is_bad, order }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(reason: &str, ended: &str, worker: &str) -> HistoryRecord {
        let record = serde_json::json!({
            "queue": "mails", "id": "a", "source": "shop", "kind": "mail", "outcome": "dead_lettered",
            "reason": reason, "attempt": 1, "inserted": ended, "ended": ended, "run_seconds": 0.1,
            "worker": worker,
        });
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn record_of_a_death_is_the_nearest_of_its_worker_although_their_clocks_differ() {
        let past = |time: &str| {
            let past = serde_json::json!({
                "reason": "rejected", "time": time, "error": "no", "attempts": 1, "deliveries": 1,
                "worker": "w1",
            });
            serde_json::from_value(past).unwrap()
        };
        let mut message = RawJob::default();
        message.past = vec![past("2026-11-29T08:00:00.000Z"), past("2026-11-29T09:00:00.000Z")];
        let ended = [
            record("rejected", "2026-11-29T07:59:40Z", "w1"),
            record("rejected", "2026-11-29T08:00:00Z", "w2"),
            record("expired", "2026-11-29T08:00:00Z", "w1"),
            record("rejected", "2026-11-29T08:59:00.5Z", "w1"),
            record("rejected", "2026-11-29T09:02:00Z", "w1"),
        ];
        let mut records: Vec<_> = ended.iter().collect();
        remove_deaths(&message, &mut records);
        assert_eq!(records, [&ended[1], &ended[2], &ended[4]]);
    }
}
