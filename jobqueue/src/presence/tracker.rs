//! Tracks the state of a worker in memory: its running jobs, its counters, and the jobs to cancel.
//!
//! Called three times per job: on start, on end, and when the outcome is counted and may answer a request.
//! These paths allocate little more than a [`Run`]; they neither read the clock nor copy texts. The record's
//! content is built when the record is written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::record::{Counters, HISTOGRAM_BOUNDS, JobProgress, ListeningQueue, RunningJob};
use super::requests::{Answer, ListedRequest, RequestsByQueue};
use crate::clock::rfc3339;
use crate::job::JobInfo;
use crate::job::outcome::{Outcome, Reason, kept_text, printable};
use crate::sync::lock;

/// The maximum length of a progress text in characters; an ellipsis adds one.
const MAX_PROGRESS_CHARS: usize = 199;
/// The maximum number of running jobs in a record.
const MAX_RUNNING: usize = 1_000;
/// The maximum number of counters, one for each queue and kind. Limited, because producers choose kinds.
const MAX_COUNTERS: usize = 1_000;
/// The kind used for counters above the limit.
const OTHER_KINDS: &str = "(other)";

/// The state of a worker that its record shows.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    state: Mutex<TrackedRuns>,
    /// Wakes the record's writer before its interval is over.
    urgent: Notify,
    /// Wakes the task that stores answers.
    answered: Notify,
    /// Wakes all callers that wait for a cancellation when the requests have been read.
    cancelled: Notify,
    /// Fires when the requests have been read for the first time.
    has_requests: CancellationToken,
}

#[derive(Debug, Default)]
struct TrackedRuns {
    next: u64,
    /// The running jobs, in the order of starts.
    running: BTreeMap<u64, Arc<Run>>,
    counters: Vec<Counters>,
    /// The index of each counter, by queue and kind.
    by_kind: BTreeMap<String, BTreeMap<String, usize>>,
    open_circuits: BTreeSet<String>,
    draining: bool,
    requests: RequestsByQueue,
    /// The answers that are not stored yet, by queue and the key of the request.
    answers: BTreeMap<(String, String), Answer>,
}

#[derive(Debug)]
pub(crate) struct Run {
    /// The number of the run, in the order of starts.
    number: u64,
    job: Arc<JobInfo>,
    started: Instant,
    /// The time for which the storage hides the message after each renewal.
    lease: Duration,
    /// The start time by the worker's clock; set when a record first shows the run.
    since: OnceLock<SystemTime>,
    progress: Mutex<Option<JobProgress>>,
    is_cancelled: AtomicBool,
}

impl Run {
    /// Sets the progress that the next record shows.
    pub(crate) fn progress(&self, done: u64, total: u64, text: &str) {
        let text = printable(text, MAX_PROGRESS_CHARS);
        *lock(&self.progress) = Some(JobProgress { done, total, text });
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    fn to_record(&self, now: SystemTime) -> RunningJob {
        let (job, elapsed) = (&self.job, self.started.elapsed());
        let since = *self.since.get_or_init(|| now.checked_sub(elapsed).unwrap_or(now));
        RunningJob {
            queue: job.queue.to_string(),
            id: job.id.to_string(),
            source: job.source.to_string(),
            kind: kept_text(&job.kind).to_owned(),
            key: job.key.as_deref().map(|key| kept_text(key).to_owned()),
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            inserted: Some(rfc3339(job.inserted)),
            since: rfc3339(since),
            running_seconds: seconds(elapsed),
            lease_seconds: Some(seconds(self.lease)),
            progress: lock(&self.progress).clone(),
            trace: Some(job.trace.traceparent()),
            cancelling: self.is_cancelled(),
        }
    }
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e3).round() / 1e3
}

/// Keeps a run in the record until dropped.
pub(crate) struct TrackedRun<'t> {
    tracker: &'t Tracker,
    pub(crate) run: Arc<Run>,
}

impl TrackedRun<'_> {
    /// Waits until an operator has cancelled the job. Cancel-safe.
    pub(crate) async fn cancelled(&self) {
        loop {
            let mut changed = std::pin::pin!(self.tracker.cancelled.notified());
            changed.as_mut().enable();
            if self.run.is_cancelled() {
                return;
            }
            changed.await;
        }
    }
}

impl Drop for TrackedRun<'_> {
    fn drop(&mut self) {
        lock(&self.tracker.state).running.remove(&self.run.number);
    }
}

impl Tracker {
    /// Returns a tracker with a counter for each kind that the worker handles in these queues, so that the
    /// kinds of other messages, which senders invent, do not take its place.
    pub(crate) fn handling(queues: &[ListeningQueue]) -> Self {
        let mut runs = TrackedRuns::default();
        for queue in queues {
            for kind in queue.named_kinds() {
                runs.counters(&queue.name, kind);
            }
        }
        Self { state: Mutex::new(runs), ..Self::default() }
    }

    /// Adds a run until the returned guard is dropped. The run is cancelled at once if an operator has
    /// already cancelled the job.
    pub(crate) fn begin(&self, job: &Arc<JobInfo>, started: Instant, lease: Duration) -> TrackedRun<'_> {
        let mut state = lock(&self.state);
        let is_cancelled = AtomicBool::new(state.request(job).is_some());
        state.next += 1;
        let number = state.next;
        let (since, progress) = (OnceLock::new(), Mutex::default());
        let run =
            Arc::new(Run { number, job: Arc::clone(job), started, lease, since, progress, is_cancelled });
        state.running.insert(number, Arc::clone(&run));
        TrackedRun { tracker: self, run }
    }

    /// Counts a delivery that has ended.
    pub(crate) fn count(&self, queue: &str, job: Option<&JobInfo>, outcome: &Outcome, ran: Duration) {
        lock(&self.state).count(queue, job.map_or("", |job| &job.kind), outcome, ran);
    }

    /// Answers the request to cancel a job, if there is a request and the outcome ends the job. `earlier_end`
    /// is the reason of an earlier end that was not a completion.
    pub(crate) fn answer(&self, job: &JobInfo, outcome: &Outcome, earlier_end: Option<&Reason>) {
        let answer = match (outcome, earlier_end) {
            (Outcome::Duplicate, Some(reason)) => Some(Answer::of_reason(reason)),
            _ => Answer::of(outcome),
        };
        let Some(answer) = answer else { return };
        let mut state = lock(&self.state);
        let Some((key, _)) = state.request(job) else { return };
        let known = state.answers.entry((job.queue.to_string(), key)).or_insert(answer);
        // The end of another message of the job does not replace a completion.
        if *known != Answer::Completed {
            *known = answer;
        }
        drop(state);
        self.answered.notify_one();
    }

    pub(crate) fn set_circuit(&self, queue: &str, is_open: bool) {
        let mut state = lock(&self.state);
        if is_open {
            state.open_circuits.insert(queue.to_owned());
        } else {
            state.open_circuits.remove(queue);
        }
    }

    /// Shows in the record that the worker is stopping.
    pub(crate) fn drain(&self) {
        lock(&self.state).draining = true;
        self.urgent.notify_one();
    }

    /// Returns the operator who requested the cancellation of the job, if any.
    pub(crate) fn cancelled_by(&self, job: &JobInfo) -> Option<String> {
        let state = lock(&self.state);
        let (_, request) = state.request(job)?;
        Some(request.by.clone().unwrap_or_else(|| "an operator".to_owned()))
    }

    /// Replaces the requests, and cancels the running jobs that they name.
    pub(super) fn set_requests(&self, requests: RequestsByQueue) {
        let mut state = lock(&self.state);
        state.requests = requests;
        for run in state.running.values().filter(|run| state.request(&run.job).is_some()) {
            run.is_cancelled.store(true, Ordering::Release);
        }
        drop(state);
        self.has_requests.cancel();
        self.cancelled.notify_waiters();
    }

    /// Returns a future that completes when the requests to cancel jobs have been read again.
    pub(crate) fn requests_changed(&self) -> Notified<'_> {
        self.cancelled.notified()
    }

    /// Returns the token that fires when the requests have been read for the first time.
    pub(crate) fn has_requests(&self) -> &CancellationToken {
        &self.has_requests
    }

    /// Returns the next answers to store, with the queue and the key of each request.
    pub(super) fn next_answers(&self, at_most: usize) -> Vec<((String, String), Answer)> {
        let state = lock(&self.state);
        state.answers.iter().take(at_most).map(|(request, answer)| (request.clone(), *answer)).collect()
    }

    /// Removes a stored answer, unless another answer to the same request has replaced it.
    pub(super) fn forget_answer(&self, request: &(String, String), answer: Answer) {
        let mut state = lock(&self.state);
        if state.answers.get(request) == Some(&answer) {
            state.answers.remove(request);
        }
    }

    /// Waits until there is an answer to store. Cancel-safe.
    pub(super) async fn answered(&self) {
        self.answered.notified().await;
    }

    /// Waits until the record must be written before its interval is over. Cancel-safe.
    pub(super) async fn urgent(&self) {
        self.urgent.notified().await;
    }

    /// Returns the current state for the record.
    pub(super) fn snapshot(&self, now: SystemTime) -> Snapshot {
        let state = lock(&self.state);
        Snapshot {
            running_total: state.running.len() as u64,
            running: state.running.values().take(MAX_RUNNING).map(|run| run.to_record(now)).collect(),
            counters: state
                .by_kind
                .values()
                .flat_map(BTreeMap::values)
                .map(|place| &state.counters[*place])
                .filter(|counters| !counters.is_zero())
                .cloned()
                .collect(),
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

impl TrackedRuns {
    /// Returns the request to cancel a job, and its key.
    fn request(&self, job: &JobInfo) -> Option<(String, &ListedRequest)> {
        self.requests.get(job.queue.as_str())?.find(&job.id, &job.source, job.inserted)
    }

    fn count(&mut self, queue: &str, kind: &str, outcome: &Outcome, ran: Duration) {
        let counters = self.counters(queue, kind);
        match outcome {
            Outcome::Completed | Outcome::CompletedUncertain => counters.completed += 1,
            Outcome::Retried(_) => counters.retried += 1,
            Outcome::DeadLettered(reason) => {
                counters.dead_lettered += 1;
                counters.cancelled += u64::from(*reason == Reason::CANCELLED);
            }
            outcome => {
                counters.other += 1;
                // Without a run, no effect may be repeated.
                let is_lost = matches!(outcome, Outcome::LeaseLost) && !ran.is_zero();
                counters.lease_lost += u64::from(is_lost);
            }
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

    /// Returns the counters of a kind, or the shared counters of all further kinds if there are too many.
    fn counters(&mut self, queue: &str, kind: &str) -> &mut Counters {
        // Limits the length: a producer may write any text.
        let kind = kept_text(kind);
        let known = |kind: &str| self.by_kind.get(queue).and_then(|kinds| kinds.get(kind)).copied();
        let place =
            known(kind).or_else(|| known(OTHER_KINDS).filter(|_| self.counters.len() >= MAX_COUNTERS));
        let place = place.unwrap_or_else(|| {
            let kind = if self.counters.len() >= MAX_COUNTERS { OTHER_KINDS } else { kind };
            let place = self.counters.len();
            self.counters.push(Counters::new(queue, kind));
            self.by_kind.entry(queue.to_owned()).or_default().insert(kind.to_owned(), place);
            place
        });
        &mut self.counters[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::{EVERY_KIND, is_of_this_life};

    // review 34 b, C6
    #[test]
    fn kinds_of_senders_take_no_counter_of_a_handled_kind() {
        let kinds = vec!["letter".to_owned(), EVERY_KIND.to_owned()];
        let tracker = Tracker::handling(&[ListeningQueue::new("letters".to_owned(), kinds)]);
        let count = |kind: &str| {
            lock(&tracker.state).count("letters", kind, &Outcome::Completed, Duration::ZERO);
        };
        let completed = |kind: &str| {
            let counters = tracker.snapshot(SystemTime::UNIX_EPOCH).counters;
            counters.iter().find(|counters| counters.kind == kind).map(|counters| counters.completed)
        };
        for number in 0..2 * MAX_COUNTERS {
            count(&number.to_string());
        }
        assert_eq!(completed("letter"), None, "a record has no counters of 0");
        count("letter");
        assert_eq!(completed("letter"), Some(1));
        assert_eq!(completed(OTHER_KINDS), Some(MAX_COUNTERS as u64 + 1));
    }

    #[test]
    fn request_within_the_second_of_the_send_means_this_job() {
        let at = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        // The request was made at 10.9 s, and stored as 10 s.
        assert!(is_of_this_life(at(10_000), at(10_400)));
        assert!(!is_of_this_life(at(10_000), at(11_400)));
        assert!(!is_of_this_life(at(10_100), at(10_400)), "a storage that rounds nothing");
    }
}
