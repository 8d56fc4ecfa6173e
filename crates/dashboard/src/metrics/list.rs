//! The list of all metrics. It is the source of their names for the exposition, the Grafana dashboard and the
//! alert rules.

use std::borrow::Cow;

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A value that rises and falls.
    Gauge,
    /// A sum that only rises.
    Counter,
    /// A distribution.
    Histogram,
}

/// A metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// The name, without unit and suffix.
    pub name: &'static str,
    /// The kind.
    pub kind: Kind,
    /// The unit, which is appended to the name; `None` for counts.
    pub unit: Option<&'static str>,
    /// The description.
    pub help: &'static str,
    /// The names of the labels.
    pub labels: &'static [&'static str],
}

impl Metric {
    const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, unit: None, help, labels }
    }

    const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Counter, unit: None, help, labels }
    }

    const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Histogram, unit: None, help, labels }
    }

    const fn seconds(mut self) -> Self {
        self.unit = Some("seconds");
        self
    }

    /// Returns the name of the series in queries: the name with its unit, and with `_total` for a counter.
    /// The series of a histogram append `_bucket`, `_sum` and `_count` to this name.
    pub fn series(&self) -> Cow<'static, str> {
        let name = match self.unit {
            None => Cow::Borrowed(self.name),
            Some(unit) => format!("{}_{unit}", self.name).into(),
        };
        match self.kind {
            Kind::Counter => format!("{name}_total").into(),
            _ => name,
        }
    }
}

const QUEUE: &[&str] = &["queue"];
const KIND: &[&str] = &["queue", "kind"];

macro_rules! metrics {
    ($($constant:ident = $metric:expr;)*) => {
        $(pub(super) const $constant: Metric = $metric;)*
        /// All metrics, in the order of the exposition.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    LENGTH = Metric::gauge("jobqueue_queue_length", QUEUE, "Messages in the queue, including invisible messages; approximate");
    WAITING = Metric::gauge("jobqueue_queue_waiting", QUEUE, "Jobs that another worker could start now");
    IN_FLIGHT = Metric::gauge("jobqueue_queue_in_flight", QUEUE, "Running jobs, by their leases or by the workers' records");
    OLDEST = Metric::gauge("jobqueue_queue_oldest_age", QUEUE, "Time since the oldest receivable message became due, or was inserted if the storage does not show when it became due; 0 if there is none, and no sample if the time is unknown").seconds();
    DELAYED = Metric::gauge("jobqueue_queue_delayed", QUEUE, "Messages that were sent with a delay that is not over; no sample if the storage does not count them");
    BACKING_OFF = Metric::gauge("jobqueue_queue_backing_off", QUEUE, "Messages that were received and released with a delay: after a failure, by a snooze, or because no worker handles their kind; no sample if the storage does not count them");
    OLDEST_BACKING_OFF = Metric::gauge("jobqueue_queue_oldest_backing_off_age", QUEUE, "Time since the oldest message that backs off was sent; 0 if there is none, and no sample if the storage does not count them").seconds();
    HELD_UP = Metric::gauge("jobqueue_queue_held_up", QUEUE, "1 if messages are visible, but each waits for another of its key; no sample if the storage does not show which do");
    OLDEST_HELD_UP = Metric::gauge("jobqueue_queue_oldest_held_up_age", QUEUE, "Time since the oldest message that waits for another of its key was sent; 0 if there is none, and no sample if the storage does not show which do").seconds();
    DEAD = Metric::gauge("jobqueue_queue_dead_letters", QUEUE, "Dead letters of the queue; approximate");
    PAUSED = Metric::gauge("jobqueue_queue_paused", QUEUE, "1 if workers fetch nothing from the queue");
    READABLE = Metric::gauge("jobqueue_queue_readable", QUEUE, "0 if the figures of the queue could not be read");
    WORKERS = Metric::gauge("jobqueue_queue_workers", QUEUE, "Workers that serve the queue and are not draining");
    SLOTS = Metric::gauge("jobqueue_queue_slots", QUEUE, "Slots that these workers have for the queue; the queues of a worker share them");
    READY = Metric::gauge("jobqueue_queue_ready_workers", QUEUE, "Workers that have a free slot for another job of the queue");
    CIRCUITS = Metric::gauge("jobqueue_queue_circuits_open", QUEUE, "Workers that fetch nothing from the queue because every job that they ran failed; stays above 0 in an empty queue until its next job succeeds");
    DESIRED = Metric::gauge("jobqueue_queue_desired_workers", QUEUE, "Workers that the queue needs, by slots; not rounded");
    RECORDS = Metric::gauge("jobqueue_workers_readable", &[], "0 if the records of workers could not be read; the figures of workers then have no samples");
    PRESENT = Metric::gauge("jobqueue_workers", &["state"], "Workers by state: running, draining, or stale (within the last hour its record became older than three of its intervals: it has died, or cannot write to the storage)");
    DELIVERIES = Metric::counter("jobqueue_deliveries", &["queue", "kind", "outcome"], "Deliveries that have ended, by outcome");
    RUN_TIME = Metric::histogram("jobqueue_job_run_time", KIND, "Run time of handlers").seconds();
    SCRAPE_SUCCESS = Metric::gauge("jobqueue_scrape_success", &[], "1 if the storage could be read");
    SCRAPE_DURATION = Metric::gauge("jobqueue_scrape_duration", &[], "Duration of the last read of the storage").seconds();
    SCRAPE_AGE = Metric::gauge("jobqueue_scrape_age", &[], "Age of the figures in this answer").seconds();
    REFRESHES = Metric::counter("jobqueue_scrape_refreshes", &["result"], "Reads of the storage, by result");
    BUILD = Metric::gauge("jobqueue_exporter_build_info", &["version"], "1; the label is the version of the exporter");
}
