//! The stored state of a schedule, and its changes by the leader and by operators. Makes no request.
//!
//! | state | the leader | an operator |
//! |---|---|---|
//! | none | *described*: everything until now is done | refused |
//! | `done` until a time | *begun*: the next slot is pending; or *finished* with a slot that is skipped | – |
//! | a slot is `pending` | *finished*: the slot is done, and no slot is pending | – |
//! | `triggered` at a time | *answered*: sent, no longer triggered | the first request counts |
//! | `paused` or not | begins no slot while paused | pauses or resumes the schedule |
//!
//! A leader changes the progress (`done` and `pending`) only if it is the progress that the leader knows, so
//! that a former leader cannot undo the work of its successor. The operators' requests are separate fields,
//! and survive the leader's writes.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::timetable::Timetable;
use crate::json_blob::Edit;

/// The maximum size of a state, in bytes.
pub(super) const MAX_BYTES: u64 = 4096;

/// The stored form. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stored {
    /// Every slot up to this time is done.
    pub(super) done: i64,
    /// A slot that is about to be sent.
    pub(super) pending: Option<i64>,
    /// The schedule's job and times, for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) about: Option<ScheduleDescription>,
    /// True if an operator has paused the schedule.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) paused: bool,
    /// The time at which an operator triggered a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) triggered: Option<i64>,
}

/// A request of an operator to a schedule.
#[derive(Debug, Clone, Copy)]
pub enum ScheduleRequest {
    /// While this is true, the schedule sends nothing but the jobs that an operator triggers.
    Pause(bool),
    /// The schedule sends a job for this time.
    Trigger(Timestamp),
}

impl Stored {
    /// Stores the description of the schedule for operators. A new schedule begins `now`.
    pub(super) fn described(
        found: Option<Self>,
        about: &ScheduleDescription,
        now: Timestamp,
    ) -> Edit<Self, ()> {
        let about = Some(about).filter(|about| about.fits());
        match found {
            Some(stored) if stored.about.as_ref() == about => Edit::Keep(()),
            Some(stored) => Edit::Write(Self { about: about.cloned(), ..stored }, ()),
            None => {
                let (done, about) = (now.as_millisecond(), about.cloned());
                Edit::Write(Self { done, pending: None, about, paused: false, triggered: None }, ())
            }
        }
    }

    /// Applies a leader's change if the progress is still that of `known`. Returns whether it is.
    pub(super) fn led(found: Option<Self>, known: &Self, change: impl Fn(Self) -> Self) -> Edit<Self, bool> {
        match found {
            Some(stored) if (stored.done, stored.pending) == (known.done, known.pending) => {
                Edit::Write(change(stored), true)
            }
            _ => Edit::Keep(false),
        }
    }

    /// Records that `slot` is about to be sent.
    pub(super) fn begun(self, slot: Timestamp) -> Self {
        Self { pending: Some(slot.as_millisecond()), ..self }
    }

    /// Records that everything up to `slot` is done.
    pub(super) fn finished(self, slot: Timestamp) -> Self {
        Self { done: self.done.max(slot.as_millisecond()), pending: None, ..self }
    }

    /// Records that the job that an operator triggered at `at` was sent. A later trigger stays.
    pub(super) fn answered(self, at: Timestamp) -> Self {
        Self { triggered: self.triggered.filter(|asked| *asked != at.as_millisecond()), ..self }
    }

    /// Applies the request of an operator. Returns false if the state already contains it, and `None` if
    /// there is no schedule.
    pub(super) fn asked(found: Option<Self>, request: ScheduleRequest) -> Edit<Self, Option<bool>> {
        match (found, request) {
            (None, _) => Edit::Keep(None),
            (Some(stored), ScheduleRequest::Pause(paused)) if stored.paused != paused => {
                Edit::Write(Self { paused, ..stored }, Some(true))
            }
            (Some(stored), ScheduleRequest::Trigger(at)) if stored.triggered.is_none() => {
                Edit::Write(Self { triggered: Some(at.as_millisecond()), ..stored }, Some(true))
            }
            (Some(_), _) => Edit::Keep(Some(false)),
        }
    }
}

/// The job of a schedule, and the times at which the job is sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleDescription {
    pub queue: Option<String>,
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<i64>,
}

impl ScheduleDescription {
    pub(super) fn timetable(&self) -> Option<Timetable> {
        match (&self.cron, &self.zone, self.every_ms) {
            (Some(cron), Some(zone), _) => Timetable::cron(cron, zone).ok(),
            (_, _, Some(millis)) => Timetable::every(Duration::from_millis(u64::try_from(millis).ok()?)).ok(),
            _ => None,
        }
    }

    fn fits(&self) -> bool {
        serde_json::to_vec(self).is_ok_and(|json| json.len() as u64 <= MAX_BYTES / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn described(found: Option<Stored>, about: &ScheduleDescription) -> Stored {
        match Stored::described(found, about, at(100)) {
            Edit::Write(stored, ()) => stored,
            Edit::Keep(()) => panic!("the state already describes the schedule"),
        }
    }

    #[test]
    fn new_schedule_begins_now_and_keeps_its_progress_when_it_is_described_anew() {
        let about = ScheduleDescription::default();
        let new = described(None, &about);
        assert_eq!(new.done, 100_000);
        assert_eq!(new.pending, None);
        assert!(matches!(Stored::described(Some(new.clone()), &about, at(200)), Edit::Keep(())));
        let other =
            ScheduleDescription { cron: Some("0 6 * * *".to_owned()), ..ScheduleDescription::default() };
        let asked = Stored { paused: true, triggered: Some(1), ..new.begun(at(160)) };
        let about = Some(other.clone());
        assert_eq!(described(Some(asked.clone()), &other), Stored { about, ..asked });
    }

    #[test]
    fn leader_moves_a_slot_from_done_to_pending_to_done() {
        let known = described(None, &ScheduleDescription::default());
        let begun = match Stored::led(Some(known.clone()), &known, |stored| stored.begun(at(160))) {
            Edit::Write(begun, true) => begun,
            _ => panic!("the leader knows the stored progress"),
        };
        assert_eq!(begun.done, 100_000);
        assert_eq!(begun.pending, Some(160_000));
        let finished = begun.clone().finished(at(160));
        assert_eq!(finished.done, 160_000);
        assert_eq!(finished.pending, None);
        // A clock that was set back undoes nothing.
        assert_eq!(finished.clone().finished(at(130)), finished);
        // A former leader, and a leader whose state was deleted.
        for found in [Some(begun), Some(finished), None] {
            assert!(matches!(
                Stored::led(found, &known, |stored| stored.answered(at(110))),
                Edit::Keep(false)
            ));
        }
    }

    #[test]
    fn requests_of_operators_survive_the_leader_and_count_once() {
        let known = described(None, &ScheduleDescription::default());
        let ask = |found, request| match Stored::asked(found, request) {
            Edit::Write(stored, Some(true)) => Some(stored),
            Edit::Keep(Some(false)) => None,
            _ => panic!("there is a schedule"),
        };
        let paused = ask(Some(known.clone()), ScheduleRequest::Pause(true)).unwrap();
        assert!(ask(Some(paused.clone()), ScheduleRequest::Pause(true)).is_none());
        let triggered = ask(Some(paused), ScheduleRequest::Trigger(at(110))).unwrap();
        assert!(ask(Some(triggered.clone()), ScheduleRequest::Trigger(at(120))).is_none());
        let led = match Stored::led(Some(triggered), &known, |stored| stored.finished(at(160))) {
            Edit::Write(led, true) => led,
            _ => panic!("the requests are no progress"),
        };
        assert!(led.paused);
        assert_eq!(led.triggered, Some(110_000));
        // A former leader has sent the job of another trigger.
        assert_eq!(led.clone().answered(at(100)).triggered, Some(110_000));
        let answered = ask(Some(led.answered(at(110))), ScheduleRequest::Pause(false)).unwrap();
        assert!(!answered.paused);
        assert_eq!(answered.triggered, None);
        assert!(matches!(Stored::asked(None, ScheduleRequest::Pause(true)), Edit::Keep(None)));
    }
}
