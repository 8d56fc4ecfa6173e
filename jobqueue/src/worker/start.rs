//! Runs a worker and stops it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access;
use super::activity::Activity;
use super::background::{Background, BackgroundContext};
use super::circuit::Circuit;
use super::deliveries::Deliveries;
use super::health::WorkerHealth;
use super::history::RunningJournal;
use super::limits::{Slots, Snooze};
use super::poller::Poller;
use super::presence::Record;
use super::queue_worker::QueueWorker;
use super::registry::QueueHandlers;
use super::report::Report;
use super::shared::Shared;
use super::unknown_share::UnknownShare;
use crate::claim_check::{SweepOptions, sweep_containers};
use crate::error::Error;
use crate::event::Event;
use crate::job::outcome::chain;
use crate::queue::{LeasedJob, QueueCore, QueueCoreOptions};
use crate::task;

/// The time that a shutdown waits for the requests of pollers, schedules and other background work.
const LAST_ROUND: Duration = Duration::from_secs(5);

/// Runs handlers for the messages of its queues.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::{JobError, QueueMessage, Storage, Worker};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, QueueMessage)]
/// #[message(queue = "greetings", kind = "greeting")]
/// struct Greeting { name: String }
///
/// async fn greet(message: Greeting) -> Result<(), JobError> {
///     println!("Hello, {}!", message.name);
///     Ok(())
/// }
///
/// let storage = Storage::memory();
/// storage.queue::<Greeting>().await?.send(&Greeting { name: "Ada".into() }).await?;
/// let report = Worker::builder(storage).handle(greet).build()?.run_until_idle().await?;
/// assert_eq!(report.completed, 1);
/// # Ok(()) }
/// ```
#[must_use = "a worker does nothing until it is run"]
pub struct Worker {
    shared: Arc<Shared>,
    background: Vec<Background>,
}

impl Worker {
    pub(super) fn new(shared: Shared, background: Vec<Background>) -> Self {
        Self { shared: Arc::new(shared), background }
    }

    /// Returns a handle to the health of this worker, for the checks of an orchestrator. Take it before the worker runs.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{JobError, QueueMessage, Storage, Worker}; use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
    /// use jobqueue::worker::WorkerPhase;
    ///
    /// let worker = Worker::builder(Storage::memory()).handle(|_: Mail| async { Ok::<_, JobError>(()) }).build()?;
    /// let health = worker.health();
    /// assert_eq!(health.report().phase, WorkerPhase::Starting);
    /// let _ = worker.run_until_idle().await?;
    /// assert_eq!(health.report().phase, WorkerPhase::Ended);
    /// # Ok(()) }
    /// ```
    pub fn health(&self) -> WorkerHealth {
        self.shared.health.clone()
    }

    /// Runs until `shutdown` resolves, then stops in three steps. It stops fetching. It waits for running handlers
    /// until the shutdown timeout. It cancels the rest and releases their messages, visible at once and without
    /// costing an attempt.
    ///
    /// # Errors
    /// - A queue cannot be opened at the start.
    /// - At the start, the storage's key, token or signature lacks a permission that the worker needs; the text names
    ///   the missing permissions.
    /// - The storage has stopped for good, for instance after its disk failed. The worker then ends as in a shutdown.
    ///   Open the storage again, or restart the process.
    ///
    /// All other failures after the start are retried.
    ///
    /// # Cancel safety
    /// If the future is dropped, running handlers are dropped with it. Their messages become visible again when their
    /// leases run out.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<Report, Error> {
        self.run(shutdown, false).await
    }

    /// Runs until every queue has no visible message and no handler is running. For tests, scripts and examples.
    ///
    /// It waits for nothing else. A message that is delayed, and one that failed and waits for its retry, stays in its queue
    /// (the report counts the latter as `retried`): run again later, or use [`run_until`](Self::run_until). A worker that has
    /// only schedules ends at once.
    ///
    /// # Errors
    /// As [`run_until`](Self::run_until).
    ///
    /// # Cancel safety
    /// As [`run_until`](Self::run_until).
    pub async fn run_until_idle(self) -> Result<Report, Error> {
        self.run(std::future::pending(), true).await
    }

    async fn run(self, shutdown: impl Future<Output = ()>, until_idle: bool) -> Result<Report, Error> {
        let shared = self.shared;
        shared.prepare();
        if until_idle {
            shared.rejections.lift();
        }
        let stop = CancellationToken::new();
        let _stop_when_dropped = stop.clone().drop_guard();
        // When this future ends or is dropped, everything that still runs is dropped too; the leases run out.
        let abort = CancellationToken::new();
        let _abort_when_dropped = abort.clone().drop_guard();
        let _leases_end_when_dropped = EndLeases(Arc::clone(&shared));
        let (pollers, tasks) = (TaskTracker::new(), TaskTracker::new());
        let slots = Slots::new(shared.options.concurrency, &shared.options.limits, &shared.registry);
        let activity = Arc::new(Activity::new(shared.registry.0.len()));
        let queues = open_queues(&shared).await?;
        let record = Record::start(&shared, until_idle);
        let journal = RunningJournal::start(&shared);
        for (number, (core, handlers)) in queues.into_iter().enumerate() {
            let worker = QueueWorker {
                shared: Arc::clone(&shared),
                core,
                handlers,
                circuit: Arc::new(Circuit::new(shared.options.circuit)),
                unknown: UnknownShare::default(),
                snooze: Arc::new(Snooze::default()),
                activity: Arc::clone(&activity),
                stop: stop.clone(),
                abort: abort.clone(),
                tasks: tasks.clone(),
                until_idle,
            };
            let deliveries = Arc::new(Deliveries::new(worker));
            let poller = Poller { number, slots: slots.of_queue(number), deliveries, until_idle };
            task::spawn_tracked(&pollers, poller.run());
        }
        for start in self.background {
            task::spawn_tracked(&pollers, start(BackgroundContext::new(&shared, stop.clone())));
        }
        pollers.close();
        start_sweeps(&shared, stop.clone());
        until_stopped(shutdown, &activity, &stop, until_idle).await;
        tell_stopping(&shared, &stop, record.as_ref());
        // A request that hangs must not use up the time of the running handlers.
        let _ = tokio::time::timeout(LAST_ROUND, pollers.wait()).await;
        tasks.close();
        end_handlers(&shared, &tasks).await;
        end_records(record, journal).await;
        stopped(&shared)
    }
}

/// Stops fetching, and tells everybody.
fn tell_stopping(shared: &Shared, stop: &CancellationToken, record: Option<&Record>) {
    shared.events.tell(|| Event::Stopping);
    shared.health.drain();
    stop.cancel();
    record.into_iter().for_each(Record::drain);
}

/// Waits until the worker is to stop.
async fn until_stopped(
    shutdown: impl Future<Output = ()>,
    activity: &Activity,
    stop: &CancellationToken,
    until_idle: bool,
) {
    tokio::select! {
        biased;
        () = shutdown => {}
        () = activity.idle(), if until_idle => {}
        () = stop.cancelled() => {}
    }
}

/// Ends what tells others of this worker, after its handlers have ended.
async fn end_records(record: Option<Record>, journal: Option<RunningJournal>) {
    if let Some(record) = record {
        record.end().await;
    }
    if let Some(journal) = journal {
        journal.end().await;
    }
}

/// Returns the report of a worker that has ended, or the error that ended it.
fn stopped(shared: &Shared) -> Result<Report, Error> {
    let report = shared.report().clone();
    tracing::info!(?report, "worker stopped");
    shared.take_failure().map_or(Ok(report), |error| Err(error.into()))
}

/// Opens all queues, and checks that the worker has the permissions it needs on each.
async fn open_queues(shared: &Shared) -> Result<Vec<(Arc<QueueCore>, Arc<QueueHandlers>)>, Error> {
    let mut opened = Vec::new();
    for (queue, handlers) in &shared.registry.0 {
        let options = QueueCoreOptions { defaults: handlers.defaults(), ..shared.channel_options() };
        let core = QueueCore::open(&shared.storage, queue.clone(), options).await?;
        access::check(&core).await?;
        opened.push((core, Arc::clone(handlers)));
    }
    shared.health.begin(opened.iter().map(|(core, _)| core.name.clone()), shared.renewer());
    let queues: Vec<&str> = opened.iter().map(|(core, _)| core.name.as_str()).collect();
    tracing::info!(storage = shared.storage.description(), ?queues, "worker started");
    Ok(opened)
}

/// Ends the leases of running handlers when their worker is dropped. A handler that blocks its thread cannot be
/// dropped with it.
struct EndLeases(Arc<Shared>);

impl Drop for EndLeases {
    fn drop(&mut self) {
        for leased_job in self.0.take_running() {
            leased_job.lease.abandon();
        }
        self.0.health.end();
    }
}

/// Waits for running handlers, then cancels them, then releases the messages of those that remain.
async fn end_handlers(shared: &Shared, tasks: &TaskTracker) {
    if tokio::time::timeout(shared.options.shutdown_timeout, tasks.wait()).await.is_ok() {
        return;
    }
    shared.cancel.cancel();
    // The grace of each handler, plus time to settle.
    let rest = shared.options.cancel_grace + Duration::from_secs(2);
    if tokio::time::timeout(rest, tasks.wait()).await.is_ok() {
        return;
    }
    let abandoned = shared.take_running();
    shared.report().abandoned += abandoned.len() as u64;
    let release = |leased_job: Arc<LeasedJob>| async move {
        if let Err(error) = leased_job.release_uncounted(Duration::ZERO).await {
            tracing::warn!(queue = %leased_job.core.name, error = %chain(&error), "message not released");
        }
    };
    let released = futures_util::future::join_all(abandoned.into_iter().map(release));
    // A message that is not released by then becomes visible again when its lease runs out.
    let _ = tokio::time::timeout(LAST_ROUND, released).await;
}

/// Sweeps at the configured interval until `stop` fires.
fn start_sweeps(shared: &Arc<Shared>, stop: CancellationToken) {
    let Some(every) = shared.options.sweep_every else { return };
    let sweeps = sweep_again_and_again(Arc::clone(shared), every);
    drop(task::spawn(async move { stop.run_until_cancelled(sweeps).await }));
}

async fn sweep_again_and_again(shared: Arc<Shared>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let options = SweepOptions::new().clock(shared.channel_options().clock);
        match sweep_containers(&shared.storage, shared.options.swept, options).await {
            Ok(swept) => tracing::debug!(?swept, "swept"),
            Err(error) => tracing::warn!(error = %chain(&error), "sweep failed"),
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("storage", &self.shared.storage).finish_non_exhaustive()
    }
}
