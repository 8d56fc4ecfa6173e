//! The circuit breaker: stops fetching from a queue while every job on it fails.
//!
//! It knows how and when attempts ended. It knows nothing of messages, so that any queue can have one.

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
/// When a service that all handlers need is down, every message would use up its attempts within minutes and fill the
/// dead-letter queue. The circuit breaker prevents that. The circuit opens after `failures` failed attempts in a row,
/// of at least `jobs` different jobs. The worker then fetches nothing for the pause. After the pause it tries one
/// message. If that fails too, the pause doubles; after the first success the worker fetches as before. While it neither fails nor
/// succeeds, because it runs for long, the number of jobs under test doubles after each pause, of at least 30 seconds.
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
    first: Duration,
    longest: Duration,
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self { failures: 20, jobs: 5, first: Duration::from_secs(5), longest: Duration::from_secs(300) }
    }
}

impl CircuitBreaker {
    /// Returns the default rules: 20 failures of at least 5 jobs; pauses of 5 seconds, doubling to 5 minutes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many attempts in a row must fail; at least 1.
    #[must_use]
    pub fn failures(mut self, attempts: u32) -> Self {
        self.failures = attempts.max(1);
        self
    }

    /// Sets how many different jobs the failures must belong to, so that one bad job alone does not stop a queue.
    /// Values above the number of failures have no further effect.
    #[must_use]
    pub fn jobs(mut self, jobs: u32) -> Self {
        self.jobs = jobs.max(1);
        self
    }

    /// Returns the rules for handlers of up to `chunk` jobs a call, which fail together: the circuit opens only after several calls have failed.
    pub(in crate::worker) fn beyond_chunks_of(self, chunk: usize) -> Self {
        let least = if chunk > 1 { u32::try_from(chunk).unwrap_or(u32::MAX).saturating_add(1) } else { 1 };
        Self { failures: self.failures.max(least), jobs: self.jobs.max(least), ..self }
    }

    /// Sets the first pause, and the maximum to which it doubles.
    #[must_use]
    pub fn pause(mut self, first: Duration, longest: Duration) -> Self {
        self.first = first.clamp(Duration::from_millis(1), WITHOUT_END);
        self.longest = longest.clamp(self.first, WITHOUT_END);
        self
    }
}

/// The shortest time after which more probes may follow one that has not ended: longer than most calls of a service that hangs.
const LONG_PROBE: Duration = Duration::from_secs(30);

/// The circuit's permission for a poller to fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::worker) enum Permit {
    /// Fetch for all free slots.
    Closed,
    /// Fetch one message, to test whether jobs succeed again.
    Probe,
    /// Fetch nothing before this instant.
    OpenUntil(Instant),
    /// Fetch nothing before a probe has ended, or this instant has come.
    Probing(Instant),
}

/// A change of the circuit that the worker reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::worker) enum Change {
    Opened(Duration),
    Closed,
}

#[derive(Debug)]
pub(in crate::worker) struct Circuit {
    terms: Option<CircuitBreaker>,
    state: Mutex<CircuitState>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct CircuitState {
    /// The jobs of the latest failed attempts, the latest last; empty after a success.
    failed: VecDeque<Arc<str>>,
    /// The time at which the pause ends; `None` while closed.
    open_until: Option<Instant>,
    pause: Duration,
    /// The numbers of the probes that are under way.
    probing: HashSet<u64>,
    /// The start of the first of them.
    probing_since: Option<Instant>,
    probes: u64,
}

impl CircuitState {
    /// Returns when the next probe may start; `None` for now. The number of probes doubles with each period in which none has ended.
    fn next_probe(&self) -> Option<Instant> {
        let since = self.probing_since.filter(|_| !self.probing.is_empty())?;
        let period = self.pause.max(LONG_PROBE);
        let periods = (since.elapsed().as_nanos() / period.as_nanos()).min(16) as u32;
        (self.probing.len() >= 1 << periods).then(|| since + period * (periods + 1))
    }
}

/// A delivery that tests an open circuit. If it is dropped without an outcome, for instance with its task,
/// another probe may follow.
#[derive(Debug)]
pub(in crate::worker) struct Probe {
    circuit: Arc<Circuit>,
    number: u64,
}

impl Probe {
    /// Lets another probe follow: this delivery waits for something, and tests nothing before it runs.
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
    pub(super) fn new(terms: Option<CircuitBreaker>) -> Self {
        Self { terms, state: Mutex::default(), ended: Notify::new() }
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

    /// Records that a probe was fetched: for a while, no other follows until it has ended.
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
        // The end of a delivery that was fetched before the circuit opened does not permit a second probe.
        let is_probe = probe.is_some_and(|probe| state.probing.remove(&probe.number));
        match verdict(outcome) {
            None => None,
            Some(true) => {
                state.failed.clear();
                let was_open = state.open_until.take().is_some();
                was_open.then_some(Change::Closed)
            }
            Some(false) if state.open_until.is_some() => {
                // Deliveries that were running when the circuit opened are no new evidence.
                is_probe.then(|| {
                    state.probing.clear();
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
                let (failures, least) = (terms.failures as usize, terms.jobs.min(terms.failures) as usize);
                let open = state.failed.len() >= failures && jobs.len() >= least;
                open.then(|| {
                    state.pause = terms.first;
                    state.open_until = Some(Instant::now() + terms.first);
                    Change::Opened(terms.first)
                })
            }
        }
    }
}

/// Returns `true` if the outcome counts as a success, `false` if it counts as a failure, `None` if it counts as
/// neither.
fn verdict(outcome: &Outcome) -> Option<bool> {
    match outcome {
        Outcome::Completed | Outcome::CompletedUncertain => Some(true),
        Outcome::Retried(_) => Some(false),
        // The second has the cause of a failed attempt, and is the last one at once.
        Outcome::DeadLettered(reason) => {
            [Reason::ATTEMPTS_EXHAUSTED, Reason::INVALID_SEND].contains(reason).then_some(false)
        }
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
        assert!(is_probing(circuit));
        circuit.record(Some(&"a".into()), &Outcome::Retried(Duration::ZERO), Some(&probe))
    }

    fn is_probing(circuit: &Circuit) -> bool {
        matches!(circuit.permit(), Permit::Probing(_))
    }

    fn circuit() -> Arc<Circuit> {
        let terms = CircuitBreaker::new().failures(4).jobs(2);
        Arc::new(Circuit::new(Some(terms.pause(Duration::from_secs(1), Duration::from_secs(3)))))
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_that_fail_in_one_call_do_not_open_it() {
        let circuit = Circuit::new(Some(CircuitBreaker::new().beyond_chunks_of(50)));
        opens_with_the_51st(&circuit);
    }

    fn opens_with_the_51st(circuit: &Circuit) {
        for job in 0..50 {
            assert_eq!(fail(circuit, &format!("{job}")), None);
        }
        assert!(matches!(fail(circuit, "another"), Some(Change::Opened(_))));
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
        assert!(
            matches!(fail(&circuit, "b"), Some(Change::Opened(_))),
            "more jobs than failures are not asked for"
        );
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

    #[tokio::test(start_paused = true)]
    async fn the_end_of_another_delivery_does_not_end_the_probe() {
        let circuit = opened();
        tokio::time::advance(Duration::from_secs(3)).await;
        let probe = circuit.probe();
        for outcome in [Outcome::Retried(Duration::ZERO), Outcome::Released(Duration::ZERO)] {
            assert_eq!(circuit.record(Some(&"b".into()), &outcome, None), None);
            assert!(is_probing(&circuit));
        }
        drop(probe);
        assert_eq!(circuit.permit(), Permit::Probe, "a probe whose task is dropped makes room");
        let (late, next) = (circuit.probe(), circuit.probe());
        drop(late);
        assert!(is_probing(&circuit));
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

    #[tokio::test(start_paused = true)]
    async fn probes_that_last_long_let_more_of_them_in() {
        let circuit = opened();
        tokio::time::advance(Duration::from_secs(3)).await;
        let mut probes = Vec::new();
        for most in [1, 2, 4, 8] {
            while circuit.permit() == Permit::Probe {
                probes.push(circuit.probe());
            }
            assert_eq!(
                (probes.len(), circuit.permit()),
                (most, Permit::Probing(Instant::now() + LONG_PROBE))
            );
            tokio::time::advance(LONG_PROBE).await;
        }
        let failed = Outcome::Retried(Duration::ZERO);
        assert_eq!(
            circuit.record(None, &failed, probes.pop().as_ref()),
            Some(Change::Opened(Duration::from_secs(2)))
        );
        assert_eq!(
            circuit.record(None, &failed, probes.pop().as_ref()),
            None,
            "the others are no new evidence"
        );
        tokio::time::advance(Duration::from_secs(2)).await;
        let probe = circuit.probe();
        assert!(is_probing(&circuit), "one again");
        assert_eq!(circuit.record(None, &Outcome::Completed, Some(&probe)), Some(Change::Closed));
    }
}
