//! The rules by which a worker is alive and ready.

use std::time::Duration;

use jobqueue::worker::{HealthReport, WorkerPhase};

/// The time for which a worker is not ready after a lease ended before it was renewed.
const AFTER_LOST_LEASE: Duration = Duration::from_secs(60);

/// The answer to a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Check {
    /// The reasons why the check fails; empty if it does not.
    pub reasons: Vec<String>,
}

impl Check {
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

/// The trouble that a check puts up with.
///
/// ```
/// use jobqueue_dashboard::health::Tolerance;
/// use std::time::Duration;
///
/// // An orchestrator that stops routing to a worker without its storage after 2 minutes, and restarts a stuck one after 5.
/// let tolerance = Tolerance::new().outage(Duration::from_secs(120)).renewals_behind(Duration::from_secs(300));
/// assert_ne!(tolerance, Tolerance::new());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tolerance {
    outage: Duration,
    renewals_behind: Duration,
}

impl Default for Tolerance {
    fn default() -> Self {
        Self { outage: Duration::from_secs(30), renewals_behind: Duration::from_secs(60) }
    }
}

impl Tolerance {
    /// Returns the default: a worker is not ready after 30 seconds without an answer from its storage, and for a minute after a lease ended
    /// before it was renewed. It is not alive if renewals are stuck for a minute.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time for which requests for jobs may fail before the worker is not ready. The default is 30 seconds. A
    /// failed request is sent again after half a second, then after pauses that double up to a minute.
    #[must_use]
    pub fn outage(mut self, time: Duration) -> Self {
        self.outage = time;
        self
    }

    /// Sets the time by which renewals may be behind before the worker is not alive. The default is 60 seconds. Renewals are behind
    /// when the thread that renews leases does not run: a restart is the remedy, and the leases end by themselves.
    #[must_use]
    pub fn renewals_behind(mut self, time: Duration) -> Self {
        self.renewals_behind = time;
        self
    }

    /// Returns whether the worker is alive: it has not ended, and its leases are renewed in time. A worker that starts, drains, or
    /// cannot reach its storage is alive.
    pub fn live(&self, report: &HealthReport) -> Check {
        let mut check = Check::default();
        check.fails_if(report.phase == WorkerPhase::Ended, || "the worker has ended".to_owned());
        let behind = report.renewals_behind;
        check.fails_if(behind > self.renewals_behind, || {
            format!("no lease was renewed for {} s: the thread that renews them is stuck", behind.as_secs())
        });
        check
    }

    /// Returns whether the worker is ready: it is alive and runs, reaches all its queues, has no open circuit, and has lost no lease
    /// within the last minute. The check has one reason for each that fails, with the name of the queue and the error.
    pub fn ready(&self, report: &HealthReport) -> Check {
        let mut check = self.live(report);
        check.fails_if(report.phase == WorkerPhase::Starting, || "the worker starts".to_owned());
        check.fails_if(report.phase == WorkerPhase::Draining, || "the worker is draining".to_owned());
        for queue in &report.queues {
            let name = &queue.queue;
            if let Some(time) = queue.failing_for.filter(|time| *time >= self.outage) {
                let error = queue.error.as_deref().unwrap_or("unknown error");
                let seconds = time.as_secs();
                check
                    .reasons
                    .push(format!("the queue `{name}` has been unreachable for {seconds} s: {error}"));
            }
            check.fails_if(queue.circuit_open, || format!("the circuit of the queue `{name}` is open"));
        }
        if let Some(time) = report.since_lease_expired.filter(|time| *time < AFTER_LOST_LEASE) {
            check.reasons.push(format!("a lease ended before it was renewed, {} s ago", time.as_secs()));
        }
        check
    }
}
