//! The rules by which a worker is alive and ready.

use std::time::Duration;

use jobqueue::worker::{HealthReport, WorkerPhase};

/// A worker whose requests for jobs have failed for this long is not ready.
const MAX_FAILING: Duration = Duration::from_secs(30);
/// A worker whose lease renewals are behind by more than this is not alive.
const MAX_RENEWALS_BEHIND: Duration = Duration::from_secs(60);
/// A worker is not ready for this long after it has lost a lease.
const LOST_LEASE_PERIOD: Duration = Duration::from_secs(60);

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Check {
    /// The reasons why the check fails; empty if it succeeds.
    pub reasons: Vec<String>,
}

impl Check {
    /// Checks that the worker is alive: it has not ended, and its lease renewals are at most a minute behind.
    /// They fall further behind if the thread that renews leases is stuck. A worker that starts, drains, or
    /// cannot reach its storage is alive.
    pub fn live(report: &HealthReport) -> Self {
        let mut check = Self::default();
        check.fail_if(report.phase == WorkerPhase::Ended, || "the worker has ended".to_owned());
        let behind = report.renewals_behind;
        check.fail_if(behind > MAX_RENEWALS_BEHIND, || {
            format!("no lease was renewed for {} s: the thread that renews them is stuck", behind.as_secs())
        });
        check
    }

    /// Checks that the worker is ready: it is alive and runs, its requests for jobs have not failed for 30
    /// seconds, none of its circuits is open, and it has lost no lease within the last minute. Each failed
    /// condition adds a reason, with the name of the queue. The reasons leave out the error itself, because
    /// the path of a check is often public: the error is in the worker's log and in the
    /// [report](jobqueue::worker::QueueHealth::error).
    pub fn ready(report: &HealthReport) -> Self {
        let mut check = Self::live(report);
        check.fail_if(report.phase == WorkerPhase::Starting, || "the worker starts".to_owned());
        check.fail_if(report.phase == WorkerPhase::Draining, || "the worker is draining".to_owned());
        for queue in &report.queues {
            let name = &queue.queue;
            if let Some(time) = queue.failing_for.filter(|time| *time >= MAX_FAILING) {
                let seconds = time.as_secs();
                check.reasons.push(format!("the queue `{name}` has been unreachable for {seconds} s"));
            }
            check.fail_if(queue.circuit_open, || format!("the circuit of the queue `{name}` is open"));
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

    fn fail_if(&mut self, fails: bool, reason: impl FnOnce() -> String) {
        if fails {
            self.reasons.push(reason());
        }
    }
}
