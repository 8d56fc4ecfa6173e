//! The circuit breaker: stops fetching from a queue while every job on it fails.
//!
//! This module knows how and when attempts ended. It knows nothing of messages.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock::WITHOUT_END;
use crate::job::outcome::{Outcome, Reason};
use crate::sync::lock;

/// The rules by which a worker stops fetching from a queue on which every job fails.
///
/// When a service that all handlers need is down, every message would use up its attempts within minutes and
/// fill the dead-letter queue. The circuit breaker prevents that. The circuit opens after `failures` failed
/// attempts in a row, of at least `jobs` different jobs. The worker then fetches nothing for the pause. After
/// the pause it tries one message. If that fails too, the pause doubles; after the first success the worker
/// fetches as before. While the tried message runs for long, neither failing nor succeeding, the number of
/// messages under test doubles after each pause, or after 30 seconds if the pause is shorter.
///
/// ```
/// use jobqueue::worker::CircuitBreaker;
/// use std::time::Duration;
///
/// let patient = CircuitBreaker::new().failures(50).pause(Duration::from_secs(30), Duration::from_secs(600));
/// # let _ = patient;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitBreaker {
    failures: u32,
    jobs: u32,
    first_pause: Duration,
    max_pause: Duration,
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        let (first_pause, max_pause) = (Duration::from_secs(5), Duration::from_secs(300));
        Self { failures: 20, jobs: 5, first_pause, max_pause }
    }
}

impl CircuitBreaker {
    /// Returns the default rules: 20 failures of at least 5 jobs; pauses of 5 seconds, doubling to 5 minutes.
    pub fn new() -> Self {
        Self::default()
    }

    jobqueue_storage::setters! {
        /// Sets how many attempts in a row must fail; at least 1.
        failures(attempts: u32) => failures = attempts.max(1);

        /// Sets how many different jobs the failures must belong to, so that one bad job alone does not stop
        /// a queue. Values above the number of failures have no further effect.
        jobs(jobs: u32) = jobs.max(1);
    }

    /// Returns the rules for handlers of up to `chunk` jobs per call. The jobs of a call fail together, so
    /// the circuit opens only after several calls have failed.
    pub(in crate::worker) fn beyond_chunks_of(self, chunk: usize) -> Self {
        let least = if chunk > 1 { u32::try_from(chunk).unwrap_or(u32::MAX).saturating_add(1) } else { 1 };
        Self { failures: self.failures.max(least), jobs: self.jobs.max(least), ..self }
    }

    /// Sets the first pause, and the maximum to which it doubles.
    #[must_use]
    pub fn pause(mut self, first: Duration, longest: Duration) -> Self {
        self.first_pause = first.clamp(Duration::from_millis(1), WITHOUT_END);
        self.max_pause = longest.clamp(self.first_pause, WITHOUT_END);
        self
    }
}

/// The minimum period of pending probes, after each of which their number may double: longer than most calls
/// of a service that hangs.
const MIN_PROBE_PERIOD: Duration = Duration::from_secs(30);

/// A circuit's permission for a poller to fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::worker) enum Permit {
    /// Fetch messages for all free slots.
    Closed,
    /// Fetch one message, to test whether jobs succeed again.
    Probe,
    /// Fetch nothing before this instant.
    OpenUntil(Instant),
    /// Fetch nothing before a probe has ended or this instant has come.
    Probing(Instant),
}

/// A change of the circuit that the worker reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::worker) enum CircuitChange {
    Opened(Duration),
    Closed,
}

#[derive(Debug)]
pub(in crate::worker) struct Circuit {
    rules: Option<CircuitBreaker>,
    state: Mutex<CircuitState>,
    /// Wakes the poller when a delivery or a probe has ended.
    ended: Notify,
}

#[derive(Debug, Default)]
struct CircuitState {
    /// The jobs of the latest failed attempts, newest last; empty after a success.
    failed: VecDeque<Arc<str>>,
    /// The time at which the pause ends; `None` while the circuit is closed.
    open_until: Option<Instant>,
    pause: Duration,
    /// The numbers of the pending probes.
    probing: HashSet<u64>,
    /// The start of the first pending probe.
    probing_since: Option<Instant>,
    probes: u64,
}

impl CircuitState {
    fn open(&mut self, pause: Duration) -> CircuitChange {
        self.pause = pause;
        self.open_until = Some(Instant::now() + pause);
        CircuitChange::Opened(pause)
    }

    /// Returns when the next probe may start; `None` for now. The number of probes doubles after each period
    /// in which no probe has ended.
    fn next_probe(&self) -> Option<Instant> {
        let since = self.probing_since.filter(|_| !self.probing.is_empty())?;
        let period = self.pause.max(MIN_PROBE_PERIOD);
        let periods = (since.elapsed().as_nanos() / period.as_nanos()).min(16) as u32;
        (self.probing.len() >= 1 << periods).then(|| since + period * (periods + 1))
    }
}

/// A delivery that tests an open circuit. If it is dropped without an outcome, for example with its task,
/// another probe may follow.
#[derive(Debug)]
pub(in crate::worker) struct Probe {
    circuit: Arc<Circuit>,
    number: u64,
}

impl Probe {
    /// Lets another probe follow, because this delivery waits and tests nothing before it runs.
    pub(in crate::worker) fn give_back(&self) {
        self.circuit.state().probing.remove(&self.number);
        self.circuit.ended.notify_one();
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Circuit {
    pub(super) fn new(rules: Option<CircuitBreaker>) -> Self {
        Self { rules, state: Mutex::default(), ended: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, CircuitState> {
        lock(&self.state)
    }

    pub(in crate::worker) fn permit(&self) -> Permit {
        let state = self.state();
        match state.open_until {
            None => Permit::Closed,
            Some(until) if Instant::now() < until => Permit::OpenUntil(until),
            Some(_) => state.next_probe().map_or(Permit::Probe, Permit::Probing),
        }
    }

    /// Records that a probe was fetched. Until it ends, or for a period, no other probe follows.
    pub(in crate::worker) fn probe(self: &Arc<Self>) -> Probe {
        let mut state = self.state();
        state.probes += 1;
        let number = state.probes;
        if state.probing.is_empty() {
            state.probing_since = Some(Instant::now());
        }
        state.probing.insert(number);
        Probe { circuit: Arc::clone(self), number }
    }

    /// Resolves when a delivery has ended since the last call.
    pub(in crate::worker) async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Records how a delivery ended, and whether it was the probe.
    pub(in crate::worker) fn record(
        &self,
        job: Option<&Arc<str>>,
        outcome: &Outcome,
        probe: Option<&Probe>,
    ) -> Option<CircuitChange> {
        let rules = self.rules?;
        let change = self.apply(rules, job, outcome, probe);
        self.ended.notify_one();
        change
    }

    fn apply(
        &self,
        rules: CircuitBreaker,
        job: Option<&Arc<str>>,
        outcome: &Outcome,
        probe: Option<&Probe>,
    ) -> Option<CircuitChange> {
        let mut state = self.state();
        // A delivery that was fetched before the circuit opened is no probe: its end does not permit another
        // probe.
        let is_probe = probe.is_some_and(|probe| state.probing.remove(&probe.number));
        match CircuitEffect::of(outcome) {
            CircuitEffect::None => None,
            CircuitEffect::Success => {
                state.failed.clear();
                let was_open = state.open_until.take().is_some();
                was_open.then_some(CircuitChange::Closed)
            }
            CircuitEffect::Failure if state.open_until.is_some() => {
                // Failures of deliveries that were running when the circuit opened are no new evidence.
                is_probe.then(|| {
                    state.probing.clear();
                    let pause = (state.pause * 2).min(rules.max_pause);
                    state.open(pause)
                })
            }
            CircuitEffect::Failure => {
                state.failed.extend(job.cloned());
                let excess = state.failed.len().saturating_sub(rules.failures as usize);
                state.failed.drain(..excess);
                let jobs: HashSet<&Arc<str>> = state.failed.iter().collect();
                let (failures, least) = (rules.failures as usize, rules.jobs.min(rules.failures) as usize);
                let opens = state.failed.len() >= failures && jobs.len() >= least;
                opens.then(|| state.open(rules.first_pause))
            }
        }
    }
}

/// The effect of an outcome on the circuit.
enum CircuitEffect {
    Success,
    Failure,
    None,
}

impl CircuitEffect {
    fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Completed | Outcome::CompletedUncertain => Self::Success,
            Outcome::Retried(_) => Self::Failure,
            // An invalid send is a failed attempt that is not repeated.
            Outcome::DeadLettered(reason)
                if [Reason::ATTEMPTS_EXHAUSTED, Reason::INVALID_SEND].contains(reason) =>
            {
                Self::Failure
            }
            _ => Self::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(circuit: &Circuit, job: &str) -> Option<CircuitChange> {
        circuit.record(Some(&job.into()), &Outcome::Retried(Duration::ZERO), None)
    }

    fn probe_fails(circuit: &Arc<Circuit>) -> Option<CircuitChange> {
        let probe = circuit.probe();
        assert!(is_probing(circuit));
        circuit.record(Some(&"a".into()), &Outcome::Retried(Duration::ZERO), Some(&probe))
    }

    fn is_probing(circuit: &Circuit) -> bool {
        matches!(circuit.permit(), Permit::Probing(_))
    }

    fn circuit() -> Arc<Circuit> {
        let rules = CircuitBreaker::new().failures(4).jobs(2);
        Arc::new(Circuit::new(Some(rules.pause(Duration::from_secs(1), Duration::from_secs(3)))))
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_that_fail_in_one_call_do_not_open_the_circuit() {
        let circuit = Circuit::new(Some(CircuitBreaker::new().beyond_chunks_of(50)));
        opens_with_the_51st(&circuit);
    }

    fn opens_with_the_51st(circuit: &Circuit) {
        for job in 0..50 {
            assert_eq!(fail(circuit, &format!("{job}")), None);
        }
        assert!(matches!(fail(circuit, "another"), Some(CircuitChange::Opened(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn numbers_of_jobs_and_failures_are_set_in_any_order() {
        opens_with_the_51st(&Circuit::new(Some(CircuitBreaker::new().jobs(51).failures(51))));
        let circuit = Circuit::new(Some(CircuitBreaker::new().jobs(51).failures(51)));
        for failure in 0..60 {
            assert_eq!(fail(&circuit, &(failure % 10).to_string()), None, "ten jobs are too few");
        }
        let circuit = Circuit::new(Some(CircuitBreaker::new().jobs(5).failures(2)));
        assert_eq!(fail(&circuit, "a"), None);
        let opened = fail(&circuit, "b");
        assert!(matches!(opened, Some(CircuitChange::Opened(_))), "more jobs than failures are not required");
    }

    fn opened() -> Arc<Circuit> {
        let circuit = circuit();
        for job in ["a", "b", "c", "a"] {
            let _ = fail(&circuit, job);
        }
        circuit
    }

    #[tokio::test(start_paused = true)]
    async fn circuit_opens_when_all_jobs_fail_and_tries_one_at_a_time() {
        let circuit = circuit();
        for job in ["a", "b", "c"] {
            assert_eq!(fail(&circuit, job), None);
        }
        assert_eq!(circuit.permit(), Permit::Closed);
        assert_eq!(fail(&circuit, "a"), Some(CircuitChange::Opened(Duration::from_secs(1))));
        assert!(matches!(circuit.permit(), Permit::OpenUntil(_)));
        assert_eq!(fail(&circuit, "b"), None, "a straggler does not make the pause longer");
        for pause in [2, 3, 3] {
            tokio::time::advance(Duration::from_secs(3)).await;
            assert_eq!(circuit.permit(), Permit::Probe);
            assert_eq!(probe_fails(&circuit), Some(CircuitChange::Opened(Duration::from_secs(pause))));
        }
        tokio::time::advance(Duration::from_secs(3)).await;
        let probe = circuit.probe();
        assert_eq!(circuit.record(None, &Outcome::Released(Duration::ZERO), Some(&probe)), None);
        assert_eq!(circuit.permit(), Permit::Probe, "a snooze proves nothing; another probe follows");
        assert_eq!(circuit.record(None, &Outcome::Completed, None), Some(CircuitChange::Closed));
        assert_eq!(circuit.permit(), Permit::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn end_of_another_delivery_does_not_end_the_probe() {
        let circuit = opened();
        tokio::time::advance(Duration::from_secs(3)).await;
        let probe = circuit.probe();
        for outcome in [Outcome::Retried(Duration::ZERO), Outcome::Released(Duration::ZERO)] {
            assert_eq!(circuit.record(Some(&"b".into()), &outcome, None), None);
            assert!(is_probing(&circuit));
        }
        drop(probe);
        assert_eq!(circuit.permit(), Permit::Probe, "a dropped probe makes room for another");
        let (late, next) = (circuit.probe(), circuit.probe());
        drop(late);
        assert!(is_probing(&circuit));
        drop(next);
    }

    #[tokio::test(start_paused = true)]
    async fn circuit_stays_closed_for_one_bad_job_and_after_a_success() {
        let circuit = circuit();
        for _ in 0..20 {
            assert_eq!(fail(&circuit, "bad"), None);
        }
        for job in ["a", "b", "c"] {
            let _ = circuit.record(None, &Outcome::Completed, None);
            assert_eq!(fail(&circuit, job), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn long_probes_permit_more_probes() {
        let circuit = opened();
        tokio::time::advance(Duration::from_secs(3)).await;
        let mut probes = Vec::new();
        for max in [1, 2, 4, 8] {
            while circuit.permit() == Permit::Probe {
                probes.push(circuit.probe());
            }
            assert_eq!(probes.len(), max);
            assert_eq!(circuit.permit(), Permit::Probing(Instant::now() + MIN_PROBE_PERIOD));
            tokio::time::advance(MIN_PROBE_PERIOD).await;
        }
        let failed = Outcome::Retried(Duration::ZERO);
        let mut fail_a_probe = || circuit.record(None, &failed, probes.pop().as_ref());
        assert_eq!(fail_a_probe(), Some(CircuitChange::Opened(Duration::from_secs(2))));
        assert_eq!(fail_a_probe(), None, "the other probes are no new evidence");
        tokio::time::advance(Duration::from_secs(2)).await;
        let probe = circuit.probe();
        assert!(is_probing(&circuit), "one probe again");
        assert_eq!(circuit.record(None, &Outcome::Completed, Some(&probe)), Some(CircuitChange::Closed));
    }
}
