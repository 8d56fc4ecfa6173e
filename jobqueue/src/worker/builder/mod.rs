//! The builder of a worker.

mod build;
mod limits;
mod records;

use std::any::Any;
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tower_layer::Layer;
use tower_service::Service;

use super::background::{Background, BackgroundContext};
use super::options::WorkerOptions;
use super::pacing::CircuitBreaker;
use crate::claim_check::SweptContainer;
use crate::clock::WITHOUT_END;
use crate::delivery::{DeadLettered, DeliveryOptions, Hook};
use crate::error::{Error, ErrorKind};
use crate::event::{Event, Observers};
use crate::handler::{Handler, Job, JobService, Registration, States};
use crate::job::JobInfo;
use crate::job::outcome::{BoxError, JobError, Verdict};
use crate::queue_core::QueueCoreOptions;
use crate::settings::SettingOverrides;
use crate::storage::Storage;

type Wrap = Arc<dyn Fn(JobService) -> JobService + Send + Sync>;

/// Builds a worker. Returned by [`Worker::builder`](crate::Worker::builder).
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
///     .shutdown_timeout(Duration::from_secs(10))           // the time for running handlers to finish
///     .on_event(|event| if let Event::PollFailed { error, .. } = event { eprintln!("{error}") })
///     .build()?;                                           // returns an error that names the mistake
/// let report = worker.run_until_idle().await?;             // in a service: `run_until(shutdown_signal())`
/// assert_eq!(report.completed, 1);
/// # Ok(()) }
/// ```
#[must_use = "a worker is made by `build`"]
pub struct WorkerBuilder {
    storage: Storage,
    states: States,
    registrations: Vec<(Option<String>, Registration)>,
    layers: Vec<Wrap>,
    options: WorkerOptions,
    delivery_options: DeliveryOptions,
    core: QueueCoreOptions,
    events: Observers,
    background: Vec<Background>,
    /// The names of schedules; each name may occur once.
    #[cfg_attr(not(feature = "schedule"), allow(dead_code, reason = "only schedules need it"))]
    names: BTreeSet<String>,
    /// The state that the schedules share.
    #[cfg_attr(not(feature = "schedule"), allow(dead_code, reason = "only schedules need it"))]
    shared: Option<Arc<dyn Any + Send + Sync>>,
    mistake: Option<Error>,
    hooks: Vec<Arc<dyn Hook>>,
}

impl WorkerBuilder {
    /// Returns a builder. `swept` lists the containers that a sweep visits.
    pub(crate) fn new(storage: Storage, hooks: Vec<Arc<dyn Hook>>, swept: &'static [SweptContainer]) -> Self {
        Self {
            storage,
            states: States::default(),
            registrations: Vec::new(),
            layers: Vec::new(),
            options: WorkerOptions { swept, ..WorkerOptions::default() },
            delivery_options: DeliveryOptions::default(),
            core: QueueCoreOptions::default(),
            events: Observers::default(),
            background: Vec::new(),
            names: BTreeSet::new(),
            shared: None,
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
    pub fn handle_on<A: 'static, H: Handler<A>>(self, queue: impl Into<String>, handler: H) -> Self {
        self.register(queue.into(), Registration::new(handler))
    }

    /// Adds a type-erased handler on a queue.
    pub(crate) fn register(mut self, queue: String, registration: Registration) -> Self {
        self.registrations.push((Some(queue), registration));
        self
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Adds a value that handlers extract with [`State`](crate::State). Each type can have one value.
    pub fn state<T: Clone + Send + Sync + 'static>(mut self, state: T) -> Self {
        if self.states.insert(state) {
            let name = std::any::type_name::<T>();
            let text = format!("state of type `{name}` was set twice; wrap one of them in its own type");
            return self.mistaken(Error::new(ErrorKind::Configuration, text));
        }
        self
    }

    /// Wraps every handler in a [layer of tower](tower_layer::Layer). The layer added last is outermost, as
    /// in axum.
    ///
    /// The layer wraps a [`JobService`]; a layer for any service fits. It receives a [`Job`] and returns `()`
    /// or an error. An error of the layer itself, for example a timeout, counts as a failed attempt.
    ///
    /// A layer must not call its service twice, as tower's `Retry` does: the first call consumes the message.
    /// Use the queue's own retries.
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<JobService> + Send + Sync + 'static,
        L::Service: Service<Job, Response = ()> + Clone + Send + Sync + 'static,
        <L::Service as Service<Job>>::Future: Send + 'static,
        <L::Service as Service<Job>>::Error: Into<BoxError>,
    {
        self.layers.push(Arc::new(move |inner| JobService::new(layer.layer(inner))));
        self
    }

    jobqueue_storage::setters! {
        /// Sets the maximum number of handlers that run at the same time, over all queues. The default is 64.
        /// A message whose handler has returned and which is being deleted does not count; there can be as
        /// many of these messages again. [`limit_queue`](Self::limit_queue) says how the queues share the
        /// slots.
        concurrency(jobs: usize) => options.concurrency;

        /// Sets the maximum pause between two requests to an empty queue, on storages that do not announce the
        /// messages of other processes. The default is 5 seconds; on Azure each request is billed.
        max_idle_delay(delay: Duration) => options.max_idle_delay =
            delay.clamp(Duration::from_millis(10), WITHOUT_END);

        /// Sets how long a shutdown waits for running handlers before it cancels them. The default is 25
        /// seconds. If the storage does not answer, the whole shutdown takes up to 18 seconds and the [cancel
        /// grace](Self::cancel_grace) longer: set the limit of an orchestrator to at least this timeout plus
        /// the grace plus 18 seconds. Kubernetes allows 30 seconds unless configured otherwise.
        shutdown_timeout(timeout: Duration) => options.shutdown_timeout = timeout.min(WITHOUT_END);

        /// Sets how long a handler may continue after its token has fired. Then its future is dropped. The
        /// default is 2 seconds.
        ///
        /// A handler whose lease is about to end is dropped before another worker can receive its message,
        /// even if its grace is longer. A handler that blocks its thread cannot be dropped.
        cancel_grace(grace: Duration) => delivery_options.cancel_grace = grace.min(WITHOUT_END);

        /// Sets how long a job may run, lease renewals included, unless its message type declares a
        /// `max_run_time`. After that time the job is cancelled, and the attempt counts as failed. The
        /// default is 12 hours.
        max_run_time(time: Duration) => core.max_run_time =
            time.clamp(Duration::from_millis(100), WITHOUT_END);

        /// Sets the maximum size of a payload that a handler receives, in bytes. The default is 32 MiB. A
        /// larger payload, of up to 256 MiB, is read only to copy it for its dead letter, one payload at a
        /// time.
        max_payload_bytes(bytes: u64) => core.max_payload_bytes;

        /// Sets the name of this worker in dead letters, records, the journal and the dashboard. The default
        /// is `<program>@<host>:<process id>`. The name does not affect the ownership of messages; two
        /// workers may have the same name.
        name(name from Arc<str>) => core.worker;

        /// Sets the `source` of the events that handlers of this worker send: a URI reference of 1 to 1,024
        /// bytes. The default is `/jobqueue/<program>`. Source and id together identify a job: if handlers of
        /// several workers send the same jobs under the same ids, the workers need the same source.
        source(source from Arc<str>) => core.source;

        /// Sets queue settings that take precedence in this process over the settings in the queues'
        /// metadata.
        overrides(overrides: SettingOverrides) => core.overrides;

        /// Sets how often settings are read again from the queues' metadata. The default is 30 seconds.
        settings_refresh(every: Duration) => core.settings_refresh;
    }

    /// Sets a policy that decides about every failure: retry, dead-letter or snooze. If it returns `None`,
    /// the error itself decides. The poison threshold bounds the attempts in either case, but not the snoozes
    /// of the policy, which count no attempt. A [snooze](crate::JobError::snooze) of the handler is not a
    /// failure: the policy is not called.
    pub fn retry_policy(
        mut self,
        policy: impl Fn(&JobError, &JobInfo) -> Option<Verdict> + Send + Sync + 'static,
    ) -> Self {
        self.delivery_options.retry_policy = Some(Arc::new(policy));
        self
    }

    jobqueue_storage::setters! {
        /// Sets when the worker stops fetching from a queue on which every job fails, so that an outage does
        /// not use up all attempts; `None` for no circuit breaker. The default is [`CircuitBreaker::new`].
        circuit_breaker(breaker from Option<CircuitBreaker>) => options.circuit;

        /// Sets how many messages per second may go to their dead-letter queues without having run:
        /// unreadable messages, invalid messages, and messages over a bound. The rate covers all queues;
        /// `None` removes the limit. The default is 100. Jobs that an operator has cancelled do not count.
        ///
        /// A message over the rate is put back and moved later, which costs no attempt. A flood of bad
        /// messages thus neither displaces good messages nor empties a queue before an operator notices.
        /// [`run_until_idle`](crate::Worker::run_until_idle) ignores the rate.
        rejections_per_second(messages from Option<u32>) => options.rejections_per_second;

        /// Records completed jobs in blobs if their message may be delivered again: jobs whose deletion got
        /// no answer or takes longer than a second, and jobs with a payload in a blob. After a restart, and on other workers, such a
        /// message is then not run again.
        ///
        /// This costs a request for each job that is delivered a second time or was redriven (on Service Bus
        /// for every job, because the service may not count a delivery), and two requests for each job with a
        /// payload in a blob. The default is off: the worker remembers the last 10,000 of these jobs in
        /// memory.
        durable_completions(record: bool) => delivery_options.durable_completions;

        /// Runs [`sweep`](crate::maintenance::sweep) with its default options at this interval. The first
        /// sweep comes after a random part of the interval, so that workers that are replaced more often
        /// sweep equally often. The default is never; one of several workers is enough.
        sweep_every(every: Duration) => options.sweep_every = Some(every.max(Duration::from_secs(60)));
    }

    /// Calls `listener` for every [`Event`] of the worker and of the sends of its handlers. The listener must
    /// return quickly. If it panics, the worker logs that and continues. [`Storage::on_event`] also reports
    /// the requests to the storage.
    pub fn on_event(mut self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.events.add(listener);
        self
    }

    /// Calls `hook` for each message that this worker has dead-lettered, after the dead letter is stored. Use
    /// it to send an alert, or to record the failure in the application's own data.
    ///
    /// The hook gets no payload. Let the key or a [header](crate::queue::SendRequest::header) of the job name
    /// what the hook needs, such as the number of an order. A payload is read from the dead-letter queue:
    /// [the guide](crate::guide::dead_letters#notifications) has an example.
    ///
    /// The hook is called once for most dead letters, but not for all: it is not called if the process dies
    /// at that moment, nor for messages that are dead-lettered by hand
    /// ([`Delivery::dead_letter`](crate::Delivery::dead_letter)). After a crash it may be called twice. If no
    /// dead letter may be missed, read the [dead-letter queue](crate::dead_letters::DeadLetters) instead.
    ///
    /// A hook has 30 seconds, and the worker waits for it. After a second in which the message is settled and
    /// hooks run, the job gives its slot to another one if a place among the messages that settle is free. If the hook panics, the worker logs
    /// the panic. Hooks run in the order in which they were added.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{JobError, QueueMessage, Storage, Worker}; use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "mails", kind = "mail")] struct Mail { #[message(key)] to: String }
    /// # let storage = Storage::memory();
    /// # storage.queue::<Mail>().await?.send(&Mail { to: "lost".into() }).header("tenant", "blue").await?;
    /// let worker = Worker::builder(storage)
    ///     .handle(|_: Mail| async { Err::<(), _>(JobError::dead_letter("no such address")) })
    ///     .on_dead_letter(|dead| async move {
    ///         let Some(job) = dead.job else {
    ///             return eprintln!("a text that is no job, of {}: {}", dead.queue, dead.error);
    ///         };
    ///         let (to, tenant) = (job.key.as_deref(), job.headers.get("tenant"));
    ///         eprintln!("mail {} to {to:?} for {tenant:?}: {} ({})", job.id, dead.error, dead.reason);
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
        self.delivery_options.dead_letter_hooks.add(hook);
        self
    }

    /// Adds background work that starts with the worker and must end when the stop token of its context
    /// fires.
    #[cfg_attr(not(feature = "schedule"), allow(dead_code, reason = "only schedules need it"))]
    pub(crate) fn background<F: Future<Output = ()> + Send + 'static>(
        mut self,
        work: impl FnOnce(BackgroundContext) -> F + Send + 'static,
    ) -> Self {
        self.background.push(Box::new(move |context| Box::pin(work(context))));
        self
    }

    /// Returns the state that the background work of this worker shares. Every caller must use the same `T`.
    #[cfg_attr(not(feature = "schedule"), allow(dead_code, reason = "only schedules need it"))]
    pub(crate) fn shared<T: Default + Send + Sync + 'static>(&mut self) -> Arc<T> {
        let known = self.shared.clone().and_then(|shared| shared.downcast::<T>().ok());
        known.unwrap_or_else(|| {
            let new = Arc::<T>::default();
            self.shared = Some(Arc::clone(&new) as Arc<_>);
            new
        })
    }

    /// Reserves a name. [`build`](Self::build) fails with `clash` if the name was reserved before.
    #[cfg_attr(not(feature = "schedule"), allow(dead_code, reason = "only schedules need it"))]
    pub(crate) fn reserve_name(mut self, name: String, clash: String) -> Self {
        if self.names.insert(name) {
            return self;
        }
        self.mistaken(Error::new(ErrorKind::Configuration, clash))
    }

    /// Makes [`build`](Self::build) fail with this error, so that methods of the builder need not return
    /// errors.
    pub(crate) fn mistaken(mut self, mistake: Error) -> Self {
        self.mistake.get_or_insert(mistake);
        self
    }
}

jobqueue_storage::debug_fields! {
    WorkerBuilder { storage, registrations }
}
