//! Connects a worker with its presence: starts the record, and asks whether a job is cancelled.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::builder::WorkerBuilder;
use super::context::Context;
use super::shared::Shared;
use crate::job::JobInfo;
use crate::job::outcome::Reason;
use crate::lease::LeaseRenewer;
use crate::name::QueueName;
use crate::presence::{About, ListeningQueue, Run, Tracker, keep};
use crate::queue::Rejection;
use crate::task;

/// The interval at which a worker writes its record unless configured otherwise.
const INTERVAL: Duration = Duration::from_secs(15);
/// The time that the end of the record may take.
const LAST_ROUND: Duration = Duration::from_secs(5);

/// The choice whether a worker keeps a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Presence {
    /// A worker that runs until it is told to stop keeps one, except on the virtual time of tests.
    #[default]
    Default,
    /// The worker keeps none.
    Off,
    /// The worker keeps one, written at this interval.
    Every(Duration),
}

impl WorkerBuilder {
    /// Sets how often the worker writes its record for operators: what it runs, since when, how far it is, and its numbers. The
    /// default is 15 seconds; `None` for no record. The record also brings the worker requests to cancel jobs: without it, a job that
    /// waits or runs here cannot be cancelled by its id.
    ///
    /// The record is a blob in the container `jobqueue-workers`. On Azure a worker that runs all day writes 5,760 times at the
    /// default interval, and reads nothing unless a job is cancelled. A worker is shown as gone three intervals after its last write.
    /// [`run_until_idle`](crate::Worker::run_until_idle) keeps a record only if this was called. A record that cannot be written is
    /// logged, and changes nothing else.
    pub fn presence(mut self, every: impl Into<Option<Duration>>) -> Self {
        let least = Duration::from_millis(100);
        self.options.presence = every
            .into()
            .map_or(Presence::Off, |every| Presence::Every(every.clamp(least, Duration::from_secs(3600))));
        self
    }
}

/// The record of a running worker. If it is dropped, the record becomes stale.
pub(super) struct Record {
    tracker: Arc<Tracker>,
    ended: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl Record {
    /// Starts the record of a worker; `None` if it keeps none.
    pub(super) fn start(shared: &Arc<Shared>, until_idle: bool) -> Option<Self> {
        let is_test = shared.options.renewer_on_this_runtime;
        let interval = match shared.options.presence {
            Presence::Off => return None,
            Presence::Default if until_idle || is_test => return None,
            Presence::Default => INTERVAL,
            Presence::Every(interval) => interval,
        };
        let options = shared.channel_options();
        // A thread of the library's own: a handler that blocks the worker's runtime does not make the worker look dead.
        let renewer = options.renewer.clone().map_or_else(LeaseRenewer::process, Ok);
        let renewer =
            renewer.inspect_err(|error| tracing::debug!(%error, "the worker has no record")).ok()?;
        let limits = &shared.options.limits;
        let queues = shared.registry.0.iter().map(|(name, handlers)| {
            limits.shown(ListeningQueue::new(name.to_string(), handlers.all_kinds()))
        });
        let about = About {
            name: options.worker.to_string(),
            queues: queues.collect(),
            slots: shared.options.concurrency,
            interval,
        };
        let tracker = Arc::<Tracker>::default();
        shared.set_tracker(&tracker);
        let ended = CancellationToken::new();
        let keep =
            keep(shared.storage.blobs_apart(), options.clock, about, Arc::clone(&tracker), ended.clone());
        let task: JoinHandle<()> = task::spawn_on(renewer.runtime(), keep);
        Some(Self { tracker, ended, task: AbortOnDropHandle::new(task) })
    }

    /// Shows that the worker was told to stop.
    pub(super) fn drain(&self) {
        self.tracker.drain();
    }

    /// Removes the record.
    pub(super) async fn end(self) {
        self.ended.cancel();
        let _ = tokio::time::timeout(LAST_ROUND, self.task).await;
    }
}

/// A run that the record shows until this is dropped.
pub(super) struct Entered<'a> {
    pub(super) tracker: &'a Tracker,
    pub(super) run: Arc<Run>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.tracker.end(&self.run);
    }
}

impl Shared {
    /// Notes that a handler starts; `None` if the worker keeps no record.
    pub(super) fn show(&self, job: &Arc<JobInfo>, started: Instant, lease: Duration) -> Option<Entered<'_>> {
        let tracker = &**self.tracker()?;
        Some(Entered { tracker, run: tracker.begin(job, started, lease) })
    }

    /// Shows whether the circuit of a queue is open.
    pub(super) fn show_circuit(&self, queue: &QueueName, is_open: bool) {
        self.health.circuit(queue, is_open);
        if let Some(tracker) = self.tracker() {
            tracker.circuit(queue.as_str(), is_open);
        }
    }

    /// Returns the end of a job that an operator has cancelled; `None` if nobody has.
    pub(super) fn cancelled(&self, job: &JobInfo) -> Option<Rejection> {
        let by = self.tracker()?.cancelled_by(job)?;
        Some(Rejection::new(Reason::CANCELLED, format!("cancelled by {by}")))
    }
}

impl Context {
    /// Tells people how far the job is: `done` of `total`, 0 if the whole is not known, and a text of at most 200 characters in one line.
    /// The next [record of the worker](WorkerBuilder::presence) shows it, so that it costs no request of its own: call it as often as
    /// you like. It is not kept when the job ends or is tried again; for progress that a later attempt goes on from, see
    /// [`checkpoint`](Self::checkpoint).
    pub fn progress(&self, done: u64, total: u64, text: impl AsRef<str>) {
        if let Some(run) = self.run() {
            run.progress(done, total, text.as_ref());
        }
    }
}
