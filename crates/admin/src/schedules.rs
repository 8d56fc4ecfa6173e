//! Schedules: listing, pausing and triggering them.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use futures_util::try_join;
use jiff::Timestamp;
use jobqueue::__internals::{ScheduleRecord, ScheduleRequest, request_change, schedules};
use jobqueue::{Error, ErrorKind};
use jobqueue_message::times::rfc3339;
use serde::{Serialize, Serializer};

use super::text::{rfc3339_option, short_duration};
use super::{Action, Admin};

/// The number of upcoming runs that are shown.
const SHOWN_RUNS: usize = 5;
/// The prefix of the names of the schedules' leaderships.
const LEADERSHIP_PREFIX: &str = "schedules/";

/// A schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ScheduleOverview {
    /// The name.
    pub name: String,
    /// The queue that it sends to; `None` if no leader with this version of the framework has run it yet.
    pub queue: Option<String>,
    /// The kind that it sends.
    pub kind: Option<String>,
    /// The cron expression.
    pub cron: Option<String>,
    /// The time zone of the cron expression.
    pub zone: Option<String>,
    /// The interval in milliseconds, for a schedule without a cron expression.
    pub every_ms: Option<i64>,
    /// True if a worker leads the schedule now. Without a leader nothing is sent; once a worker leads,
    /// [`CatchUp`](jobqueue::schedule::CatchUp) decides about the runs that were missed.
    pub led: bool,
    /// The next runs by the timetable: at most 5. A paused schedule leaves them out.
    #[serde(serialize_with = "times")]
    pub next: Vec<SystemTime>,
    /// The time up to which all slots were handled.
    #[serde(serialize_with = "rfc3339_option")]
    pub done: Option<SystemTime>,
    /// True if the schedule is paused.
    pub paused: bool,
    /// The time of a trigger that the leader has not executed yet.
    #[serde(serialize_with = "rfc3339_option")]
    pub triggered: Option<SystemTime>,
    /// The reason why its state cannot be read: then nothing is sent, and the other fields are unknown.
    pub problem: Option<String>,
}

/// The answer to a [trigger](Admin::trigger_schedule) of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct ScheduleTrigger {
    /// False if an earlier trigger is still pending.
    pub new: bool,
    /// True if a worker leads the schedule now. Otherwise the job is sent once a worker does.
    pub led: bool,
}

fn times<S: Serializer>(times: &[SystemTime], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(times.iter().map(|at| rfc3339(*at)))
}

impl ScheduleOverview {
    /// Returns the interval of a schedule without a cron expression as text, such as `1h 30m` or `1500 ms`.
    pub fn interval(&self) -> Option<String> {
        let millis = u64::try_from(self.every_ms?).ok()?;
        Some(match millis % 1_000 {
            0 => short_duration(Duration::from_millis(millis)),
            _ => format!("{millis} ms"),
        })
    }

    fn of(record: ScheduleRecord, led: &BTreeSet<String>) -> Self {
        let about = record.about.unwrap_or_default();
        Self {
            led: led.contains(&record.name),
            name: record.name,
            queue: about.queue,
            kind: about.kind,
            cron: about.cron,
            zone: about.zone,
            every_ms: about.every_ms,
            next: record.next.into_iter().map(SystemTime::from).collect(),
            done: record.done.map(SystemTime::from),
            paused: record.paused,
            triggered: record.triggered.map(SystemTime::from),
            problem: record.problem,
        }
    }
}

impl Admin {
    /// Returns all schedules, in order of name, including those whose state is
    /// [damaged](ScheduleOverview::problem). Costs two requests to list, and one for each schedule.
    ///
    /// # Errors
    /// [`Storage`](ErrorKind::Storage) if the schedules or their leaderships cannot be read.
    pub async fn schedules(&self) -> Result<Vec<ScheduleOverview>, Error> {
        let (found, led) =
            try_join!(schedules(&self.storage, self.timestamp()?, SHOWN_RUNS), self.led_schedules())?;
        Ok(found.into_iter().map(|record| ScheduleOverview::of(record, &led)).collect())
    }

    /// Returns the names of the schedules that a worker leads now.
    async fn led_schedules(&self) -> Result<BTreeSet<String>, Error> {
        let held = self.leaderships(LEADERSHIP_PREFIX).await?.into_iter().filter(|leader| leader.held);
        Ok(held.filter_map(|leader| Some(leader.name.strip_prefix(LEADERSHIP_PREFIX)?.to_owned())).collect())
    }

    /// Pauses a schedule: its leader skips due slots until the schedule is resumed, starting at most 30
    /// seconds later. Slots that pass while the schedule is paused and led are not sent later. Nor is a slot
    /// whose send failed before the pause; the log of the leader names it. Returns false if the schedule was
    /// paused already.
    ///
    /// # Errors
    /// [`Forbidden`](ErrorKind::Forbidden); [`NotFound`](ErrorKind::NotFound) if there is no such schedule;
    /// [`Storage`](ErrorKind::Storage) if the storage refuses.
    ///
    /// # Cancel safety
    /// If the future is dropped, the schedule may or may not be paused.
    pub async fn pause_schedule(&self, schedule: &str) -> Result<bool, Error> {
        let summary =
            |new: &bool| if *new { "paused".to_owned() } else { "it was paused already".to_owned() };
        let work = request_change(&self.storage, schedule, ScheduleRequest::Pause(true));
        self.act(Action::PauseSchedule, format!("schedule {schedule}"), work, summary).await
    }

    /// Resumes a paused schedule. Returns false if it was not paused.
    ///
    /// # Errors
    /// As [`pause_schedule`](Self::pause_schedule).
    ///
    /// # Cancel safety
    /// If the future is dropped, the schedule may or may not be paused.
    pub async fn resume_schedule(&self, schedule: &str) -> Result<bool, Error> {
        let summary = |new: &bool| if *new { "resumed".to_owned() } else { "it was not paused".to_owned() };
        let work = request_change(&self.storage, schedule, ScheduleRequest::Pause(false));
        self.act(Action::ResumeSchedule, format!("schedule {schedule}"), work, summary).await
    }

    /// Makes a schedule send a job now, regardless of its timetable, even if it is paused. The worker that
    /// leads the schedule creates the message, and checks for requests every 30 seconds; if no worker leads,
    /// the request waits until one does. The job's id is `schedule/<name>/trigger/<time>`.
    /// A schedule that passes the slot's time to its function passes the time of the trigger.
    ///
    /// # Errors
    /// As [`pause_schedule`](Self::pause_schedule). Nothing is requested if the leaderships cannot be listed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the job may or may not be sent.
    pub async fn trigger_schedule(&self, schedule: &str) -> Result<ScheduleTrigger, Error> {
        let summary = |trigger: &ScheduleTrigger| match (trigger.new, trigger.led) {
            (false, _) => "one is under way".to_owned(),
            (true, true) => "requested".to_owned(),
            (true, false) => "requested; no worker leads the schedule now".to_owned(),
        };
        let work = async {
            let led = self.led_schedules().await?.contains(schedule);
            let new =
                request_change(&self.storage, schedule, ScheduleRequest::Trigger(self.timestamp()?)).await?;
            Ok(ScheduleTrigger { new, led })
        };
        self.act(Action::TriggerSchedule, format!("schedule {schedule}"), work, summary).await
    }

    fn timestamp(&self) -> Result<Timestamp, Error> {
        let outside =
            |e| Error::new(ErrorKind::Configuration, "the clock is outside the calendar").with_source(e);
        Timestamp::try_from(self.clock().now()).map_err(outside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_below_a_second_is_not_zero() {
        let interval = |millis| {
            let overview = ScheduleOverview {
                name: "s".to_owned(),
                queue: None,
                kind: None,
                cron: None,
                zone: None,
                every_ms: millis,
                led: true,
                next: Vec::new(),
                done: None,
                paused: false,
                triggered: None,
                problem: None,
            };
            overview.interval()
        };
        assert_eq!(interval(Some(500)).as_deref(), Some("500 ms"));
        assert_eq!(interval(Some(1_500)).as_deref(), Some("1500 ms"));
        assert_eq!(interval(Some(90_000)).as_deref(), Some("1m 30s"));
        assert_eq!(interval(None), None);
    }
}
