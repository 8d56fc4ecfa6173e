//! The jobs of a queue that wait, that run, and that do neither.

use crate::{QueueOverview, WorkerOverview};

/// The jobs of a queue as the command line counts them. Pages, metrics and autoscalers differ where a worker
/// has stopped writing its record: its jobs may still run. A number is `None` if it is
/// unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobCounts {
    /// The jobs that another worker could start now. Unless the storage counts them or a peek has shown all
    /// of them, this is the length less the running jobs, which includes messages whose delay is not over.
    pub waiting: Option<u64>,
    /// The running jobs: by their leases if the storage counts these, and otherwise by the records of
    /// workers.
    pub running: Option<u64>,
    /// The remaining jobs: delayed, backing off, just fetched, or fetched by a worker without a record. They
    /// are unknown if [`waiting`](Self::waiting) includes them.
    pub hidden: Option<u64>,
}

impl QueueOverview {
    /// Counts the jobs of the queue; `workers` is `None` if their records cannot be read.
    pub fn job_counts(&self, workers: Option<&[WorkerOverview]>) -> JobCounts {
        let recorded = |workers: &[WorkerOverview]| -> u64 {
            let present =
                workers.iter().filter(|worker| !worker.stale && worker.record.listens_to(&self.name));
            present.map(|worker| worker.record.running_of(&self.name)).sum()
        };
        let running = self.states.map(|states| states.running).or_else(|| workers.map(recorded));
        let rest = self.length.zip(running).map(|(length, running)| length.saturating_sub(running));
        let waiting = match self.states {
            Some(states) => Some(states.waiting),
            None if self.visible_is_exact => self.visible,
            None => rest.map(|rest| rest.max(self.visible.unwrap_or_default())),
        };
        let told_apart = waiting.filter(|_| self.oldest_is_exact());
        let hidden = rest.zip(told_apart).map(|(rest, waiting)| rest.saturating_sub(waiting));
        JobCounts { waiting, running, hidden }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_that_is_not_known_is_not_zero() {
        let unread = QueueOverview::default();
        let unknown = JobCounts { waiting: None, running: None, hidden: None };
        assert_eq!(unread.job_counts(None), unknown);
        let all_seen = QueueOverview { length: Some(5), visible: Some(2), visible_is_exact: true, ..unread };
        let counts = all_seen.job_counts(None);
        assert_eq!(counts, JobCounts { waiting: Some(2), running: None, hidden: None });
        let counts = all_seen.job_counts(Some(&[]));
        assert_eq!(counts, JobCounts { waiting: Some(2), running: Some(0), hidden: Some(3) });
        let many = QueueOverview { length: Some(50), visible: Some(32), ..QueueOverview::default() };
        assert_eq!(many.job_counts(None), unknown);
        let counts = many.job_counts(Some(&[]));
        assert_eq!(counts, JobCounts { waiting: Some(50), running: Some(0), hidden: None });
    }
}
