//! The state that all parts of a running worker share.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::circuit::CircuitBreaker;
use super::completed::Completed;
use super::dead_letter_hook::DeadLetterHooks;
use super::health::WorkerHealth;
use super::hook::Hook;
use super::limits::LimitSettings;
use super::presence::Presence;
use super::registry::Registry;
use super::rejections::Rejections;
use super::report::Report;
use crate::claim_check::SweptContainer;
use crate::error::Error;
use crate::event::Observers;
use crate::handler::States;
use crate::history::Journal;
use crate::job::JobInfo;
use crate::job::outcome::{JobError, Verdict};
use crate::lease::{LeaseRenewer, Loss};
use crate::message::QueueMessage;
use crate::name::QueueName;
use crate::presence::Tracker;
use crate::queue::{LeasedJob, QueueCore, QueueCoreOptions};
use crate::storage::{Storage, StoreError};
use crate::sync::lock;

pub(super) type RetryPolicy = Arc<dyn Fn(&JobError, &JobInfo) -> Option<Verdict> + Send + Sync>;

/// The options of a worker.
pub(super) struct Options {
    pub(super) concurrency: usize,
    pub(super) limits: LimitSettings,
    pub(super) max_idle_delay: Duration,
    pub(super) shutdown_timeout: Duration,
    pub(super) cancel_grace: Duration,
    pub(super) retry_policy: Option<RetryPolicy>,
    pub(super) renewer_on_this_runtime: bool,
    /// The rules of the circuit breaker; `None`: never stop fetching.
    pub(super) circuit: Option<CircuitBreaker>,
    pub(super) durable_completions: bool,
    /// The interval of sweeps; `None`: never sweep.
    pub(super) sweep_every: Option<Duration>,
    pub(super) swept: &'static [SweptContainer],
    pub(super) dead_letter_hooks: DeadLetterHooks,
    /// The rate of rejections; `None`: no limit.
    pub(super) rejections_per_second: Option<u32>,
    pub(super) presence: Presence,
    /// The time for which ended jobs are kept; `None`: no journal.
    pub(super) history: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            concurrency: 64,
            limits: LimitSettings::default(),
            max_idle_delay: Duration::from_secs(5),
            shutdown_timeout: Duration::from_secs(25),
            cancel_grace: Duration::from_secs(2),
            retry_policy: None,
            renewer_on_this_runtime: false,
            circuit: Some(CircuitBreaker::default()),
            durable_completions: false,
            sweep_every: None,
            swept: &[],
            dead_letter_hooks: DeadLetterHooks::default(),
            rejections_per_second: Some(100),
            presence: Presence::default(),
            history: None,
        }
    }
}

/// The parts that the builder gives to a worker.
pub(super) struct Parts {
    pub(super) storage: Storage,
    pub(super) registry: Registry,
    pub(super) options: Options,
    pub(super) core: QueueCoreOptions,
    pub(super) states: Arc<States>,
    pub(super) hooks: Vec<Arc<dyn Hook>>,
}

/// The shared parts of a worker.
pub(super) struct Shared {
    pub(super) storage: Storage,
    pub(super) registry: Registry,
    pub(super) options: Options,
    pub(super) states: Arc<States>,
    pub(super) events: Arc<Observers>,
    pub(super) health: WorkerHealth,
    pub(super) completed: Completed,
    pub(super) rejections: Rejections,
    pub(super) hooks: Vec<Arc<dyn Hook>>,
    /// Fires when running handlers must stop.
    pub(super) cancel: CancellationToken,
    channel_options: Mutex<QueueCoreOptions>,
    report: Mutex<Report>,
    /// The error because of which the worker ends by itself.
    failure: Mutex<Option<StoreError>>,
    /// The deliveries whose handlers are running. A shutdown releases those that do not end.
    running: Mutex<BTreeMap<u64, Arc<LeasedJob>>>,
    next_run: AtomicU64,
    /// The queues that handlers send to.
    opened: Mutex<HashMap<QueueName, Arc<OnceCell<Arc<QueueCore>>>>>,
    /// The data of the worker's record; empty if it keeps none.
    tracker: OnceLock<Arc<Tracker>>,
    /// The journal of ended jobs; empty if the worker keeps none.
    journal: OnceLock<Arc<Journal>>,
}

impl Shared {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { storage, registry, options, core, states, hooks } = parts;
        Self {
            events: Arc::clone(storage.observers()),
            storage,
            registry,
            rejections: Rejections::new(options.rejections_per_second),
            options,
            states,
            hooks,
            health: WorkerHealth::default(),
            completed: Completed::default(),
            cancel: CancellationToken::new(),
            channel_options: Mutex::new(core),
            report: Mutex::default(),
            failure: Mutex::default(),
            running: Mutex::default(),
            next_run: AtomicU64::new(0),
            opened: Mutex::default(),
            tracker: OnceLock::new(),
            journal: OnceLock::new(),
        }
    }

    /// Called once, on the runtime of the worker.
    pub(super) fn prepare(&self) {
        if self.options.renewer_on_this_runtime {
            lock(&self.channel_options).renewer = Some(LeaseRenewer::on_this_runtime());
        }
    }

    /// Returns the data of the worker's record, if it keeps one.
    pub(super) fn tracker(&self) -> Option<&Arc<Tracker>> {
        self.tracker.get()
    }

    /// Returns the journal of ended jobs, if the worker keeps one.
    pub(super) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get()
    }

    pub(super) fn set_journal(&self, journal: &Arc<Journal>) {
        drop(self.journal.set(Arc::clone(journal)));
    }

    pub(super) fn set_tracker(&self, tracker: &Arc<Tracker>) {
        drop(self.tracker.set(Arc::clone(tracker)));
    }

    /// Notes a lease that ended before it was renewed, in the health of the worker.
    pub(super) fn note_loss(&self, leased_job: &LeasedJob) {
        if leased_job.lease.loss() == Some(Loss::Expired) {
            self.health.lease_expired();
        }
    }

    /// Returns the renewer of this worker's leases.
    pub(super) fn renewer(&self) -> Option<LeaseRenewer> {
        lock(&self.channel_options).renewer.clone().or_else(|| LeaseRenewer::process().ok())
    }

    pub(super) fn channel_options(&self) -> QueueCoreOptions {
        lock(&self.channel_options).clone()
    }

    /// Opens the queue of `M` once.
    pub(super) async fn core<M: QueueMessage>(&self, name: &str) -> Result<Arc<QueueCore>, Error> {
        let name = QueueName::new(name)?;
        let options = QueueCoreOptions { defaults: M::DEFAULTS, ..self.channel_options() };
        // Callers wait for each other only if they want the same queue.
        let cell = Arc::clone(lock(&self.opened).entry(name.clone()).or_default());
        let open = || QueueCore::open(&self.storage, name, options);
        cell.get_or_try_init(open).await.map(Arc::clone)
    }

    pub(super) fn report(&self) -> MutexGuard<'_, Report> {
        lock(&self.report)
    }

    /// Makes the worker end with `error`, if it is the first.
    pub(super) fn fail(&self, error: StoreError) {
        lock(&self.failure).get_or_insert(error);
    }

    pub(super) fn take_failure(&self) -> Option<StoreError> {
        lock(&self.failure).take()
    }

    pub(super) fn enter(&self, leased_job: &Arc<LeasedJob>) -> u64 {
        let number = self.next_run.fetch_add(1, Ordering::Relaxed);
        lock(&self.running).insert(number, Arc::clone(leased_job));
        number
    }

    pub(super) fn leave(&self, number: u64) -> Option<Arc<LeasedJob>> {
        lock(&self.running).remove(&number)
    }

    /// Takes over the deliveries of handlers that do not end.
    pub(super) fn take_running(&self) -> Vec<Arc<LeasedJob>> {
        std::mem::take(&mut *lock(&self.running)).into_values().collect()
    }
}
