//! Tracks the state of a worker in memory: its running jobs, its counters, and the jobs to cancel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::record::{Counters, HISTOGRAM_BOUNDS, JobProgress, RunningJob};
use super::requests::{Answer, StoredRequest};
use crate::job::JobInfo;
use crate::job::outcome::{Outcome, printable};
use crate::sync::lock;

/// The most characters of a progress text, with one more for an ellipsis.
const MAX_TEXT: usize = 199;
/// The most running jobs in a record.
const MAX_RUNNING: usize = 1_000;
/// The most pairs of queue and kind that have counters. There is a limit because anybody may send messages of any kind.
const MAX_COUNTERS: usize = 1_000;

/// The state of a worker that its record shows.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    state: Mutex<State>,
    /// Wakes the writer when it should write the record or an answer before the interval is over.
    urgent: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    running: BTreeMap<u64, Arc<Run>>,
    counters: BTreeMap<(String, String), Counters>,
    open_circuits: BTreeSet<String>,
    draining: bool,
    /// By queue and id.
    requests: BTreeMap<(String, String), StoredRequest>,
    answers: Vec<(StoredRequest, Answer)>,
}

/// One run of a handler.
#[derive(Debug)]
pub(crate) struct Run {
    number: u64,
    job: Arc<JobInfo>,
    since: SystemTime,
    started: Instant,
    progress: Mutex<Option<JobProgress>>,
    cancelled: CancellationToken,
}

impl Run {
    /// Notes the progress that the next record shows.
    pub(crate) fn progress(&self, done: u64, total: u64, text: &str) {
        let text = printable(text, MAX_TEXT);
        *lock(&self.progress) = Some(JobProgress { done, total, text });
    }

    /// Fires when an operator has cancelled the job.
    pub(crate) fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }

    fn shown(&self) -> RunningJob {
        let job = &self.job;
        RunningJob {
            queue: job.queue.to_string(),
            id: job.id.to_string(),
            source: job.source.to_string(),
            kind: job.kind.to_string(),
            key: job.key.as_deref().map(str::to_owned),
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            since: super::store::time(self.since),
            running_seconds: seconds(self.started.elapsed()),
            progress: lock(&self.progress).clone(),
            trace: Some(job.trace.traceparent()),
            cancelling: self.cancelled.is_cancelled(),
        }
    }
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e3).round() / 1e3
}

impl Tracker {
    /// Notes that a handler starts. Its token fires at once if an operator has already cancelled the job.
    pub(crate) fn begin(&self, job: &Arc<JobInfo>, now: SystemTime) -> Arc<Run> {
        let cancelled = CancellationToken::new();
        let mut state = lock(&self.state);
        if state.request(job).is_some() {
            cancelled.cancel();
        }
        state.next += 1;
        let run = Arc::new(Run {
            number: state.next,
            job: Arc::clone(job),
            since: now,
            started: Instant::now(),
            progress: Mutex::default(),
            cancelled,
        });
        state.running.insert(run.number, Arc::clone(&run));
        run
    }

    /// Notes that a handler has ended.
    pub(crate) fn end(&self, run: &Run) {
        lock(&self.state).running.remove(&run.number);
    }

    /// Counts a delivery that has ended, and answers the request to cancel its job if there is one.
    pub(crate) fn count(&self, queue: &str, job: Option<&JobInfo>, outcome: &Outcome, ran: Duration) {
        let mut state = lock(&self.state);
        state.count(queue, job.map_or("", |job| &job.kind), outcome, ran);
        let Some(job) = job.filter(|_| !state.requests.is_empty()) else { return };
        let Some(request) = state.request(job).cloned() else { return };
        let Some(answer) = Answer::of(outcome) else { return };
        state.requests.remove(&(request.request.queue.clone(), request.request.id.clone()));
        state.answers.push((request, answer));
        drop(state);
        self.urgent.notify_one();
    }

    pub(crate) fn circuit(&self, queue: &str, is_open: bool) {
        let mut state = lock(&self.state);
        match is_open {
            true => state.open_circuits.insert(queue.to_owned()),
            false => state.open_circuits.remove(queue),
        };
    }

    /// Notes that the worker was told to stop.
    pub(crate) fn drain(&self) {
        lock(&self.state).draining = true;
        self.urgent.notify_one();
    }

    /// Returns the operator who asked to cancel the job; `None` if nobody did.
    pub(crate) fn cancelled_by(&self, job: &JobInfo) -> Option<String> {
        let state = lock(&self.state);
        state.request(job).map(|stored| stored.request.by.clone())
    }

    /// Takes the open requests, and fires the tokens of the running jobs that they name.
    pub(super) fn set_requests(&self, requests: Vec<StoredRequest>) {
        let key = |stored: &StoredRequest| (stored.request.queue.clone(), stored.request.id.clone());
        let mut state = lock(&self.state);
        state.requests = requests.into_iter().map(|stored| (key(&stored), stored)).collect();
        let running: Vec<_> = state.running.values().cloned().collect();
        for run in running.into_iter().filter(|run| state.request(&run.job).is_some()) {
            run.cancelled.cancel();
        }
    }

    /// Returns the next answer to store.
    pub(super) fn next_answer(&self) -> Option<(StoredRequest, Answer)> {
        lock(&self.state).answers.first().cloned()
    }

    /// Removes the next answer to store.
    pub(super) fn answered(&self) {
        let mut state = lock(&self.state);
        if !state.answers.is_empty() {
            state.answers.remove(0);
        }
    }

    /// Waits until there is something urgent to write. Cancel-safe.
    pub(super) async fn urgent(&self) {
        self.urgent.notified().await;
    }

    /// Returns the jobs that run and their number, the numbers so far, the queues with an open circuit, and whether the worker stops.
    pub(super) fn snapshot(&self) -> Snapshot {
        let state = lock(&self.state);
        Snapshot {
            running: state.running.values().take(MAX_RUNNING).map(|run| run.shown()).collect(),
            running_total: state.running.len() as u64,
            counters: state.counters.values().cloned().collect(),
            open_circuits: state.open_circuits.clone(),
            draining: state.draining,
        }
    }
}

/// The state of a worker at one moment.
pub(super) struct Snapshot {
    pub(super) running: Vec<RunningJob>,
    pub(super) running_total: u64,
    pub(super) counters: Vec<Counters>,
    pub(super) open_circuits: BTreeSet<String>,
    pub(super) draining: bool,
}

impl State {
    /// Returns the request to cancel a job. One that was made before the message was put means an earlier life of the job, before a
    /// redrive for instance.
    fn request(&self, job: &JobInfo) -> Option<&StoredRequest> {
        if self.requests.is_empty() {
            return None;
        }
        let stored = self.requests.get(&(job.queue.to_string(), job.id.to_string()))?;
        let is_source = stored.request.source.as_deref().is_none_or(|source| source == &*job.source);
        (is_source && job.inserted <= stored.made).then_some(stored)
    }

    fn count(&mut self, queue: &str, kind: &str, outcome: &Outcome, ran: Duration) {
        let mut key = (queue.to_owned(), kind.to_owned());
        if self.counters.len() >= MAX_COUNTERS && !self.counters.contains_key(&key) {
            key.1 = "(other)".to_owned();
        }
        let new = || Counters::new(&key.0, &key.1);
        let counters = match self.counters.get_mut(&key) {
            Some(counters) => counters,
            None => self.counters.entry(key.clone()).or_insert_with(new),
        };
        match outcome {
            Outcome::Completed | Outcome::CompletedUncertain => counters.completed += 1,
            Outcome::Retried(_) => counters.retried += 1,
            Outcome::DeadLettered(_) => counters.dead_lettered += 1,
            _ => counters.other += 1,
        }
        if !ran.is_zero() {
            let ran = ran.as_secs_f64();
            counters.run_seconds += ran;
            let class = HISTOGRAM_BOUNDS.iter().position(|bound| ran <= *bound);
            if let Some(count) = counters.run_times.get_mut(class.unwrap_or(HISTOGRAM_BOUNDS.len())) {
                *count += 1;
            }
        }
    }
}
