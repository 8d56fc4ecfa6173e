//! The rules by which a worker is alive and ready.

use std::time::Duration;

use jobqueue::worker::{HealthReport, WorkerPhase};

/// The time for which requests for jobs may fail before a worker is not ready.
const MAX_FAILING: Duration = Duration::from_secs(30);
/// The time by which renewals may be behind before a worker is not alive.
const MAX_RENEWALS_BEHIND: Duration = Duration::from_secs(60);
/// The time for which a worker is not ready after a lease ended before it was renewed.
const LOST_LEASE_PERIOD: Duration = Duration::from_secs(60);

/// The answer to a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Check {
    /// The reasons why the check fails; empty if it does not.
    pub reasons: Vec<String>,
}

impl Check {
    /// Returns whether the worker is alive: it has not ended, and its leases are less than a minute behind their renewal, which they are not
    /// if the thread that renews them is stuck. A worker that starts, drains, or cannot reach its storage is alive.
    pub fn live(report: &HealthReport) -> Self {
        let mut check = Self::default();
        check.fails_if(report.phase == WorkerPhase::Ended, || "the worker has ended".to_owned());
        let behind = report.renewals_behind;
        check.fails_if(behind > MAX_RENEWALS_BEHIND, || {
            format!("no lease was renewed for {} s: the thread that renews them is stuck", behind.as_secs())
        });
        check
    }

    /// Returns whether the worker is ready: it is alive and runs, its requests for jobs have not failed for 30 seconds, it has no open circuit,
    /// and has lost no lease within a minute. The check has one reason for each that fails, with the name of the queue. The error is in the
    /// worker's log and in the [report](jobqueue::worker::QueueHealth::error): the path of a check is often public.
    pub fn ready(report: &HealthReport) -> Self {
        let mut check = Self::live(report);
        check.fails_if(report.phase == WorkerPhase::Starting, || "the worker starts".to_owned());
        check.fails_if(report.phase == WorkerPhase::Draining, || "the worker is draining".to_owned());
        for queue in &report.queues {
            let name = &queue.queue;
            if let Some(time) = queue.failing_for.filter(|time| *time >= MAX_FAILING) {
                let seconds = time.as_secs();
                check.reasons.push(format!("the queue `{name}` has been unreachable for {seconds} s"));
            }
            check.fails_if(queue.circuit_open, || format!("the circuit of the queue `{name}` is open"));
        }
        if let Some(time) = report.since_lease_expired.filter(|time| *time < LOST_LEASE_PERIOD) {
            check.reasons.push(format!("a lease ended before it was renewed, {} s ago", time.as_secs()));
        }
        check
    }

    /// Returns whether the check succeeds.
    pub fn is_ok(&self) -> bool {
        self.reasons.is_empty()
    }

    fn fails_if(&mut self, fails: bool, reason: impl FnOnce() -> String) {
        if fails {
            self.reasons.push(reason());
        }
    }
}
