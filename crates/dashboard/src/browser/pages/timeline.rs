//! The events of a job, in chronological order.

use jobqueue_admin::{Explanation, HistoryRecord, RawJob};

use super::rows::shown;
use crate::browser::app::AuthorizedRequest;
use crate::browser::redact::Field;
use crate::browser::text::{When, line};

/// The maximum difference between the times of a dead letter and of the journal's record of the same death.
const SAME_DEATH_MILLIS: u64 = 5_000;

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
    let death = found.message.as_ref().and_then(|message| death_of(message, ended));
    let others = ended.iter().filter(|record| !death.is_some_and(|death| std::ptr::eq(death, *record)));
    let mut moments: Vec<Moment> = others.map(|record| of_record(request, record)).collect();
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

/// Returns the journal's record of the death that a dead letter shows. The letter is stored first: its message
/// is deleted before the end is recorded.
fn death_of<'r>(message: &RawJob, ended: &'r [HistoryRecord]) -> Option<&'r HistoryRecord> {
    let millis = |text: &str| text.parse::<jiff::Timestamp>().ok().map(|at| at.as_millisecond());
    let dead = message.dead.as_ref()?;
    let died = millis(dead.time.as_deref()?)?;
    let distance = |record: &HistoryRecord| millis(&record.ended).map_or(u64::MAX, |at| at.abs_diff(died));
    let same_reason = |record: &&HistoryRecord| {
        record.outcome == "dead_lettered" && record.reason.as_deref() == Some(&*dead.reason)
    };
    let nearest = ended.iter().filter(same_reason).min_by_key(|record| distance(record))?;
    (distance(nearest) <= SAME_DEATH_MILLIS).then_some(nearest)
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
        let at = past.time.and_then(|time| jiff::Timestamp::try_from(time).ok()).map(|at| at.to_string());
        let what = format!("Dead-lettered: {}, and put back later", line(&past.reason.to_string()));
        let text = format!("{} (failed attempts: {})", error(past.error.as_deref()), past.attempts);
        moments.push(Moment::new(&at.unwrap_or_default(), what, text, true));
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
