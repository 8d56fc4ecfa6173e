//! The pace of a queue, from two looks at its length and at the counters of its workers.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tokio::time::Instant;

use crate::text::short_duration;
use crate::{QueueOverview, WorkerOverview};

/// The counts of a queue at one moment. Two of them show its [pace](Self::since).
#[doc(hidden)]
#[derive(Debug, Clone)]
pub struct QueueCounts {
    taken: Instant,
    length: Option<u64>,
    /// The counts of the present workers of the queue, by their ids; `None` if their records cannot be read.
    workers: Option<BTreeMap<String, WorkerCounts>>,
}

/// The counts in the record of a worker.
#[derive(Debug, Clone, Copy)]
struct WorkerCounts {
    /// The jobs of the queue that were completed or dead-lettered.
    ended: u64,
    started: Option<Timestamp>,
    written: Option<Timestamp>,
    is_late: bool,
}

/// The pace of a queue, from two looks.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct QueuePace {
    /// The jobs that were completed or dead-lettered per second, by the records of workers. Leaves out
    /// workers whose records are late: these may have died. `None` if the records cannot be read, if no
    /// worker with a record serves the queue, and if a record was not written again between the looks.
    pub ended_per_second: Option<f64>,
    /// The number of jobs per second by which the queue grows, negative if it gets shorter. In the dashboard,
    /// which looks all the time, it counts from the last look at the longest queue, if the queue has grown in
    /// all. `None` if its length is unknown, and if it got shorter for too short a time.
    pub growth_per_second: Option<f64>,
    /// The seconds between the two looks; `None` if there was only one.
    pub measured_seconds: Option<f64>,
}

/// The time until a queue is empty, if its pace stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EmptyIn {
    /// The length of the queue, or the rate at which its jobs end, is unknown.
    Unknown,
    /// The queue does not get shorter, or it is paused and has waiting jobs.
    Never,
    /// The queue gets shorter, or is empty.
    After {
        /// The seconds until it is empty.
        seconds: f64,
    },
}

impl QueueCounts {
    /// Returns the counts of a queue that was read at `taken`; `workers` is `None` if the records cannot be
    /// read.
    pub fn of(taken: Instant, queue: &QueueOverview, workers: Option<&[WorkerOverview]>) -> Self {
        let is_present = |worker: &&WorkerOverview| !worker.stale && worker.record.listens_to(&queue.name);
        let counts = |worker: &WorkerOverview| {
            let counters = worker.record.counters.iter().filter(|counters| counters.queue == queue.name);
            let counts = WorkerCounts {
                ended: counters.map(|counters| counters.completed + counters.dead_lettered).sum(),
                started: worker.record.started.parse().ok(),
                written: worker.record.written.parse().ok(),
                is_late: worker.is_late(),
            };
            (worker.record.id.clone(), counts)
        };
        Self {
            taken,
            length: queue.length,
            workers: workers.map(|workers| workers.iter().filter(is_present).map(counts).collect()),
        }
    }

    /// Returns the time at which the queue was read.
    pub fn taken(&self) -> Instant {
        self.taken
    }

    /// Returns the length of the queue; `None` if it is unknown.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// Returns the pace since an earlier look.
    pub fn since(&self, before: &Self) -> QueuePace {
        let seconds = self.taken.saturating_duration_since(before.taken).as_secs_f64();
        if seconds <= 0.0 {
            return QueuePace::default();
        }
        let lengths = self.length.zip(before.length);
        QueuePace {
            ended_per_second: self.ended_per_second(before),
            growth_per_second: lengths.map(|(now, then)| (now as f64 - then as f64) / seconds),
            measured_seconds: Some(seconds),
        }
    }

    fn ended_per_second(&self, before: &Self) -> Option<f64> {
        let (now, then) = (self.workers.as_ref()?, before.workers.as_ref()?);
        let mut rates = Vec::new();
        for (id, counts) in now.iter().filter(|(_, counts)| !counts.is_late) {
            let earlier = then.get(id);
            // The first record of a worker that has just started counts nothing yet.
            if earlier.is_some() || counts.written > counts.started {
                rates.push(counts.ended_per_second(earlier)?);
            }
        }
        (!rates.is_empty()).then(|| rates.iter().sum())
    }
}

impl WorkerCounts {
    /// Returns `None` if the record was not written since the earlier look. A worker that the earlier look
    /// did not find present counts since its start: it has started since, or its record was stale then.
    fn ended_per_second(&self, before: Option<&Self>) -> Option<f64> {
        let (ended, from) = before.map_or((0, self.started), |before| (before.ended, before.written));
        let seconds = self.written?.duration_since(from?).as_secs_f64();
        (seconds > 0.0).then(|| self.ended.saturating_sub(ended) as f64 / seconds)
    }
}

impl QueuePace {
    /// Returns the rate at which jobs end as text, such as `12.5 a second`; `None` if it is unknown.
    #[doc(hidden)]
    pub fn ended_text(&self) -> Option<String> {
        let rate = self.ended_per_second?;
        if rate <= 0.0 {
            return Some("none".to_owned());
        }
        let units = [("a second", 1.0), ("a minute", 60.0)];
        let unit = units.into_iter().find(|(_, seconds)| rate * seconds >= 1.0);
        let (unit, seconds) = unit.unwrap_or(("an hour", 3_600.0));
        // One digit after the point, unless it is 0.
        Some(format!("{} {unit}", (rate * seconds * 10.0).round() / 10.0))
    }
}

impl EmptyIn {
    pub(super) fn of(queue: &QueueOverview, pace: &QueuePace) -> Self {
        let Some(length) = queue.length else { return Self::Unknown };
        if length == 0 {
            return Self::After { seconds: 0.0 };
        }
        let (Some(_), Some(growth)) = (pace.ended_per_second, pace.growth_per_second) else {
            return Self::Unknown;
        };
        let is_held = queue.paused == Some(true) && queue.visible.is_some_and(|visible| visible > 0);
        if growth >= 0.0 || is_held { Self::Never } else { Self::After { seconds: length as f64 / -growth } }
    }
}

/// Writes a text such as `about 1h 40m`, `never at this pace` or `unknown`.
impl fmt::Display for EmptyIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown"),
            Self::Never => f.write_str("never at this pace"),
            Self::After { seconds } if *seconds <= 0.0 => f.write_str("now"),
            Self::After { seconds } => match Duration::try_from_secs_f64(*seconds) {
                Ok(time) => write!(f, "about {}", short_duration(time)),
                Err(_) => f.write_str("never at this pace"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(length: Option<u64>) -> QueueOverview {
        QueueOverview { name: "mails".to_owned(), length, ..QueueOverview::default() }
    }

    fn ended(rate: f64) -> QueuePace {
        QueuePace { ended_per_second: Some(rate), ..QueuePace::default() }
    }

    #[test]
    fn rate_is_shown_in_the_smallest_unit_with_a_whole_job() {
        assert_eq!(ended(12.5).ended_text().unwrap(), "12.5 a second");
        assert_eq!(ended(2.0).ended_text().unwrap(), "2 a second");
        assert_eq!(ended(0.05).ended_text().unwrap(), "3 a minute");
        assert_eq!(ended(0.001).ended_text().unwrap(), "3.6 an hour");
        assert_eq!(ended(0.0).ended_text().unwrap(), "none");
        assert_eq!(QueuePace::default().ended_text(), None);
    }

    #[test]
    fn time_until_a_queue_is_empty_is_unknown_without_a_rate_or_a_length() {
        let pace = |growth| QueuePace { growth_per_second: Some(growth), ..ended(4.0) };
        assert_eq!(EmptyIn::of(&queue(None), &pace(-1.0)), EmptyIn::Unknown);
        let unmeasured = QueuePace { ended_per_second: None, ..pace(-1.0) };
        assert_eq!(EmptyIn::of(&queue(Some(8)), &unmeasured), EmptyIn::Unknown);
        assert_eq!(EmptyIn::of(&queue(Some(8)), &pace(-0.5)), EmptyIn::After { seconds: 16.0 });
        assert_eq!(EmptyIn::of(&queue(Some(8)), &pace(0.0)), EmptyIn::Never);
        assert_eq!(EmptyIn::of(&queue(Some(8)), &pace(3.0)), EmptyIn::Never);
        let empty = EmptyIn::of(&queue(Some(0)), &QueuePace::default());
        assert_eq!(empty, EmptyIn::After { seconds: 0.0 });
        let paused = QueueOverview { paused: Some(true), visible: Some(3), ..queue(Some(8)) };
        assert_eq!(EmptyIn::of(&paused, &pace(-0.5)), EmptyIn::Never);
    }
}
