//! The circuit breaker: stops fetching from a queue while every job on it fails.
//!
//! This module knows how and when attempts ended. It knows nothing of messages.

#[cfg(test)]
mod tests;

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
    pub(in crate::worker) fn new(rules: Option<CircuitBreaker>) -> Self {
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
        let mut state = self.state();
        // A delivery that was fetched before the circuit opened is no probe: its end does not permit another
        // probe.
        let is_probe = probe.is_some_and(|probe| state.probing.remove(&probe.number));
        let change = match CircuitEffect::of(outcome) {
            CircuitEffect::None => None,
            CircuitEffect::Success => {
                state.failed.clear();
                // Probes that still run test nothing of the next opening.
                state.probing.clear();
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
        };
        drop(state);
        self.ended.notify_one();
        change
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
