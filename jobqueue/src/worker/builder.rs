//! Putting a worker together.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tower::{Layer, Service, ServiceExt};

use super::background::{Background, BackgroundContext};
use super::circuit::CircuitBreaker;
use super::dead_letter_hook::DeadLettered;
use super::event::{Event, Events};
use super::hook::Hook;
use super::registry::Registry;
use super::shared::{Options, Shared};
use super::start::Worker;
use crate::claim_check::SweptContainer;
use crate::clock::WITHOUT_END;
use crate::error::{Error, ErrorKind};
use crate::handler::{Handler, Job, JobService, Registration, States};
use crate::job::JobInfo;
use crate::job::outcome::{BoxError, JobError, Verdict};
use crate::queue::QueueCoreOptions;
use crate::settings::SettingOverrides;
use crate::storage::{ExpiredReceipt, MAX_VISIBILITY, Storage};

type Wrap = Arc<dyn Fn(JobService) -> JobService + Send + Sync>;

/// Collects what a worker is made of. Begun by [`Worker::builder`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::{Event, JobError, QueueMessage, State, Storage, Worker};
/// use serde::{Deserialize, Serialize};
/// use std::time::Duration;
///
/// #[derive(Serialize, Deserialize, QueueMessage)]
/// #[message(queue = "mails", kind = "mail")]
/// struct Mail { to: String }
/// #[derive(Clone)]
/// struct Smtp { relay: &'static str }
///
/// async fn deliver(mail: Mail, State(smtp): State<Smtp>) -> Result<(), JobError> {
///     println!("{} by {}", mail.to, smtp.relay);
///     Ok(())
/// }
///
/// let storage = Storage::memory();
/// storage.queue::<Mail>().await?.send(&Mail { to: "ada@example.org".into() }).await?;
/// let worker = Worker::builder(storage)
///     .handle(deliver)
///     .state(Smtp { relay: "mx.example.org" })
///     .concurrency(16)                                     // handlers at once, over all queues
///     .max_run_time(Duration::from_secs(600))              // then a job is cancelled and counts as failed
///     .shutdown_timeout(Duration::from_secs(10))           // what running handlers get to finish
///     .on_event(|event| if let Event::PollFailed { error, .. } = event { eprintln!("{error}") })
///     .build()?;                                           // says what is missing or does not fit
/// let report = worker.run_until_idle().await?;             // in a service: `run()` until SIGTERM
/// assert_eq!(report.completed, 1);
/// # Ok(()) }
/// ```
#[must_use = "a worker is made by `build`"]
pub struct WorkerBuilder {
    storage: Storage,
    states: States,
    repeated_state: Option<&'static str>,
    registrations: Vec<(Option<String>, Registration)>,
    layers: Vec<Wrap>,
    options: Options,
    core: QueueCoreOptions,
    events: Events,
    background: Vec<Background>,
    /// Names of background work, each to be used once.
    names: BTreeSet<String>,
    mistake: Option<Error>,
    hooks: Vec<Arc<dyn Hook>>,
}

impl WorkerBuilder {
    /// `swept` are the containers that a sweep looks at.
    pub(crate) fn new(storage: Storage, hooks: Vec<Arc<dyn Hook>>, swept: &'static [SweptContainer]) -> Self {
        Self {
            storage,
            states: States::default(),
            repeated_state: None,
            registrations: Vec::new(),
            layers: Vec::new(),
            options: Options { swept, ..Options::default() },
            core: QueueCoreOptions::default(),
            events: Events::default(),
            background: Vec::new(),
            names: BTreeSet::new(),
            mistake: None,
            hooks,
        }
    }

    /// Adds a handler for the messages of its type, on the type's own queue.
    pub fn handle<A: 'static, H: Handler<A>>(mut self, handler: H) -> Self {
        self.registrations.push((None, Registration::new(handler)));
        self
    }

    /// Adds a handler for the messages of its type on another queue.
    pub fn handle_on<A: 'static, H: Handler<A>>(mut self, queue: impl Into<String>, handler: H) -> Self {
        self.registrations.push((Some(queue.into()), Registration::new(handler)));
        self
    }

    /// Adds a value that handlers take by [`State`](crate::State). One of each type.
    pub fn state<T: Clone + Send + Sync + 'static>(mut self, state: T) -> Self {
        if self.states.insert(state) {
            self.repeated_state = Some(std::any::type_name::<T>());
        }
        self
    }

    /// Puts a [`tower::Layer`] around every handler; the layer added last is outermost, as in axum.
    ///
    /// The layer sees a [`Job`] and answers `()` or an error. An error of the layer's own, a timeout for instance,
    /// counts as a failed attempt. What it is put around is tower's
    /// [`BoxCloneSyncService<Job, (), BoxError>`](tower::util::BoxCloneSyncService); a layer for any service fits. Layers that call their service twice (tower's `Retry`) do not work: the message is
    /// consumed by the first call; use the queue's own retries.
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<JobService> + Send + Sync + 'static,
        L::Service: Service<Job, Response = ()> + Clone + Send + Sync + 'static,
        <L::Service as Service<Job>>::Future: Send + 'static,
        <L::Service as Service<Job>>::Error: Into<BoxError>,
    {
        self.layers.push(Arc::new(move |inner| JobService::new(layer.layer(inner).map_err(Into::into))));
        self
    }

    /// Sets how many handlers run at once, over all queues. The default is 64. Messages whose handler is done and whose deletion is
    /// under way do not count, up to as many again.
    pub fn concurrency(mut self, jobs: usize) -> Self {
        self.options.concurrency = jobs;
        self
    }

    /// The longest pause between two looks at an empty queue, on storages that cannot ring. The default is 5 seconds; on
    /// Azure each look is a billed transaction.
    pub fn max_idle_delay(mut self, delay: Duration) -> Self {
        self.options.max_idle_delay = delay.clamp(Duration::from_millis(10), WITHOUT_END);
        self
    }

    /// Sets how long a shutdown waits for running handlers before it cancels them. The default is 25 seconds, within the 30 that
    /// orchestrators commonly give.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.options.shutdown_timeout = timeout.min(WITHOUT_END);
        self
    }

    /// Sets how long a handler may go on after its token was cancelled, before its future is dropped. The default is 2 seconds.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.options.cancel_grace = grace.min(WITHOUT_END);
        self
    }

    /// Sets how long a job may run, renewals included; then it is cancelled and counts as failed. The default is 12 hours.
    pub fn max_run_time(mut self, time: Duration) -> Self {
        self.core.max_run_time = time.clamp(Duration::from_millis(100), WITHOUT_END);
        self
    }

    /// The largest payload that is read, in bytes. The default is 32 MiB.
    pub fn max_payload_bytes(mut self, bytes: u64) -> Self {
        self.core.max_payload_bytes = bytes;
        self
    }

    /// The name under which this worker appears in dead letters. The default is `/jobqueue/<program>`. It has no influence on
    /// ownership; two workers may have the same.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.core.worker = name.into();
        self
    }

    /// The `source` of the events that handlers of this worker send: a URI reference. The default is `/jobqueue/<program>`. A job is
    /// identified by source and id together; workers whose handlers send the same jobs under the same ids need the same source.
    pub fn source(mut self, source: impl Into<Arc<str>>) -> Self {
        self.core.source = source.into();
        self
    }

    /// Settings that this process prefers to those in the queues' metadata.
    pub fn overrides(mut self, overrides: SettingOverrides) -> Self {
        self.core.overrides = overrides;
        self
    }

    /// Sets how often settings are read again from the queues' metadata. The default is 30 seconds.
    pub fn settings_refresh(mut self, every: Duration) -> Self {
        self.core.settings_refresh = every;
        self
    }

    /// Accepts the success of a handler whose lease has expired, as long as no worker has got the message meanwhile: of one
    /// that held its thread for too long, or ends within the [`cancel_grace`](Self::cancel_grace) after it was told to stop.
    /// A handler that stops before it is done must then return an error. Off by default: an expired lease is lost.
    pub fn late_completion(mut self, accept: bool) -> Self {
        self.core.expired = if accept { ExpiredReceipt::Allow } else { ExpiredReceipt::Refuse };
        self
    }

    /// Asked after every failure what is to happen; `None` leaves it to the error's own verdict. Attempts are bounded by
    /// the poison threshold whatever it says.
    pub fn retry_policy(
        mut self,
        policy: impl Fn(&JobError, &JobInfo) -> Option<Verdict> + Send + Sync + 'static,
    ) -> Self {
        self.options.retry_policy = Some(Arc::new(policy));
        self
    }

    /// Sets when the worker stops fetching from a queue on which everything fails, so that an outage does not burn all attempts;
    /// `None` for never. The default is [`CircuitBreaker::new`].
    pub fn circuit_breaker(mut self, breaker: impl Into<Option<CircuitBreaker>>) -> Self {
        self.options.circuit = breaker.into();
        self
    }

    /// Sets how many messages that are never run — unreadable, not valid, over a bound — go to their dead-letter queues in a second,
    /// over all queues; `None` for as fast as they come. What is over the rate is put back and goes later, which costs no
    /// attempt, so that a flood of rubbish neither crowds out good messages nor empties a queue before anybody notices.
    /// The default is 100. [`run_until_idle`](Worker::run_until_idle) does not wait for it.
    pub fn rejections_per_second(mut self, messages: impl Into<Option<u32>>) -> Self {
        self.options.rejections_per_second = messages.into();
        self
    }

    /// Also records in a blob which jobs are done although their message, or another message of the job, may come: those whose deletion
    /// got no answer, and those with a payload in a blob. Such a message is then not run again after a restart or by another worker
    /// either. Costs a request for each job that is delivered a second time, and two for each with a payload in a blob. Off by default:
    /// this worker remembers the last 10,000 in memory.
    pub fn durable_completions(mut self, record: bool) -> Self {
        self.options.durable_completions = record;
        self
    }

    /// Runs [`sweep`](crate::sweep) with its default options so often, for the first time after this time has passed. Off by
    /// default; one worker of many is enough.
    pub fn sweep_every(mut self, every: Duration) -> Self {
        self.options.sweep_every = Some(every.max(Duration::from_secs(60)));
        self
    }

    /// Calls `listener` for everything the worker does. It must be quick; if it panics, that is logged and work goes on.
    pub fn on_event(mut self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.events.add(listener);
        self
    }

    /// Calls `hook` for each message that this worker has dead-lettered, after its dead letter is stored: to tell somebody, or to note
    /// in the application's own data that the job has failed.
    ///
    /// The hook is called once for most dead letters, but not for all: not if the process dies at that moment, and not for what is
    /// dead-lettered by hand ([`Delivery::dead_letter`](crate::Delivery::dead_letter)); after a crash perhaps twice. What must not be
    /// missed is read from the [dead-letter queue](crate::DeadLetters). A hook has 30 seconds, in which the worker waits for it with
    /// the job's slot; if it panics, that is logged. The hook added last is called last.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{JobError, QueueMessage, Storage, Worker}; use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
    /// # let storage = Storage::memory();
    /// # storage.queue::<Mail>().await?.send(&Mail { to: "nobody".into() }).await?;
    /// let worker = Worker::builder(storage)
    ///     .handle(|_: Mail| async { Err::<(), _>(JobError::dead_letter("no such address")) })
    ///     .on_dead_letter(|dead| async move {
    ///         let job = dead.job.as_ref().map_or("a text that is no job", |job| &job.id);
    ///         eprintln!("{job}, of {}: {} ({})", dead.queue, dead.error, dead.reason);
    ///     })
    ///     .build()?;
    /// let report = worker.run_until_idle().await?;
    /// assert_eq!(report.dead_lettered, 1);
    /// # Ok(()) }
    /// ```
    pub fn on_dead_letter<F>(mut self, hook: impl Fn(DeadLettered) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.options.dead_letter_hooks.add(hook);
        self
    }

    /// Renews leases on the current runtime instead of a thread of its own, and takes the time from `clock`: for tests on
    /// paused time.
    #[cfg(feature = "testing")]
    pub fn virtual_time(mut self, clock: Arc<dyn crate::Clock>) -> Self {
        self.core.clock = clock;
        self.options.renewer_on_this_runtime = true;
        self
    }

    /// Adds work that begins with the worker and is to end when its token fires.
    pub(crate) fn background<F: Future<Output = ()> + Send + 'static>(
        mut self,
        work: impl FnOnce(BackgroundContext) -> F + Send + 'static,
    ) -> Self {
        self.background.push(Box::new(move |context| Box::pin(work(context))));
        self
    }

    /// Makes [`build`](Self::build) fail with `clash` if the name was reserved before.
    pub(crate) fn reserve_name(mut self, name: String, clash: String) -> Self {
        if self.names.insert(name) {
            return self;
        }
        self.mistaken(Error::new(ErrorKind::Configuration, clash))
    }

    /// Makes [`build`](Self::build) fail, so that methods that add things need not.
    pub(crate) fn mistaken(mut self, mistake: Error) -> Self {
        self.mistake.get_or_insert(mistake);
        self
    }

    /// Checks that everything fits together. Nothing is opened yet.
    ///
    /// # Errors
    /// [`Configuration`](ErrorKind::Configuration), with a sentence that says what to change: no handler and no schedule, two handlers for one
    /// kind, state that a handler asks for and nobody gave, a concurrency of zero.
    pub fn build(self) -> Result<Worker, Error> {
        let fail = |text: String| Err(Error::new(ErrorKind::Configuration, text));
        if let Some(mistake) = self.mistake {
            return Err(mistake);
        }
        if let Some(name) = self.repeated_state {
            return fail(format!(
                "state of type `{name}` was given twice; wrap one of them in a type of its own"
            ));
        }
        if self.options.concurrency == 0 {
            return fail("a worker with a concurrency of 0 does nothing; give at least 1".to_owned());
        }
        let lease = self.core.overrides.timeout.unwrap_or(Duration::from_secs(1));
        if lease.is_zero() || lease > MAX_VISIBILITY {
            return fail(format!("a lease of {lease:?} cannot be had; give more than 0 and at most 7 days"));
        }
        if self.registrations.is_empty() && self.background.is_empty() {
            return fail("a worker without handlers and schedules does nothing; add `.handle(…)`".to_owned());
        }
        for (_, registration) in &self.registrations {
            if let Err(error) = (registration.check)(&self.states) {
                let text = format!("the handler for `{}` cannot be called: {error}", registration.kind);
                return fail(text);
            }
        }
        let wrap = |mut registration: Registration| {
            registration.service = self.layers.iter().fold(registration.service, |inner, layer| layer(inner));
            registration
        };
        let registrations = self.registrations.into_iter().map(|(queue, r)| (queue, wrap(r))).collect();
        let registry = Registry::new(registrations)?;
        let states = Arc::new(self.states);
        let shared =
            Shared::new(self.storage, registry, self.options, self.core, states, self.events, self.hooks);
        Ok(Worker::new(shared, self.background))
    }
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder")
            .field("storage", &self.storage)
            .field("registrations", &self.registrations)
            .finish_non_exhaustive()
    }
}
