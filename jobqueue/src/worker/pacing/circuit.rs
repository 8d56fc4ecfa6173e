//! The circuit breaker: stops fetching from a queue while every job on it fails. If only jobs of few keys
//! have failed, holds these keys alone, because the others may be well.
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
/// If the failed jobs belong to fewer than `jobs` different keys, the circuit stays closed. The worker puts
/// back the jobs of these keys for the pause, and runs those of other keys.
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
        /// a queue; and how many different keys, so that one bad key alone does not. A job without a key
        /// counts as a key. Values above the number of failures have no further effect.
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
/// The minimum put-back of a message whose key is held.
const MIN_HOLD: Duration = Duration::from_secs(1);

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
    /// The circuit stays closed, and the failing keys are held for this time.
    KeysHeld(Duration),
    Closed,
}

/// A job whose attempt has ended.
#[derive(Debug, Clone)]
pub(in crate::worker) struct CircuitJob {
    id: Arc<str>,
    /// The key, or the id of a job without a key.
    key: Arc<str>,
}

impl CircuitJob {
    pub(in crate::worker) fn new(id: &Arc<str>, key: Option<&Arc<str>>) -> Self {
        Self { id: Arc::clone(id), key: Arc::clone(key.unwrap_or(id)) }
    }
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
    failed: VecDeque<CircuitJob>,
    /// The time at which the pause ends; `None` while the circuit is closed and holds no keys.
    open_until: Option<Instant>,
    /// The keys to which the pause applies; empty if it applies to the whole queue.
    held_keys: HashSet<Arc<str>>,
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
        if self.held_keys.is_empty() { CircuitChange::Opened(pause) } else { CircuitChange::KeysHeld(pause) }
    }

    /// Adds a failed attempt. Starts the first pause if enough attempts of enough jobs have failed.
    fn add_failure(&mut self, job: Option<&CircuitJob>, rules: CircuitBreaker) -> Option<CircuitChange> {
        let (failures, least) = (rules.failures as usize, rules.jobs.min(rules.failures) as usize);
        self.failed.extend(job.cloned());
        let excess = self.failed.len().saturating_sub(failures);
        self.failed.drain(..excess);
        let jobs: HashSet<&Arc<str>> = self.failed.iter().map(|job| &job.id).collect();
        if self.failed.len() < failures || jobs.len() < least {
            return None;
        }
        let keys: HashSet<Arc<str>> = self.failed.iter().map(|job| Arc::clone(&job.key)).collect();
        self.held_keys = if keys.len() < least { keys } else { HashSet::new() };
        Some(self.open(rules.first_pause))
    }

    /// Returns whether a pause applies to the job.
    fn is_stopped(&self, job: Option<&CircuitJob>) -> bool {
        let is_held = |job: &CircuitJob| self.held_keys.contains(&job.key);
        self.open_until.is_some() && (self.held_keys.is_empty() || job.is_none_or(is_held))
    }

    /// Returns the permission for the whole queue, or for the held keys.
    fn permit(&self) -> Permit {
        match self.open_until {
            None => Permit::Closed,
            Some(until) if Instant::now() < until => Permit::OpenUntil(until),
            Some(_) => self.next_probe().map_or(Permit::Probe, Permit::Probing),
        }
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
        if state.held_keys.is_empty() { state.permit() } else { Permit::Closed }
    }

    /// Permits a job of `key` to begin, as a probe if its key is held, or else returns the time for which it
    /// is put back.
    pub(in crate::worker) fn admit(self: &Arc<Self>, key: Option<&str>) -> Result<Option<Probe>, Duration> {
        let mut state = self.state();
        if !key.is_some_and(|key| state.held_keys.contains(key)) {
            return Ok(None);
        }
        match state.permit() {
            Permit::Closed => Ok(None),
            Permit::Probe => Ok(Some(self.add_probe(&mut state))),
            Permit::OpenUntil(until) | Permit::Probing(until) => {
                Err(until.saturating_duration_since(Instant::now()).max(MIN_HOLD))
            }
        }
    }

    /// Records that a probe was fetched. Until it ends, or for a period, no other probe follows.
    pub(in crate::worker) fn probe(self: &Arc<Self>) -> Probe {
        self.add_probe(&mut self.state())
    }

    fn add_probe(self: &Arc<Self>, state: &mut CircuitState) -> Probe {
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
        job: Option<&CircuitJob>,
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
                let was_open = state.open_until.take().is_some();
                let held_keys = std::mem::take(&mut state.held_keys);
                (was_open && held_keys.is_empty()).then_some(CircuitChange::Closed)
            }
            CircuitEffect::Failure if is_probe && state.open_until.is_some() => {
                state.probing.clear();
                let pause = (state.pause * 2).min(rules.max_pause);
                Some(state.open(pause))
            }
            // Failures of deliveries that were running when the circuit opened are no new evidence.
            CircuitEffect::Failure if state.is_stopped(job) => None,
            CircuitEffect::Failure => state.add_failure(job, rules),
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
