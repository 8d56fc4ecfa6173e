//! The jobs of workers whose records are stale: those may still run, since a worker that cannot write its record goes on.

use jobqueue_admin::{QueueOverview, RunningJob, WorkerOverview};
use tokio::time::Instant;

use super::figures::QueueFigures;

/// The readings of the records of workers.
#[derive(Debug, Default)]
pub(super) struct Readings {
    /// The last one that succeeded.
    last: Option<Instant>,
    /// The last one that succeeded, or else the first that failed, while they fail.
    failing_since: Option<Instant>,
    /// The begin and the end of the last time in which the records could not be read.
    outage: Option<(Instant, Instant)>,
    /// True if that time is two outages.
    is_joined: bool,
}

impl Readings {
    pub(super) fn failed(&mut self, at: Instant) {
        self.failing_since.get_or_insert(self.last.unwrap_or(at));
    }

    pub(super) fn succeeded(&mut self, at: Instant) {
        if let Some(since) = self.failing_since.take() {
            // A worker may not have written its record between two outages with one reading between them. No more are joined: a worker that has
            // died must not count as long as each second reading fails.
            let joined = self.outage.filter(|(_, to)| *to == since && !self.is_joined);
            self.is_joined = joined.is_some();
            self.outage = Some((joined.map_or(since, |(from, _)| from), at));
        }
        self.last = Some(at);
    }

    /// Returns the number of jobs of a queue that may run on workers with stale records, in the reading of `at`. A worker that drains is not counted.
    ///
    /// No more are counted than messages are leased beside those of present workers. Where the storage does not count leases, these are the messages
    /// that are not known to be visible, and the jobs of a worker are counted until their leases have ended.
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

    /// Returns for how much of the last `age` seconds the records could not be read, and as far as is known not be written either.
    fn unread_seconds(&self, at: Instant, age: f64) -> f64 {
        let Some((from, to)) = self.outage else { return 0.0 };
        let ago = |moment: Instant| at.saturating_duration_since(moment).as_secs_f64();
        (ago(from).min(age) - ago(to)).max(0.0)
    }
}
