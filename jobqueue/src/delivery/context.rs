//! The handler's view of its delivery: checkpoints, cancellation, queues for further messages.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::checkpoint::{json_text, to_json};
use super::handler_output::HandlerOutput;
use super::leased_job::LeasedJob;
use super::progress::{CheckpointOutcome, load_saved, save_progress};
use super::state::{DeliveryState, Snooze};
use crate::error::{Error, ErrorKind};
use crate::handler::{ExtractError, FromJob, Job};
use crate::job::JobInfo;
use crate::message::QueueMessage;
use crate::presence::Run;
use crate::queue_core::{Queue, QueueCore, QueueOf};
use crate::storage::Storage;
use crate::sync::{StopToken, lock};

/// The maximum size of a job's result as JSON, in bytes. A continuation reads all results of its batch at
/// once.
const MAX_RESULT_BYTES: usize = 1 << 20;

/// Gives a handler access to its delivery. It is an extractor, and cheap to clone.
///
/// ```
/// # use jobqueue::{Context, JobError, QueueMessage}; use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize, QueueMessage)]
/// # #[message(queue = "imports", kind = "import")] struct Import { rows: u64 }
/// #[derive(Default, Serialize, Deserialize)]
/// struct Progress { row: u64 }
///
/// async fn import(job: Import, ctx: Context) -> Result<(), JobError> {
///     let start: Progress = ctx.resume().await?.unwrap_or_default();   // the last saved checkpoint
///     for row in start.row..job.rows {
///         // … the work of one row …
///         ctx.checkpoint(&Progress { row: row + 1 }).await?;     // a crash costs at most this row
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct Context {
    inner: Arc<ContextInner>,
}

struct ContextInner {
    info: Arc<JobInfo>,
    leased_job: Arc<LeasedJob>,
    state: Arc<DeliveryState>,
    snooze: Arc<Snooze>,
    stop: StopToken,
    /// The run in the worker's record, if the worker keeps a record.
    run: Option<Arc<Run>>,
    output: Mutex<HandlerOutput>,
}

impl Context {
    pub(super) fn new(
        info: Arc<JobInfo>,
        leased_job: Arc<LeasedJob>,
        state: &Arc<DeliveryState>,
        snooze: &Arc<Snooze>,
        run: Option<Arc<Run>>,
    ) -> Self {
        Self {
            inner: Arc::new(ContextInner {
                info,
                leased_job,
                state: Arc::clone(state),
                snooze: Arc::clone(snooze),
                stop: StopToken::default(),
                run,
                output: Mutex::default(),
            }),
        }
    }

    /// Returns the context in the type-erased form that a [`Job`] carries.
    pub(super) fn erased(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::<ContextInner>::clone(&self.inner)
    }

    /// Fires the [`token`](Self::token).
    pub(super) fn stop(&self) {
        self.inner.stop.fire();
    }

    /// Returns the properties of the job besides its message.
    pub fn info(&self) -> &JobInfo {
        &self.inner.info
    }

    /// Returns a token that fires when the handler must stop: the lease is lost, the job has exceeded its run
    /// time, an operator has cancelled it, or the worker is shutting down and the shutdown timeout has
    /// passed. The handler then has the cancel grace to return. Its result is ignored if the lease is lost;
    /// otherwise `Ok` still completes the job.
    pub fn token(&self) -> &CancellationToken {
        self.inner.stop.get()
    }

    /// Returns whether [`token`](Self::token) has fired or is about to fire: the lease has ended by the
    /// clock, or the worker is stopping its handlers. After a process was suspended, its handler may continue
    /// before the token fires.
    pub fn is_cancelled(&self) -> bool {
        let inner = &self.inner;
        inner.stop.has_fired() || inner.leased_job.lease.loss().is_some() || inner.state.cancel.is_cancelled()
    }

    /// Returns a fencing token: a number that grows with every delivery of this message, also across
    /// dead-lettering and redriving.
    ///
    /// A target that keeps the largest number it has seen, and refuses smaller ones, cannot be overwritten by
    /// a worker that has lost its lease without noticing.
    ///
    /// The number may grow by more than one. If a sender repeats a send after a lost answer, two messages can
    /// have the same job id; each has its own numbers. On Service Bus without sessions, a delivery that
    /// follows a lost connection may have the same number as the delivery before it, unless the job has saved
    /// a checkpoint.
    pub fn fence(&self) -> u64 {
        self.inner.leased_job.fence()
    }

    /// Saves progress with the message and renews the lease. A later attempt reads the latest acknowledged
    /// checkpoint with [`resume`](Self::resume). A large checkpoint is stored in a blob.
    ///
    /// If the answer of the storage is lost, the outcome is [`Unknown`](CheckpointOutcome::Unknown). Most
    /// handlers can ignore it and go on: further checkpoints are not sent until a renewal shows that the
    /// lease is held, and the next change of the message saves whatever is not saved by then. Check the
    /// outcome only if an action, such as deleting a source, must not happen before the checkpoint is saved.
    ///
    /// # Errors
    /// [`is_lease_lost`](Error::is_lease_lost): stop, because another worker may have the message.
    /// [`TooLarge`](ErrorKind::TooLarge): the checkpoint would exceed 32 MiB together with the results of
    /// steps, and is not saved. [`Storage`](ErrorKind::Storage): the checkpoint is not saved, and the lease
    /// is still held. The next change of the message, such as its put-back, saves it. If the storage refuses
    /// it permanently, for example because permission for the blob of a large checkpoint is missing, later
    /// checkpoints and steps are saved without it, and without earlier ones that are not saved yet.
    ///
    /// # Cancel safety
    /// If the future is dropped, the checkpoint may or may not be saved; the lease stays intact.
    pub async fn checkpoint<T: Serialize + ?Sized>(&self, progress: &T) -> Result<CheckpointOutcome, Error> {
        save_progress(&self.inner.leased_job, to_json(progress)?).await
    }

    /// Returns the last value that [`checkpoint`](Self::checkpoint) saved in this or an earlier attempt;
    /// `None` if there is none. Sends a request only if the checkpoint is in a blob, and only once per
    /// delivery.
    ///
    /// # Errors
    /// [`Undecodable`](ErrorKind::Undecodable) if the checkpoint is not a `T`: keep reading the forms that
    /// earlier releases saved. [`Storage`](ErrorKind::Storage) if its blob cannot be read.
    pub async fn resume<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        load_saved(&self.inner.leased_job).await?.progress()
    }

    /// Reports progress to operators: `done` of `total` (0 if the total is unknown), and a text of one line,
    /// at most 200 characters. The next [record of the worker](crate::WorkerBuilder::presence) includes it,
    /// so calls send no requests and may be frequent. The progress is discarded when the job ends or is
    /// retried; to resume from it in a later attempt, use [`checkpoint`](Self::checkpoint).
    pub fn progress(&self, done: u64, total: u64, text: impl AsRef<str>) {
        if let Some(run) = &self.inner.run {
            run.progress(done, total, text.as_ref());
        }
    }

    /// Opens the queue of `N`, to send messages that follow from this job. They belong to the job's trace, and
    /// have the [source](crate::WorkerBuilder::source) and the limit of payloads of the worker.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a bad queue name, [`Storage`](ErrorKind::Storage) if the queue
    /// cannot be opened.
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may have been created; nothing else has changed.
    pub async fn queue<N: QueueMessage>(&self) -> Result<Queue<N>, Error> {
        self.queue_named(N::QUEUE).await
    }

    /// Opens a queue for `N` under a name other than the type's. Otherwise like [`queue`](Self::queue).
    ///
    /// # Errors
    /// As for [`queue`](Self::queue).
    ///
    /// # Cancel safety
    /// As for [`queue`](Self::queue).
    pub async fn queue_named<N: QueueMessage>(&self, name: &str) -> Result<Queue<N>, Error> {
        Ok(Queue::of(self.open(QueueOf::named::<N>(name)).await?))
    }

    pub(crate) fn open<'c>(&'c self, queue: QueueOf<'c>) -> BoxFuture<'c, Result<Arc<QueueCore>, Error>> {
        self.inner.state.core(queue)
    }

    /// Returns the storage of the worker. To send, use [`queue`](Self::queue): a queue that the storage opens
    /// has the default source and limits instead of the worker's, and is opened anew at each call.
    pub fn storage(&self) -> &Storage {
        &self.inner.state.storage
    }

    /// Stops this worker from fetching messages of the job's queue for `wait` from now, or for longer if an
    /// earlier call said so. Use it if a service that all jobs of the queue call asks to come back later.
    /// Running jobs continue, including this one: return [`JobError::snooze`](crate::JobError::snooze) to run
    /// it again afterwards.
    ///
    /// The snooze applies to this worker only, and ends with the process. To stop all workers, an operator
    /// [pauses](crate::guide::operating#pausing) the queue. [`run_until_idle`](crate::Worker::run_until_idle)
    /// does not wait for a snoozed queue.
    ///
    /// ```
    /// # use jobqueue::{Context, JobError, QueueMessage}; use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "texts", kind = "text")] struct Text { to: String }
    /// # enum Answer { Accepted, TooManyRequests(std::time::Duration) }
    /// # async fn call_gateway(_: &Text) -> Result<Answer, std::io::Error> { Ok(Answer::Accepted) }
    /// async fn deliver(text: Text, ctx: Context) -> Result<(), JobError> {
    ///     match call_gateway(&text).await? {
    ///         Answer::Accepted => Ok(()),
    ///         Answer::TooManyRequests(retry_after) => {
    ///             ctx.snooze_queue(retry_after);
    ///             Err(JobError::snooze(retry_after))
    ///         }
    ///     }
    /// }
    /// ```
    pub fn snooze_queue(&self, wait: Duration) {
        crate::log::info!(queue = %self.inner.info.queue, wait = %format_args!("{wait:.1?}"), "a handler snoozes the queue for this worker");
        self.inner.snooze.extend(wait);
    }

    /// Sets the result of the job for the [`Batch`](crate::batch::Batch) it belongs to. If it is called
    /// several times, the last call before the handler returns `Ok` wins. Without a batch it has no effect. A
    /// value that JSON writes as `null`, such as `()`, counts as none. A
    /// result of more than 16 KiB is not kept with the message: if the end of the job cannot be recorded
    /// within a minute, or before a shutdown ends, for example during a storage outage, the handler runs
    /// again.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if the value cannot be written as JSON,
    /// [`TooLarge`](ErrorKind::TooLarge) if it exceeds 1 MiB: store large data in your own blob and return
    /// its name.
    pub fn set_result<T: Serialize + ?Sized>(&self, result: &T) -> Result<(), Error> {
        const NO_JSON: &str = "the result cannot be written as JSON";
        let text = json_text(result).map_err(|e| Error::new(ErrorKind::Invalid, NO_JSON).with_source(e))?;
        let raw = RawValue::from_string(text);
        let raw = raw.map_err(|e| Error::new(ErrorKind::Invalid, NO_JSON).with_source(e))?;
        if raw.get().len() > MAX_RESULT_BYTES {
            let text = format!(
                "the result has {} bytes, {MAX_RESULT_BYTES} are allowed; keep it in a blob and return its name",
                raw.get().len()
            );
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        self.output().result = Some(raw);
        Ok(())
    }

    /// Records that another message continues the job after this handler.
    pub(crate) fn hand_over(&self) {
        self.output().handed_over = true;
    }

    pub(super) fn output(&self) -> MutexGuard<'_, HandlerOutput> {
        lock(&self.inner.output)
    }

    pub(crate) fn leased_job(&self) -> &Arc<LeasedJob> {
        &self.inner.leased_job
    }
}

impl FromJob for Context {
    fn from_job(job: &Job) -> Result<Self, ExtractError> {
        let text = "the job was not started by a worker: only handlers of workers have a `Context`; in tests use `run_one`";
        let inner = job.context().ok_or_else(|| ExtractError::new(text))?;
        Ok(Self { inner })
    }
}

jobqueue_storage::debug_fields! {
    Context { info = inner.info }
}
