//! The circuit breaker: leaves a queue alone while everything on it fails.
//!
//! Knows how attempts ended and when; knows nothing of messages, so that any queue can have one.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock::WITHOUT_END;
use crate::job::outcome::{Outcome, Reason};
use crate::sync::lock;

/// The time at which a worker stops fetching from a queue on which everything fails, and for how long.
///
/// An outage of something all handlers need would otherwise burn every message's attempts within minutes and fill the
/// dead-letter queue. After `failures` failed attempts without a success in between, of at least `jobs` different jobs, the
/// circuit opens: nothing is fetched for the pause. Then one message is tried; if it fails too, the pause doubles, and
/// with the first success everything goes on.
///
/// ```
/// use jobqueue::CircuitBreaker;
/// use std::time::Duration;
///
/// let patient = CircuitBreaker::new().failures(50).pause(Duration::from_secs(30), Duration::from_secs(600));
/// # let _ = patient;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitBreaker {
    failures: u32,
    jobs: u32,
    first: Duration,
    longest: Duration,
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self { failures: 20, jobs: 5, first: Duration::from_secs(5), longest: Duration::from_secs(300) }
    }
}

impl CircuitBreaker {
    /// 20 failures of at least 5 jobs; pauses from 5 seconds, doubling to 5 minutes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many attempts must have failed one after the other; at least 1.
    #[must_use]
    pub fn failures(mut self, attempts: u32) -> Self {
        self.failures = attempts.max(1);
        self.jobs = self.jobs.min(self.failures);
        self
    }

    /// Of how many different jobs they must be, so that one bad job alone does not stop a queue; at most the failures.
    #[must_use]
    pub fn jobs(mut self, jobs: u32) -> Self {
        self.jobs = jobs.clamp(1, self.failures);
        self
    }

    /// Sets how long the first pause is, and up to what it doubles.
    #[must_use]
    pub fn pause(mut self, first: Duration, longest: Duration) -> Self {
        self.first = first.clamp(Duration::from_millis(1), WITHOUT_END);
        self.longest = longest.clamp(self.first, WITHOUT_END);
        self
    }
}

/// True if a poller may fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Permit {
    /// As much as there is room for.
    Closed,
    /// One message, to see whether things are mended.
    Probe,
    /// Nothing before this instant.
    OpenUntil(Instant),
    /// Nothing before the probe has ended.
    Probing,
}

/// A change of the circuit that is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Opened(Duration),
    Closed,
}

/// The circuit of one queue.
#[derive(Debug)]
pub(super) struct Circuit {
    terms: Option<CircuitBreaker>,
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The jobs of the latest failed attempts, newest last; empty after a success.
    failed: VecDeque<Arc<str>>,
    /// The time at which the pause ends; `None` while closed.
    open_until: Option<Instant>,
    pause: Duration,
    /// The number of the probe that is under way.
    probing: Option<u64>,
    probes: u64,
}

/// The one delivery that tries an open circuit. Dropped without an outcome, as when its task is dropped, it makes room for the
/// next.
#[derive(Debug)]
pub(super) struct Probe {
    circuit: Arc<Circuit>,
    number: u64,
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.circuit.state().probing.take_if(|number| *number == self.number);
        self.circuit.ended.notify_one();
    }
}

impl Circuit {
    pub(super) fn new(terms: Option<CircuitBreaker>) -> Self {
        Self { terms, state: Mutex::default(), ended: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn permit(&self) -> Permit {
        let state = self.state();
        match state.open_until {
            None => Permit::Closed,
            Some(_) if state.probing.is_some() => Permit::Probing,
            Some(until) if Instant::now() < until => Permit::OpenUntil(until),
            Some(_) => Permit::Probe,
        }
    }

    /// Notes that a probe was fetched: no other until it has ended.
    pub(super) fn probe(self: &Arc<Self>) -> Probe {
        let mut state = self.state();
        state.probes += 1;
        let number = state.probes;
        state.probing = Some(number);
        Probe { circuit: Arc::clone(self), number }
    }

    /// Resolves when a delivery has ended since the last call.
    pub(super) async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Takes note of how a delivery ended, and whether it was the probe.
    pub(super) fn record(
        &self,
        job: Option<&Arc<str>>,
        outcome: &Outcome,
        probe: Option<&Probe>,
    ) -> Option<Change> {
        let terms = self.terms?;
        let change = self.apply(terms, job, outcome, probe);
        self.ended.notify_one();
        change
    }

    fn apply(
        &self,
        terms: CircuitBreaker,
        job: Option<&Arc<str>>,
        outcome: &Outcome,
        probe: Option<&Probe>,
    ) -> Option<Change> {
        let mut state = self.state();
        // The end of another delivery, fetched before the circuit opened, does not make room for a second probe.
        let is_probe = probe.is_some_and(|probe| state.probing == Some(probe.number));
        if is_probe {
            state.probing = None;
        }
        match verdict(outcome) {
            None => None,
            Some(true) => {
                state.failed.clear();
                let was_open = state.open_until.take().is_some();
                was_open.then_some(Change::Closed)
            }
            Some(false) if state.open_until.is_some() => {
                // What was running when the circuit opened says nothing new.
                is_probe.then(|| {
                    state.pause = (state.pause * 2).min(terms.longest);
                    state.open_until = Some(Instant::now() + state.pause);
                    Change::Opened(state.pause)
                })
            }
            Some(false) => {
                state.failed.extend(job.cloned());
                let excess = state.failed.len().saturating_sub(terms.failures as usize);
                state.failed.drain(..excess);
                let jobs: HashSet<&Arc<str>> = state.failed.iter().collect();
                let open = state.failed.len() >= terms.failures as usize && jobs.len() >= terms.jobs as usize;
                open.then(|| {
                    state.pause = terms.first;
                    state.open_until = Some(Instant::now() + terms.first);
                    Change::Opened(terms.first)
                })
            }
        }
    }
}

/// Returns whether the outcome speaks for the queue's work (`true`), against it, or says nothing about it.
fn verdict(outcome: &Outcome) -> Option<bool> {
    match outcome {
        Outcome::Completed | Outcome::CompletedUncertain => Some(true),
        Outcome::Retried(_) => Some(false),
        Outcome::DeadLettered(reason) => (*reason == Reason::ATTEMPTS_EXHAUSTED).then_some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(circuit: &Circuit, job: &str) -> Option<Change> {
        circuit.record(Some(&job.into()), &Outcome::Retried(Duration::ZERO), None)
    }

    fn probe_fails(circuit: &Arc<Circuit>) -> Option<Change> {
        let probe = circuit.probe();
        assert_eq!(circuit.permit(), Permit::Probing);
        circuit.record(Some(&"a".into()), &Outcome::Retried(Duration::ZERO), Some(&probe))
    }

    fn circuit() -> Arc<Circuit> {
        let terms = CircuitBreaker::new().failures(4).jobs(2);
        Arc::new(Circuit::new(Some(terms.pause(Duration::from_secs(1), Duration::from_secs(3)))))
    }

    fn opened() -> Arc<Circuit> {
        let circuit = circuit();
        for job in ["a", "b", "c", "a"] {
            let _ = fail(&circuit, job);
        }
        circuit
    }

    #[tokio::test(start_paused = true)]
    async fn opens_when_everything_fails_and_probes_with_one() {
        let circuit = circuit();
        for job in ["a", "b", "c"] {
            assert_eq!(fail(&circuit, job), None);
        }
        assert_eq!(circuit.permit(), Permit::Closed);
        assert_eq!(fail(&circuit, "a"), Some(Change::Opened(Duration::from_secs(1))));
        assert!(matches!(circuit.permit(), Permit::OpenUntil(_)));
        assert_eq!(fail(&circuit, "b"), None, "a straggler does not make the pause longer");
        for pause in [2, 3, 3] {
            tokio::time::advance(Duration::from_secs(3)).await;
            assert_eq!(circuit.permit(), Permit::Probe);
            assert_eq!(probe_fails(&circuit), Some(Change::Opened(Duration::from_secs(pause))));
        }
        tokio::time::advance(Duration::from_secs(3)).await;
        let probe = circuit.probe();
        assert_eq!(circuit.record(None, &Outcome::Released(Duration::ZERO), Some(&probe)), None);
        assert_eq!(circuit.permit(), Permit::Probe, "a snooze says nothing; the next one is tried");
        assert_eq!(circuit.record(None, &Outcome::Completed, None), Some(Change::Closed));
        assert_eq!(circuit.permit(), Permit::Closed);
    }

    // D8
    #[tokio::test(start_paused = true)]
    async fn the_end_of_another_delivery_does_not_end_the_probe() {
        let circuit = opened();
        tokio::time::advance(Duration::from_secs(3)).await;
        let probe = circuit.probe();
        for outcome in [Outcome::Retried(Duration::ZERO), Outcome::Released(Duration::ZERO)] {
            assert_eq!(circuit.record(Some(&"b".into()), &outcome, None), None);
            assert_eq!(circuit.permit(), Permit::Probing);
        }
        drop(probe);
        assert_eq!(circuit.permit(), Permit::Probe, "a probe whose task is dropped makes room");
        let (late, next) = (circuit.probe(), circuit.probe());
        drop(late);
        assert_eq!(circuit.permit(), Permit::Probing);
        drop(next);
    }

    #[tokio::test(start_paused = true)]
    async fn one_bad_job_or_a_success_between_keeps_it_closed() {
        let circuit = circuit();
        for _ in 0..20 {
            assert_eq!(fail(&circuit, "bad"), None);
        }
        for job in ["a", "b", "c"] {
            let _ = circuit.record(None, &Outcome::Completed, None);
            assert_eq!(fail(&circuit, job), None);
        }
    }
}
