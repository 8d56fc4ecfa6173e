//! The jobs of workers whose records are stale. These jobs may still run, because a worker that cannot write
//! its record continues.

use std::time::Duration;

use jobqueue_admin::{QueueOverview, RunningJob, WorkerOverview};
use tokio::time::Instant;

use super::figures::QueueFigures;

/// The time for which an outage is remembered. Without this limit, the jobs of a dead worker would count for
/// as long as every second read fails.
const OUTAGES_KEPT_FOR: Duration = Duration::from_secs(3_600);

/// The successes and failures of reading the records of workers.
#[derive(Debug, Default)]
pub(super) struct Readings {
    /// The time of the last successful read.
    last: Option<Instant>,
    /// While reads fail, the time of the last successful read, or else of the first failed read.
    failing_since: Option<Instant>,
    /// The start and the end of each period in which the records could not be read.
    outages: Vec<(Instant, Instant)>,
}

impl Readings {
    pub(super) fn failed(&mut self, at: Instant) {
        self.failing_since.get_or_insert(self.last.unwrap_or(at));
    }

    pub(super) fn succeeded(&mut self, at: Instant) {
        self.outages.retain(|(_, to)| at.saturating_duration_since(*to) < OUTAGES_KEPT_FOR);
        self.outages.extend(self.failing_since.take().map(|since| (since, at)));
        self.last = Some(at);
    }

    /// Returns the number of jobs of a queue that may run on workers with stale records, by the read at `at`.
    /// Draining workers do not count.
    ///
    /// The number is at most the number of leased messages that no present worker has recorded. If the
    /// storage does not count leases, every message that is not known to be visible may be leased, and a job
    /// counts until its longest possible lease has ended.
    pub(super) fn lost_jobs(
        &self,
        at: Instant,
        overview: &QueueOverview,
        figures: &QueueFigures,
        workers: &[WorkerOverview],
    ) -> u64 {
        let counts_leases = overview.states.is_some();
        let lost = workers.iter().filter(|worker| worker.stale && !worker.record.draining).map(|worker| {
            let age = worker.age_seconds - self.unread_seconds(at, worker.age_seconds);
            let may_run = |job: &RunningJob| {
                job.queue == overview.name
                    && (counts_leases || age <= overview.longest_lease(&worker.record, job))
            };
            worker.record.running_that(may_run)
        });
        lost.sum::<u64>().min(figures.unrecorded(overview))
    }

    /// Returns how many of the last `age` seconds are in outages: the records could not be read, and
    /// presumably not be written either.
    fn unread_seconds(&self, at: Instant, age: f64) -> f64 {
        let ago = |moment: &Instant| at.saturating_duration_since(*moment).as_secs_f64();
        self.outages.iter().map(|(from, to)| (ago(from).min(age) - ago(to)).max(0.0)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the readings of every tenth second up to `until`. The reading of a second fails if `fails`
    /// returns true.
    fn readings(until: u64, fails: impl Fn(u64) -> bool) -> (Readings, Instant) {
        let (mut readings, begin) = (Readings::default(), Instant::now());
        let mut at = begin;
        for second in (0..=until).step_by(10) {
            at = begin + Duration::from_secs(second);
            if fails(second) { readings.failed(at) } else { readings.succeeded(at) }
        }
        (readings, at)
    }

    #[test]
    fn time_of_each_outage_does_not_count() {
        let (readings, at) = readings(330, |second| second % 110 != 0);
        assert_eq!(readings.unread_seconds(at, 330.0), 330.0);
        assert_eq!(readings.unread_seconds(at, 50.0), 50.0);
    }

    #[test]
    fn worker_that_has_died_ages_although_each_second_reading_fails() {
        let day = 86_400;
        let (readings, at) = readings(day, |second| second % 20 == 10);
        let unread = readings.unread_seconds(at, day as f64);
        assert!(unread <= 3_620.0, "{unread}");
    }
}
