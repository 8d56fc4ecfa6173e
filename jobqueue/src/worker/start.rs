//! Runs a worker and stops it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, join_all, select};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use scopeguard::{ScopeGuard, guard};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::access;
use super::activity::Activity;
use super::background::{Background, BackgroundContext, BackgroundTask, start_journal};
use super::deliveries::Deliveries;
use super::health::WorkerHealth;
use super::limits::QueueSlots;
use super::pacing::{Circuit, UnknownRatio};
use super::poller::Poller;
use super::presence_task::start_record;
use super::report::Report;
use super::state::WorkerState;
use crate::claim_check::{SweepOptions, sweep_containers};
use crate::clock::WITHOUT_END;
use crate::delivery::{Deletions, Executor, QueueHandlers, Snooze};
use crate::error::Error;
use crate::event::Event;
use crate::job::Backoff;
use crate::job::outcome::chain;
use crate::queue_core::{QueueCore, QueueCoreOptions};
use crate::storage::QueueName;

/// The maximum time that a shutdown waits for the requests of pollers and schedules.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum time that a shutdown waits until no message is on its way to this process.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The time for a delivery to settle after its handler has ended, and again after `settle_now` has fired.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// The number of queues that are opened concurrently.
const CONCURRENT_OPENS: usize = 32;
/// The time for which the start retries to open a queue.
const START_TIMEOUT: Duration = Duration::from_secs(5);
const START_BACKOFF: Backoff = Backoff::exponential(Duration::from_millis(250), Duration::from_secs(2));

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
    state: Arc<WorkerState>,
    background: Vec<Background>,
}

impl Worker {
    pub(super) fn new(state: WorkerState, background: Vec<Background>) -> Self {
        Self { state: Arc::new(state), background }
    }

    /// Returns a handle to the worker's health, for the checks of an orchestrator. Call it before a run.
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
        self.state.health.clone()
    }

    /// Runs until `shutdown` resolves, then stops in three steps: stops fetching, waits for running handlers
    /// until the shutdown timeout, then cancels the remaining handlers and releases their messages. A
    /// released message is visible at once, and costs no attempt.
    ///
    /// # Errors
    /// - A queue cannot be opened at the start.
    /// - At the start, the storage's key, token or signature lacks a permission that the worker needs; the
    ///   text names the missing permissions.
    /// - The storage has stopped permanently, for example after its disk failed. The worker then ends as in a
    ///   shutdown. Open the storage again, or restart the process.
    ///
    /// All other failures after the start are retried.
    ///
    /// # Cancel safety
    /// If the future is dropped, running handlers are dropped with it. Their messages become visible again
    /// when their leases run out.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<Report, Error> {
        let stop = CancellationToken::new();
        // Only this function depends on the caller's type of `shutdown`, and is compiled for each type.
        match select(self.run(false, stop.clone()), pin!(shutdown)).await {
            Either::Left((ended, _)) => ended,
            Either::Right(((), running)) => {
                stop.cancel();
                running.await
            }
        }
    }

    /// Runs until no queue has a visible message and no handler is running. For tests, scripts and examples.
    ///
    /// Also waits for an open circuit to close, and for a storage or a shard that does not answer. Does not
    /// wait for invisible messages: delayed messages, messages that failed and wait for their retry (counted
    /// as `retried` in the report), and messages that the worker has put back for a moment because of a limit
    /// of their kind or their turn in a log (`released`). Nor does it wait for the messages of a queue that is
    /// paused, or that a handler has snoozed. For these, run again later or use [`run_until`](Self::run_until).
    /// A worker that has only schedules ends at once.
    ///
    /// # Errors
    /// As [`run_until`](Self::run_until).
    ///
    /// # Cancel safety
    /// As [`run_until`](Self::run_until).
    pub async fn run_until_idle(self) -> Result<Report, Error> {
        self.run(true, CancellationToken::new()).await
    }

    fn run(self, until_idle: bool, stop: CancellationToken) -> BoxFuture<'static, Result<Report, Error>> {
        Box::pin(async move {
            let state = Arc::clone(&self.state);
            // The start may wait, for example for a queue that is being deleted.
            let running = tokio::select! {
                biased;
                running = self.start(until_idle) => running?,
                () = stop.cancelled() => return final_result(&state, Report::default()),
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = running.finished() => {}
            }
            running.shut_down().await
        })
    }

    async fn start(self, until_idle: bool) -> Result<RunningWorker, Error> {
        let mut running = RunningWorker::new(self.state, until_idle);
        let state = Arc::clone(&running.state);
        let queues = open_queues(&state).await?;
        running.background_tasks.extend(start_record(&state, until_idle));
        running.background_tasks.extend(start_journal(&state));
        running.start_pollers(queues);
        let runtime = state.delivery_state.storage.runtime();
        for start in self.background {
            let work = start(BackgroundContext::new(&state.delivery_state, running.stop.clone()));
            drop(runtime.spawn(running.pollers.track_future(work)));
        }
        running.pollers.close();
        start_sweeps(&state, running.stop.clone());
        Ok(running)
    }
}

/// A running worker. Dropping it stops the pollers and drops the running handlers; their leases run out.
struct RunningWorker {
    state: Arc<WorkerState>,
    until_idle: bool,
    activity: Arc<Activity>,
    stop: CancellationToken,
    abort: CancellationToken,
    pollers: TaskTracker,
    tasks: TaskTracker,
    background_tasks: Vec<BackgroundTask>,
    /// Ends the leases, because a handler that blocks its thread cannot be dropped.
    _leases_end_when_dropped: ScopeGuard<Arc<WorkerState>, fn(Arc<WorkerState>)>,
    _abort_when_dropped: DropGuard,
    _stop_when_dropped: DropGuard,
}

impl RunningWorker {
    fn new(state: Arc<WorkerState>, until_idle: bool) -> Self {
        state.delivery_state.prepare();
        if until_idle {
            state.rejections.lift();
        }
        let (stop, abort) = (CancellationToken::new(), CancellationToken::new());
        Self {
            until_idle,
            activity: Arc::new(Activity::new(state.registry.0.len())),
            pollers: TaskTracker::new(),
            tasks: TaskTracker::new(),
            background_tasks: Vec::new(),
            _leases_end_when_dropped: guard(Arc::clone(&state), end_leases),
            _abort_when_dropped: abort.clone().drop_guard(),
            _stop_when_dropped: stop.clone().drop_guard(),
            stop,
            abort,
            state,
        }
    }

    fn start_pollers(&self, queues: Vec<(Arc<QueueCore>, Arc<QueueHandlers>)>) {
        let (state, until_idle) = (&self.state, self.until_idle);
        let slots = QueueSlots::of_all(state.options.concurrency, &state.options.limits, &state.registry);
        for (number, ((core, handlers), slots)) in queues.into_iter().zip(slots).enumerate() {
            let snooze = Arc::<Snooze>::default();
            let circuit = state.options.circuit.map(|rules| rules.beyond_chunks_of(handlers.largest_chunk()));
            let delivery_state = Arc::clone(&state.delivery_state);
            let deletions = Deletions::new(&core, &self.tasks, &self.abort);
            let executor = Executor { state: delivery_state, core, handlers, snooze, deletions, until_idle };
            let deliveries = Arc::new(Deliveries {
                state: Arc::clone(state),
                executor,
                circuit: Arc::new(Circuit::new(circuit)),
                unknown: UnknownRatio::default(),
                activity: Arc::clone(&self.activity),
                stop: self.stop.clone(),
                abort: self.abort.clone(),
                tasks: self.tasks.clone(),
            });
            let poller = Poller { number, slots, deliveries, until_idle };
            let runtime = state.delivery_state.storage.runtime();
            drop(runtime.spawn(self.pollers.track_future(poller.run())));
        }
    }

    /// Waits until the worker is idle (in `run_until_idle`), or its storage has failed permanently.
    async fn finished(&self) {
        tokio::select! {
            biased;
            () = self.activity.idle(), if self.until_idle => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Stops the worker in the three steps of a shutdown. Returns its report, or the error that ended it.
    async fn shut_down(self) -> Result<Report, Error> {
        let Self { state, stop, pollers, tasks, .. } = &self;
        state.delivery_state.events.emit(|| Event::Stopping);
        state.health.drain();
        stop.cancel();
        if let Some(tracker) = state.delivery_state.tracker() {
            tracker.drain();
        }
        // A request that hangs must not use up the time of the running handlers.
        let _ = tokio::time::timeout(BACKGROUND_TIMEOUT, pollers.wait()).await;
        stop_deliveries(state).await;
        tasks.close();
        let report = end_handlers(state, tasks).await;
        let state = Arc::clone(state);
        for task in self.background_tasks {
            task.end().await;
        }
        final_result(&state, report)
    }
}

/// Waits until no message is on its way to this process: such a message would stay leased without a handler.
async fn stop_deliveries(state: &WorkerState) {
    let queues = state.delivery_state.storage.queues();
    let stopping: Vec<_> =
        state.registry.0.keys().filter_map(|queue| queues.stop_deliveries(queue)).collect();
    if !stopping.is_empty() {
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, join_all(stopping)).await;
    }
}

fn final_result(state: &WorkerState, report: Report) -> Result<Report, Error> {
    crate::log::info!(?report, "worker stopped");
    state.take_failure().map_or(Ok(report), |error| Err(error.into()))
}

/// Opens all queues, and checks the worker's permissions on each queue.
async fn open_queues(state: &WorkerState) -> Result<Vec<(Arc<QueueCore>, Arc<QueueHandlers>)>, Error> {
    // Collected first, so that the stream holds no closure that is generic over lifetimes.
    let opening: Vec<_> =
        state.registry.0.iter().map(|(queue, handlers)| open_with_retries(state, queue, handlers)).collect();
    let opened: Vec<_> = stream::iter(opening).buffered(CONCURRENT_OPENS).try_collect().await?;
    state.health.begin(opened.iter().map(|(core, _)| core.name.clone()), state.delivery_state.renewer());
    let queues: Vec<&str> = opened.iter().map(|(core, _)| core.name.as_str()).collect();
    crate::log::info!(storage = state.delivery_state.storage.description(), ?queues, "worker started");
    Ok(opened)
}

/// Opens a queue, with retries for [`START_TIMEOUT`] if the error is retryable: a single broken connection
/// must not fail the start.
async fn open_with_retries(
    state: &WorkerState,
    queue: &QueueName,
    handlers: &Arc<QueueHandlers>,
) -> Result<(Arc<QueueCore>, Arc<QueueHandlers>), Error> {
    let (began, mut failures) = (Instant::now(), 0);
    loop {
        let options =
            QueueCoreOptions { defaults: handlers.defaults(), ..state.delivery_state.queue_options() };
        let opened = async {
            let core = QueueCore::open(&state.delivery_state.storage, queue.clone(), options).await?;
            access::check(&core).await?;
            Ok::<_, Error>(core)
        };
        match opened.await {
            Ok(core) => return Ok((core, Arc::clone(handlers))),
            Err(error) if !error.is_retryable() || began.elapsed() >= START_TIMEOUT => return Err(error),
            Err(error) => {
                failures += 1;
                crate::log::warn!(%queue, error = %chain(&error), "the queue could not be opened; trying again");
                tokio::time::sleep(START_BACKOFF.ceiling(failures)).await;
            }
        }
    }
}

/// Ends the leases of the running handlers, and shows the worker as ended.
fn end_leases(state: Arc<WorkerState>) {
    state.delivery_state.abandon_running();
    state.health.end();
}

/// Waits for the running handlers, then cancels the handlers that are left, then abandons the deliveries that
/// are left. The returned report counts each delivery once: a delivery that has not ended by then is
/// abandoned, even if its end is on its way.
async fn end_handlers(state: &WorkerState, tasks: &TaskTracker) -> Report {
    if tokio::time::timeout(state.options.shutdown_timeout, tasks.wait()).await.is_ok() {
        return state.report().clone();
    }
    state.delivery_state.cancel.cancel();
    // First the grace of the handlers and time to settle. Then `settle_now` makes deliveries stop waiting and
    // put their messages back.
    for time in [state.delivery_state.options.cancel_grace + SETTLE_TIME, SETTLE_TIME] {
        if tokio::time::timeout(time, tasks.wait()).await.is_ok() {
            return state.report().clone();
        }
        state.delivery_state.settle_now.cancel();
    }
    // The other deliveries block their threads or still settle. Their messages reappear after their leases.
    state.delivery_state.abandon_running();
    state.report().clone()
}

/// Sweeps at the configured interval until `stop` fires. The first sweep comes after a random part of the
/// interval, because a worker may live for less than the interval.
fn start_sweeps(state: &Arc<WorkerState>, stop: CancellationToken) {
    let Some(every) = state.options.sweep_every else { return };
    let sweeps = sweep_periodically(Arc::clone(state), every);
    let runtime = state.delivery_state.storage.runtime();
    drop(runtime.spawn(async move { stop.run_until_cancelled(sweeps).await }));
}

async fn sweep_periodically(state: Arc<WorkerState>, every: Duration) {
    let storage = &state.delivery_state.storage;
    tokio::time::sleep(storage.runtime().jitter(every.min(WITHOUT_END), 0.0..=1.0)).await;
    loop {
        match sweep_containers(storage, state.options.swept, SweepOptions::new()).await {
            Ok(swept) => crate::log::debug!(?swept, "swept"),
            Err(error) => crate::log::warn!(error = %chain(&error), "sweep failed"),
        }
        tokio::time::sleep(every).await;
    }
}

jobqueue_storage::debug_fields! {
    Worker { storage = state.delivery_state.storage }
}
