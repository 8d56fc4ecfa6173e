//! The state shared by the deliveries of all queues of a worker.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::completed::Completed;
use super::dead_letter_hook::DeadLetterHooks;
use super::disposition::Rejection;
use super::hook::Hook;
use super::leased_job::LeasedJob;
use crate::clock::WITHOUT_END;
use crate::error::Error;
use crate::event::Observers;
use crate::handler::States;
use crate::job::JobInfo;
use crate::job::outcome::{JobError, Reason, Verdict};
use crate::lease::LeaseRenewer;
use crate::presence::Tracker;
use crate::queue_core::{QueueCore, QueueCoreOptions, QueueOf};
use crate::storage::{QueueName, Storage};
use crate::sync::lock;

/// The application's policy for failed attempts.
pub(crate) type RetryPolicy = Arc<dyn Fn(&JobError, &JobInfo) -> Option<Verdict> + Send + Sync>;

pub(crate) struct DeliveryOptions {
    /// The time that a handler has to end after its token has fired.
    pub(crate) cancel_grace: Duration,
    pub(crate) retry_policy: Option<RetryPolicy>,
    pub(crate) durable_completions: bool,
    pub(crate) dead_letter_hooks: DeadLetterHooks,
}

impl Default for DeliveryOptions {
    fn default() -> Self {
        Self {
            cancel_grace: Duration::from_secs(2),
            retry_policy: None,
            durable_completions: false,
            dead_letter_hooks: DeadLetterHooks::default(),
        }
    }
}

/// The maximum number of queues that stay open for handlers, which may name a queue for each tenant. At the
/// maximum all of them are closed; opening a queue again costs a request.
const MAX_OPEN_QUEUES: usize = 1_000;

pub(crate) struct DeliveryState {
    pub(crate) storage: Storage,
    pub(crate) options: DeliveryOptions,
    pub(crate) states: Arc<States>,
    pub(crate) hooks: Vec<Arc<dyn Hook>>,
    pub(crate) events: Arc<Observers>,
    /// Fires when running handlers must stop.
    pub(crate) cancel: CancellationToken,
    /// The token of [`QueueCoreOptions::settle_now`].
    pub(crate) settle_now: CancellationToken,
    pub(super) completed: Completed,
    queue_options: Mutex<QueueCoreOptions>,
    /// The deliveries whose handlers are running. A shutdown abandons those that do not end in time.
    running: Mutex<BTreeMap<u64, Arc<LeasedJob>>>,
    next_run: AtomicU64,
    /// The queues that handlers send to.
    opened: Mutex<HashMap<QueueName, Arc<OnceCell<Arc<QueueCore>>>>>,
    /// The data of the worker's record; empty if the worker keeps no record.
    pub(crate) tracker: OnceLock<Arc<Tracker>>,
}

impl DeliveryState {
    pub(crate) fn new(
        storage: Storage,
        options: DeliveryOptions,
        queue_options: QueueCoreOptions,
        states: States,
        hooks: Vec<Arc<dyn Hook>>,
    ) -> Self {
        Self {
            events: Arc::clone(storage.observers()),
            storage,
            options,
            states: Arc::new(states),
            hooks,
            cancel: CancellationToken::new(),
            settle_now: queue_options.settle_now.clone(),
            completed: Completed::default(),
            queue_options: Mutex::new(queue_options),
            running: Mutex::default(),
            next_run: AtomicU64::new(0),
            opened: Mutex::default(),
            tracker: OnceLock::new(),
        }
    }

    /// Creates one lease renewer for all queues. If that fails, opening a queue reports the error.
    pub(crate) fn prepare(&self) {
        lock(&self.queue_options).renewer = LeaseRenewer::of(self.storage.runtime()).ok();
    }

    pub(crate) fn renewer(&self) -> Option<LeaseRenewer> {
        lock(&self.queue_options).renewer.clone()
    }

    pub(crate) fn queue_options(&self) -> QueueCoreOptions {
        lock(&self.queue_options).clone()
    }

    /// Returns the open queue, or opens it. Each queue is opened once, unless handlers open more than
    /// [`MAX_OPEN_QUEUES`].
    pub(crate) fn core<'s>(&'s self, queue: QueueOf<'s>) -> BoxFuture<'s, Result<Arc<QueueCore>, Error>> {
        Box::pin(async move {
            let name = QueueName::new(queue.name)?;
            let options = QueueCoreOptions { defaults: queue.defaults, ..self.queue_options() };
            // Callers wait for each other only if they want the same queue.
            let cell = {
                let mut opened = lock(&self.opened);
                if opened.len() >= MAX_OPEN_QUEUES && !opened.contains_key(&name) {
                    opened.clear();
                }
                Arc::clone(opened.entry(name.clone()).or_default())
            };
            let open = || QueueCore::open(&self.storage, name, options);
            cell.get_or_try_init(open).await.map(Arc::clone)
        })
    }

    /// Returns the data of the worker's record, if the worker keeps a record.
    pub(crate) fn tracker(&self) -> Option<&Arc<Tracker>> {
        self.tracker.get()
    }

    /// Returns the rejection of a job that an operator has cancelled; `None` for any other job.
    pub(super) fn cancelled(&self, job: &JobInfo) -> Option<Rejection> {
        let by = self.tracker()?.cancelled_by(job)?;
        Some(Rejection::new(Reason::CANCELLED, format!("cancelled by {by}")))
    }

    /// Registers a running handler until the returned guard is dropped.
    pub(super) fn enter(&self, leased_job: &Arc<LeasedJob>) -> RunningHandler<'_> {
        let number = self.next_run.fetch_add(1, Ordering::Relaxed);
        lock(&self.running).insert(number, Arc::clone(leased_job));
        RunningHandler { state: self, number }
    }

    /// Ends the leases of all running handlers, so that they can no longer complete their jobs.
    pub(crate) fn abandon_running(&self) {
        for leased_job in std::mem::take(&mut *lock(&self.running)).into_values() {
            leased_job.lease.end_transactions();
            leased_job.lease.abandon();
        }
    }
}

pub(super) struct RunningHandler<'s> {
    state: &'s DeliveryState,
    number: u64,
}

impl RunningHandler<'_> {
    /// Records that the handler has ended. Returns false if a shutdown has abandoned its delivery.
    pub(super) fn leave(&self) -> bool {
        lock(&self.state.running).remove(&self.number).is_some()
    }
}

impl Drop for RunningHandler<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The time until which a worker fetches nothing from a queue, because a handler has snoozed the queue.
#[derive(Debug, Default)]
pub(crate) struct Snooze(Mutex<Option<Instant>>);

impl Snooze {
    /// Snoozes the queue for `wait` from now, unless it is already snoozed for longer.
    pub(crate) fn extend(&self, wait: Duration) {
        let until = Instant::now() + wait.min(WITHOUT_END);
        let mut snooze = lock(&self.0);
        *snooze = (*snooze).max(Some(until));
    }

    pub(crate) fn until(&self) -> Option<Instant> {
        lock(&self.0).filter(|until| Instant::now() < *until)
    }
}
