//! Runs a handler once, on a queue in memory, and returns the outcome.
//!
//! The message goes through the codec, the envelope, a storage in memory and the worker, as in production. So
//! the test also fails if the message breaks the rules of its type or cannot be encoded.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::__internals::{is_of_another_kind, read_text};
use jobqueue::handler::Handler;
use jobqueue::storage::{
    ExpiredReceipt, GetMessages, LeasedMessage, MAX_MESSAGES, MessageRef, UpdateMessage,
};
use jobqueue::worker::{HandlerLimits, RateLimit};
use jobqueue::{
    Error, ErrorKind, Event, Outcome, Queue, QueueMessage, Runtime, SendOptions, Storage, Worker,
    WorkerBuilder, memory,
};
use jobqueue_storage::sync::lock;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// The maximum time to wait for the handler, by tokio's clock.
const RUN_TIMEOUT: Duration = Duration::from_secs(3_600);
/// The time between two looks whether the message is still in the queue.
const LOOK_PERIOD: Duration = Duration::from_secs(5);
/// The period of the rate limit of one run. Without the limit, a message that is visible again at once would
/// be delivered again before the worker stops.
const RUN_PERIOD: Duration = Duration::from_secs(24 * 3_600);

/// Runs `handler` once on `message`, in an otherwise empty storage. For handlers that take state, see
/// [`HandlerTest`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue_testing::run_one;
/// use jobqueue::{Context, JobError, QueueMessage};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize, QueueMessage)]
/// #[message(queue = "orders", kind = "order")]
/// struct Order { number: u32 }
/// #[derive(Debug, PartialEq, Serialize, Deserialize, QueueMessage)]
/// #[message(queue = "invoices", kind = "invoice")]
/// struct Invoice { order: u32 }
///
/// async fn confirm(order: Order, ctx: Context) -> Result<(), JobError> {
///     ctx.queue::<Invoice>().await?.send(&Invoice { order: order.number }).await?;
///     Ok(())
/// }
///
/// let run = run_one(confirm, &Order { number: 7 }).await?;
/// run.assert_completed();
/// assert_eq!(run.sent::<Invoice>().await?, [Invoice { order: 7 }]);
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid) if the message breaks the rules of its type, the handler has not ended
/// within an hour, or another run on the same [storage](HandlerTest::storage) has taken the message;
/// [`Configuration`](ErrorKind::Configuration) if the handler takes state that the test has
/// not added.
///
/// # Cancel safety
/// If the future is dropped, the handler is cancelled.
pub async fn run_one<A: 'static, H: Handler<A>>(handler: H, message: &H::Message) -> Result<OneRun, Error> {
    HandlerTest::new().run_one(handler, message).await
}

/// The queue on which handlers run. It appears in [`JobInfo::queue`](jobqueue::JobInfo::queue).
const QUEUE: &str = "one-run";

/// Runs handlers one by one, with the state and the worker settings that they need.
///
/// Each run has its own empty storage, so that [`OneRun::sent`] returns only the messages of that run, unless
/// [`storage`](Self::storage) sets a common storage.
#[derive(Debug, Clone, Default)]
pub struct HandlerTest {
    steps: Vec<ConfigStep>,
    storage: Option<Storage>,
}

type Configure = Arc<dyn Fn(WorkerBuilder) -> WorkerBuilder + Send + Sync>;

/// A step of the worker's configuration.
#[derive(Clone)]
struct ConfigStep(Configure);

jobqueue_storage::debug_fields! {
    ConfigStep {}
}

impl HandlerTest {
    /// Creates a test without state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value that handlers take by [`State`](jobqueue::State): at most one value of each type.
    #[must_use]
    pub fn state<S: Clone + Send + Sync + 'static>(self, state: S) -> Self {
        self.worker(move |builder| builder.state(state.clone()))
    }

    /// Configures the worker that runs the handler, for example its layers, retry policies and limits. The
    /// test replaces any limit for the message type of the handler, so that the handler runs once.
    #[must_use]
    pub fn worker(
        mut self,
        configure: impl Fn(WorkerBuilder) -> WorkerBuilder + Send + Sync + 'static,
    ) -> Self {
        self.steps.push(ConfigStep(Arc::new(configure)));
        self
    }

    /// Sets the storage of all runs, for example the SQLite file in whose transaction the handler completes
    /// its job. The runs must be sequential: a run first deletes the message that an earlier run has left, also
    /// one that is at work, which then ends as a lost lease. A run whose message another one has taken fails.
    /// Tests that `cargo test` runs at the same time need a storage each, on PostgreSQL a schema.
    /// [`OneRun::sent`] returns messages of earlier runs as well.
    ///
    /// On a paused runtime, use `memory::open_on(Runtime::paused())` and no other storage. A worker on
    /// `Storage::memory()` uses threads, and other storages have clocks of their own: the paused clock runs
    /// ahead while they work, so that delays end early and the test fails at times.
    #[must_use]
    pub fn storage(mut self, storage: Storage) -> Self {
        self.storage = Some(storage);
        self
    }

    /// Runs `handler` once on `message`.
    ///
    /// # Errors
    /// As for [`run_one`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the handler is cancelled.
    pub async fn run_one<A: 'static, H: Handler<A>>(
        &self,
        handler: H,
        message: &H::Message,
    ) -> Result<OneRun, Error> {
        self.run_one_with(handler, message, SendOptions::new()).await
    }

    /// Runs `handler` once on `message`, sent with `options`, for example the headers, the key or the id that
    /// the handler reads from [`JobInfo`](jobqueue::JobInfo).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{JobError, JobInfo, QueueMessage, SendOptions}; use serde::{Deserialize, Serialize};
    /// # use jobqueue_testing::HandlerTest;
    /// # #[derive(Serialize, Deserialize, QueueMessage)] #[message(queue = "orders", kind = "order")] struct Order {}
    /// async fn confirm(_: Order, job: JobInfo) -> Result<(), JobError> {
    ///     let tenant = job.headers.get("tenant").ok_or_else(|| JobError::dead_letter("no tenant"))?;
    ///     // …
    ///     # let _ = tenant;
    ///     Ok(())
    /// }
    ///
    /// let options = SendOptions::new().header("tenant", "blue");
    /// HandlerTest::new().run_one_with(confirm, &Order {}, options).await?.assert_completed();
    /// HandlerTest::new().run_one(confirm, &Order {}).await?.assert_dead_lettered("no tenant");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`run_one`] and for a send with `options`. [`Invalid`](ErrorKind::Invalid) if the options delay
    /// the message for more than an hour.
    ///
    /// # Cancel safety
    /// If the future is dropped, the handler is cancelled.
    pub async fn run_one_with<A: 'static, H: Handler<A>>(
        &self,
        handler: H,
        message: &H::Message,
        options: SendOptions,
    ) -> Result<OneRun, Error> {
        let new = || memory::open_on(Runtime::paused());
        let storage = self.storage.clone().unwrap_or_else(new);
        // A queue other than the type's own: the handler may send messages to that queue, and they must not
        // run.
        let queue: Queue<H::Message> = storage.queue_named(QUEUE).await?;
        queue.clear().await?;
        let sent = queue.send(message).with(options).await?;
        let (end, ended) = oneshot::channel();
        let (end, started) = (Mutex::new(Some(end)), Arc::new(AtomicBool::new(false)));
        let has_started = Arc::clone(&started);
        let report_end = move |event: &Event| match event {
            // Handlers that the steps have added to the worker read other queues.
            Event::Started { job, .. } if job.queue.as_str() == QUEUE => {
                has_started.store(true, Ordering::Release);
            }
            Event::Finished { job, queue, outcome, error, .. } if queue.as_str() == QUEUE => {
                if let Some(end) = lock(&end).take() {
                    let id = job.as_ref().map(|job| Arc::clone(&job.id));
                    // The receiver has been dropped if the run was given up.
                    let _ = end.send(RunEnd { id, outcome: outcome.clone(), error: error.clone() });
                }
            }
            _ => {}
        };
        let builder =
            self.steps.iter().fold(Worker::builder(storage.clone()), |builder, step| step.0(builder));
        let once = HandlerLimits::new().rate(&RateLimit::new(1, RUN_PERIOD));
        let builder = builder.concurrency(1).limit::<H::Message>(once);
        let worker = builder.handle_on(QUEUE, handler).on_event(report_end).build()?;
        let mut end = Err(not_ended());
        let stop = async { end = wait_for_end(&queue, ended, &started).await };
        let _report = worker.run_until(stop).await?;
        let RunEnd { id, outcome, error } = end?;
        if id.is_some_and(|id| *id != *sent.id()) {
            return Err(taken());
        }
        Ok(OneRun { outcome, error, storage })
    }
}

/// The end of a delivery.
struct RunEnd {
    /// The id of the job; `None` if the message could not be read as one.
    id: Option<Arc<str>>,
    outcome: Outcome,
    error: Option<String>,
}

/// Waits for the end of the run, unless two looks find no message in the queue although no handler has
/// started: the second look leaves the time to report an end without a start.
async fn wait_for_end<M: QueueMessage>(
    queue: &Queue<M>,
    mut ended: oneshot::Receiver<RunEnd>,
    started: &AtomicBool,
) -> Result<RunEnd, Error> {
    let (deadline, mut is_gone) = (Instant::now() + RUN_TIMEOUT, false);
    while Instant::now() < deadline {
        if let Ok(end) = timeout(LOOK_PERIOD, &mut ended).await {
            return end.map_err(|_| not_ended());
        }
        let was_gone = is_gone;
        is_gone = queue.approximate_len().await.is_ok_and(|left| left == 0);
        if is_gone && was_gone && !started.load(Ordering::Acquire) {
            return Err(taken());
        }
    }
    Err(not_ended())
}

fn not_ended() -> Error {
    Error::new(ErrorKind::Invalid, "the handler has not ended within an hour")
}

fn taken() -> Error {
    let text = "another run on the same storage has taken the message of this run, or removed it: let the runs follow one another, or give each test a storage, on PostgreSQL a schema, of its own";
    Error::new(ErrorKind::Invalid, text)
}

/// The result of one run of a handler.
#[derive(Debug)]
pub struct OneRun {
    /// The outcome of the delivery.
    pub outcome: Outcome,
    /// The error with its causes in one line, if the run failed.
    pub error: Option<String>,
    storage: Storage,
}

impl OneRun {
    /// Checks that the handler returned `Ok`.
    ///
    /// # Panics
    /// If the run ended otherwise; the text shows its error.
    #[track_caller]
    pub fn assert_completed(&self) {
        let error = self.error.as_deref().unwrap_or("no error");
        assert!(
            self.outcome == Outcome::Completed,
            "the handler ended as `{}`: {error}",
            self.outcome.as_str()
        );
    }

    /// Checks that the attempt failed with an error that contains `part`, and will be retried.
    ///
    /// # Panics
    /// If the run ended otherwise; the text shows its outcome.
    #[track_caller]
    pub fn assert_retried(&self, part: &str) {
        assert!(
            matches!(self.outcome, Outcome::Retried(_)),
            "the handler ended as `{}`",
            self.outcome.as_str()
        );
        self.assert_error(part);
    }

    /// Checks that the handler snoozed, with a cause that contains `part`. Such a run ends as
    /// [`Released`](Outcome::Released); a snooze without a cause has the text `snoozed`.
    ///
    /// # Panics
    /// If the run ended otherwise; the text shows its outcome.
    #[track_caller]
    pub fn assert_snoozed(&self, part: &str) {
        let is_put_back = matches!(self.outcome, Outcome::Released(_));
        assert!(is_put_back, "the handler ended as `{}`: {:?}", self.outcome.as_str(), self.error);
        self.assert_error(part);
    }

    /// Checks that the message was dead-lettered with an error that contains `part`.
    ///
    /// # Panics
    /// If the run ended otherwise; the text shows its outcome.
    #[track_caller]
    pub fn assert_dead_lettered(&self, part: &str) {
        let is_dead = matches!(self.outcome, Outcome::DeadLettered(_));
        assert!(is_dead, "the handler ended as `{}`: {:?}", self.outcome.as_str(), self.error);
        self.assert_error(part);
    }

    #[track_caller]
    fn assert_error(&self, part: &str) {
        let error = self.error.as_deref().unwrap_or_default();
        assert!(error.contains(part), "the error is {error:?}, which does not contain {part:?}");
    }

    /// Returns the messages that the handler sent to the queue of `M`, in the order of sending, and removes
    /// them from the queue. Delayed messages and messages of other kinds stay in the queue: on paused time,
    /// let `tokio::time::sleep` pass the delay before the call. Of messages in order, those behind a message
    /// of another kind in their key stay too, and are returned once that one was taken; the messages of
    /// different keys are in the order in which their turns come.
    ///
    /// # Errors
    /// [`Undecodable`](ErrorKind::Undecodable) if a message is not an event, or cannot be decoded as an `M`.
    /// This message and the messages behind it stay in the queue.
    ///
    /// # Cancel safety
    /// If the future is dropped, the next call does not return the messages that were already taken.
    pub async fn sent<M: QueueMessage>(&self) -> Result<Vec<M>, Error> {
        let queue: Queue<M> = self.storage.queue().await?;
        let mut others = Vec::new();
        let sent = self.take_sent(&queue, &mut others).await;
        // Releases the messages in their order, so that they keep it.
        for other in others {
            let visible = UpdateMessage::new(Duration::ZERO);
            self.storage.queues().update(queue.name(), &other, visible).await?;
        }
        sent
    }

    /// Takes all visible messages of a queue. Messages of other kinds stay leased and are added to `others`.
    async fn take_sent<M: QueueMessage>(
        &self,
        queue: &Queue<M>,
        others: &mut Vec<MessageRef>,
    ) -> Result<Vec<M>, Error> {
        let (queues, name) = (self.storage.queues(), queue.name());
        let (mut sent, mut failed) = (Vec::new(), None);
        loop {
            let messages = queues.get(name, GetMessages::new(MAX_MESSAGES, RUN_TIMEOUT)).await?.messages;
            if messages.is_empty() {
                return failed.map_or(Ok(sent), Err);
            }
            for LeasedMessage { message, text, .. } in messages {
                let read = match text {
                    Err(problem) => Err(Error::new(ErrorKind::Undecodable, problem)),
                    Ok(text) if is_of_another_kind::<M>(&text) => {
                        others.push(message);
                        continue;
                    }
                    Ok(text) => read_text(queue, &text).await,
                };
                match read {
                    Ok(read) if failed.is_none() => {
                        sent.push(read);
                        queues.delete(name, &message, ExpiredReceipt::Refuse).await?;
                    }
                    Ok(_) => others.push(message),
                    // This message stays in the queue, and so do the messages behind it.
                    Err(error) => {
                        failed.get_or_insert(error);
                        others.push(message);
                    }
                }
            }
        }
    }

    /// Returns the storage of the run, for further checks.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }
}
