//! The handler's view of its delivery: checkpoints, cancellation, queues for further messages.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::handler_output::HandlerOutput;
use super::leased_job::LeasedJob;
use super::progress::{CheckpointOutcome, load_saved, save_progress};
use super::saved::{from_json, json_text, to_json};
use super::state::{DeliveryState, Snooze};
use crate::error::{Error, ErrorKind};
use crate::handler::{ExtractError, FromJob, Job};
use crate::job::JobInfo;
use crate::message::QueueMessage;
use crate::presence::Run;
use crate::queue_core::{Queue, QueueCore, QueueOf};
use crate::storage::Storage;
use crate::sync::{StopToken, lock};

/// The maximum size of a child's result as JSON, in bytes. A continuation reads all results of its batch at once.
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
    /// The run in the worker's record, if it keeps one.
    run: Option<Arc<Run>>,
    /// The output of the handler, which the hooks receive.
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

    /// Returns the context as a [`Job`] carries it.
    pub(super) fn erased(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::<ContextInner>::clone(&self.inner)
    }

    /// Fires the [`token`](Self::token).
    pub(super) fn stop(&self) {
        self.inner.stop.fire();
    }

    /// Returns the facts about the job besides its message.
    pub fn info(&self) -> &JobInfo {
        &self.inner.info
    }

    /// Returns a token that fires when the handler must stop: the lease is lost, the job has exceeded its run time,
    /// an operator has cancelled it, or the worker shuts down and the shutdown timeout has passed. The handler then has the cancel grace to end. Its result
    /// is ignored after a lost lease; otherwise `Ok` still completes the job.
    pub fn token(&self) -> &CancellationToken {
        self.inner.stop.get()
    }

    /// Returns whether [`token`](Self::token) has fired or is about to: the lease has ended by the clock, or the worker stops its handlers.
    /// In a process that was suspended, the handler may continue before the token fires.
    pub fn is_cancelled(&self) -> bool {
        let inner = &self.inner;
        inner.stop.has_fired() || inner.leased_job.lease.loss().is_some() || inner.state.cancel.is_cancelled()
    }

    /// Returns a number that grows with every delivery of this message, also across dead-lettering and redriving.
    ///
    /// Use it to fence effects: a target that keeps the largest number it has seen and refuses smaller ones cannot be
    /// overwritten by a worker that has lost its lease without noticing.
    ///
    /// The number grows, but not always by one. If a sender repeats a send after a lost answer, there can be two
    /// messages under one id; each has its own numbers. On Service Bus without sessions, the delivery after one whose connection was lost
    /// may have the same number, unless the job has saved a checkpoint.
    pub fn fence(&self) -> u64 {
        self.inner.leased_job.fence()
    }

    /// Saves progress with the message and renews the lease. A later attempt reads the latest acknowledged checkpoint
    /// with [`resume`](Self::resume). A large checkpoint is stored in a blob.
    ///
    /// If no answer says whether it is saved, the outcome is [`Unknown`](CheckpointOutcome::Unknown), and the handler need not care: it goes on.
    /// Further checkpoints are not sent until a renewal shows that the lease is held; what was not saved until then is saved with the next
    /// change of the message. Look at the outcome only if something else, such as the deletion of a source, must not happen before the
    /// checkpoint is saved.
    ///
    /// # Errors
    /// [`is_lease_lost`](Error::is_lease_lost): stop, another worker may have the message.
    /// [`TooLarge`](ErrorKind::TooLarge): with the results of steps it has more than 32 MiB, and is not saved.
    /// [`Storage`](ErrorKind::Storage): it is not saved, and the lease is still held; the next change of the message saves it, such as its put-back. If
    /// the storage refuses it for good, as without permission for the blob of a large one, later checkpoints and steps are saved without it, and without
    /// earlier ones that are not saved yet.
    ///
    /// # Cancel safety
    /// If the future is dropped, the checkpoint may or may not be saved; the lease stays intact.
    pub async fn checkpoint<T: Serialize + ?Sized>(&self, progress: &T) -> Result<CheckpointOutcome, Error> {
        save_progress(&self.inner.leased_job, to_json(progress)?).await
    }

    /// Returns the last value that [`checkpoint`](Self::checkpoint) saved in this or an earlier attempt; `None` if
    /// there is none. Sends a request only if the checkpoint is in a blob, and only once.
    ///
    /// # Errors
    /// [`Undecodable`](ErrorKind::Undecodable) if the checkpoint is not a `T`: keep reading what former releases
    /// saved. [`Storage`](ErrorKind::Storage) if its blob cannot be read.
    pub async fn resume<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        load_saved(&self.inner.leased_job).await?.progress().map(from_json).transpose()
    }

    /// Tells people how far the job is: `done` of `total`, 0 if the whole is not known, and a text of at most 200 characters in one line.
    /// The next [record of the worker](crate::WorkerBuilder::presence) shows it, so that it costs no request of its own: call it as often as
    /// you like. It is not kept when the job ends or is tried again; for progress that a later attempt goes on from, see
    /// [`checkpoint`](Self::checkpoint).
    pub fn progress(&self, done: u64, total: u64, text: impl AsRef<str>) {
        if let Some(run) = &self.inner.run {
            run.progress(done, total, text.as_ref());
        }
    }

    /// Opens the queue of `N`, to send messages that follow from this job. They belong to the job's trace.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a bad queue name, [`Storage`](ErrorKind::Storage) if the queue cannot be
    /// opened.
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may have been created; nothing else has changed.
    pub async fn queue<N: QueueMessage>(&self) -> Result<Queue<N>, Error> {
        self.queue_named(N::QUEUE).await
    }

    /// Opens a queue for `N` by another name than the type's, as [`queue`](Self::queue) does.
    ///
    /// # Errors
    /// Those of [`queue`](Self::queue).
    ///
    /// # Cancel safety
    /// That of [`queue`](Self::queue).
    pub async fn queue_named<N: QueueMessage>(&self, name: &str) -> Result<Queue<N>, Error> {
        Ok(Queue::of(self.open(QueueOf::named::<N>(name)).await?))
    }

    pub(crate) fn open<'c>(&'c self, queue: QueueOf<'c>) -> BoxFuture<'c, Result<Arc<QueueCore>, Error>> {
        self.inner.state.core(queue)
    }

    /// Returns the storage of the worker.
    pub fn storage(&self) -> &Storage {
        &self.inner.state.storage
    }

    /// Stops this worker from fetching messages of the job's queue for `wait` from now, or for longer if an earlier
    /// call said so: for a service that all jobs of the queue call and that asks to come back later. Running jobs go
    /// on, and so does this one: return [`JobError::snooze`](crate::JobError::snooze) to run it again afterwards.
    ///
    /// The snooze holds for this worker only, and ends with the process. An operator [pauses](crate::guide::operating#pausing) a queue
    /// for all workers.
    /// [`run_until_idle`](crate::Worker::run_until_idle) does not wait for a queue that is snoozed.
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
        crate::log::info!(queue = %self.inner.info.queue, ?wait, "a handler snoozes the queue for this worker");
        self.inner.snooze.extend(wait);
    }

    /// Sets the result of the job for the [`Batch`](crate::batch::Batch) it belongs to. If it is called several times, the
    /// last call before the handler returns `Ok` wins. Without a batch it has no effect. A result of more than 16 KiB is not kept with the
    /// message: if the end of the job cannot be recorded within a minute, or before a shutdown ends, as in an outage of the storage, the handler
    /// runs again.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if the value cannot be written as JSON, [`TooLarge`](ErrorKind::TooLarge) if
    /// it has more than 1 MiB: store large data in a blob of your own and return its name.
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
