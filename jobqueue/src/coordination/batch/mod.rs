//! Batches: many jobs, and a continuation that runs once when all of them are done.
//!
//! # How it works
//! - **No hot blob.** Each child that ends writes its own marker. The child that completes a group of 100
//!   writes the group's marker, and so on up the tree. The end of a child costs one write, and a listing of
//!   at most 100 names, which children that end together share.
//! - **Named, not counted.** Children are announced before they are sent: a record holds their digests, and a
//!   restart compares its children with the record. A token in the headers, valid for this job only,
//!   distinguishes children from events that merely claim to belong to the batch.
//! - **Restartable.** Children have the ids `<batch>/<n>`. A cursor holds the number of children that were
//!   certainly sent, and a restart begins there.
//! - **Copies wait for a record.** If a child was sent twice, one message runs and the other waits. The
//!   record that the child is done, or has handed over to another batch, ends both. The running message
//!   renews its claim; if it cannot for a minute, the other message takes over. The first message runs for 15
//!   seconds without a claim, after a copy that has ended too, if the storage counts deliveries.
//! - **Once.** The end or the handover of a child is recorded before its message is deleted. If the process
//!   crashes in between, the next delivery does not run the handler again, but continues from the record. The
//!   continuation may be put twice: by two children that end together, or by a crash between the put and its
//!   record. Its copies take turns like the copies of a child.
//! - As everywhere, a message is delivered *at least* once.
//!
//! # Limits
//! A [`Worker`](crate::Worker) must run the children: a [`Delivery`](crate::Delivery) that is completed by
//! hand ends no child. A child that expires or is cleared never ends. Nor does a child whose dead letter is
//! purged, unless its batch has [`OnDeadLetters::Continue`]. The batch of such a child waits forever. Give
//! children a time to live only if that is intended.

mod child_requests;
mod children;
mod claim;
pub(crate) mod claimed;
mod continuation;
mod handover;
mod known;
mod ledger;
pub(crate) mod membership;
mod names;
pub(crate) mod overview;
mod progress;
mod results;
mod roster;
mod sweep;
mod turn;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use ledger::Ledger;
use names::BatchId;
use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::message::QueueMessage;
use crate::queue_core::{QueueCore, QueueOf};
use crate::send;
use crate::send::Purpose;
use crate::storage::Storage;
use crate::worker::Context;
use jobqueue_storage::fast::hex::to_hex;

pub use child_requests::{Child, ChildFuture, Children};
pub(crate) use membership::Membership;
pub use progress::BatchProgress;
pub use results::{ChildFailure, ChildResult};
pub use sweep::{BatchSweepOptions, sweep_batches};

/// The beginning of the sources of all batches.
pub(crate) const SOURCES: &str = "/jobqueue/batch";

/// Returns the source of the children and the continuation of a batch. The source is the same for all
/// programs that send the batch, so that a repeated send is the same job, and no other program can guess it.
fn source(secret: &str) -> String {
    // A digest, because sources are shown and the secret must not be.
    format!("{SOURCES}/{}", to_hex(&Sha256::digest(secret)[..8]))
}

/// The effect of a dead-lettered child on its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnDeadLetters {
    /// The batch waits until the child is redriven and completed; if the dead letter is purged, the batch
    /// waits forever.
    #[default]
    Wait,
    /// The child counts as ended; the results of the batch contain the failure.
    Continue,
}

/// A batch whose children are being sent. It sends the children, then the continuation when all of them have
/// ended.
///
/// Use an id that is the same after a restart of the program, and send the same children in the same order.
/// The program can then be interrupted anywhere and restarted, without duplicating a child. Use each id for
/// one batch only.
///
/// A child is identified by its place in the list, with its key and its id if you set them. Between two
/// starts, a new release may rename the kind, raise the version or add and remove members of the payload. A
/// restart with other keys or ids is refused ([`Conflict`](crate::ErrorKind::Conflict)), and so is a JSON
/// payload with the same kind, version and members but other values. Payloads in other formats are not
/// compared: give such children keys.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::{Context, JobError, QueueMessage, Storage, Worker};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, QueueMessage)]
/// #[message(queue = "squares", kind = "square")]
/// struct Square(u64);
/// #[derive(Serialize, Deserialize, QueueMessage)]
/// #[message(queue = "sums", kind = "sum")]
/// struct Sum {}
///
/// async fn square(Square(n): Square, ctx: Context) -> Result<(), JobError> {
///     Ok(ctx.set_result(&(n * n))?)
/// }
/// async fn sum(_: Sum, ctx: Context) -> Result<(), JobError> {
///     let squares = ctx.batch_results::<u64>().await?;
///     assert_eq!(squares.iter().filter_map(|child| child.value()).sum::<u64>(), 14);
///     Ok(())
/// }
///
/// let storage = Storage::memory();
/// let mut batch = storage.batch("squares-1").await?;
/// batch.send_all((1..=3).map(Square)).await?;
/// batch.then(&Sum {}).await?;
/// let report = Worker::builder(storage).handle(square).handle(sum).build()?.run_until_idle().await?;
/// assert_eq!(report.completed, 4);
/// # Ok(()) }
/// ```
#[must_use = "a batch continues only after `then`"]
pub struct Batch {
    storage: Storage,
    id: BatchId,
    on_dead: OnDeadLetters,
    /// The context of the job that sends this batch, if a job does.
    context: Option<Context>,
    /// The number of the next child.
    next: u64,
    /// The number of children that an earlier start has certainly sent.
    sent_before: u64,
    /// The number of children with which an earlier start has sealed the batch.
    sealed: Option<u64>,
    /// True if the batch has ended and was swept, and its sending job sends it again.
    is_swept: bool,
    /// True if the log says that the children have another form than those of an earlier start.
    is_change_logged: bool,
    /// The opened queues, by name.
    opened: BTreeMap<&'static str, Arc<QueueCore>>,
    /// The secret from which the tokens of the children are made, read once.
    secret: Option<String>,
}

impl Storage {
    /// Begins a batch, or continues an interrupted one. The `id` has 1–128 ASCII letters, digits, dashes and
    /// underscores.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for an invalid id, [`Conflict`](crate::ErrorKind::Conflict) for
    /// the id of a batch that was [swept](sweep_batches) in the last year,
    /// [`Storage`](crate::ErrorKind::Storage) if the batch cannot be read.
    pub async fn batch(&self, id: &str) -> Result<Batch, Error> {
        Batch::open(self.clone(), id, None).await
    }
}

impl Context {
    /// Begins a batch within a job, or continues one that an earlier attempt began. The `id` has 1–128 ASCII
    /// letters, digits, dashes and underscores.
    ///
    /// Batches nest: if the job is itself a child of a batch, that child ends when the handler has returned
    /// and the continuation of this batch is done, with the result of that continuation.
    ///
    /// A job that has sent a batch does not send it again for a year after the [sweep](sweep_batches) of the
    /// batch: the children are skipped. A job that runs each month under one id must therefore name the month
    /// in the batch's id.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for an invalid id, [`Conflict`](crate::ErrorKind::Conflict) for
    /// the id of a batch that was swept in the last year, unless this job had sent the batch and it had
    /// ended, [`Storage`](crate::ErrorKind::Storage) if the batch cannot be read.
    pub async fn batch(&self, id: &str) -> Result<Batch, Error> {
        Batch::open(self.storage().clone(), id, Some(self.clone())).await
    }
}

impl Batch {
    fn open(storage: Storage, id: &str, context: Option<Context>) -> BoxFuture<'static, Result<Self, Error>> {
        let id = BatchId::new(id);
        Box::pin(async move {
            let id = id?;
            let ledger = Ledger::new(&storage, id.clone());
            let plan = ledger.plan().await;
            let cursor: Option<u64> = ledger.read(&id.blob("cursor")?).await?;
            // Read last: a sweep writes its tombstone before it removes the rest.
            let swept = ledger.swept(context.as_ref().map(Context::info)).await?;
            let is_swept = swept.is_some();
            let sealed = match swept {
                Some(children) => Some(children),
                None => plan?.map(|plan| plan.children),
            };
            if is_swept {
                crate::log::info!(batch = %id.as_str(), "the job has sent this batch before, which has ended and was swept; it is not sent again");
            }
            let sent_before = sealed.or(cursor).unwrap_or(0);
            let on_dead = OnDeadLetters::default();
            let opened = BTreeMap::new();
            Ok(Self {
                storage,
                id,
                on_dead,
                context,
                next: 0,
                sent_before,
                sealed,
                is_swept,
                is_change_logged: false,
                opened,
                secret: None,
            })
        })
    }

    /// Sets the effect of a dead letter for children that are sent from now on. The default is
    /// [`Wait`](OnDeadLetters::Wait).
    pub fn on_dead_letters(&mut self, policy: OnDeadLetters) -> &mut Self {
        self.on_dead = policy;
        self
    }

    /// Returns the batch's id.
    pub fn id(&self) -> &str {
        self.id.as_str()
    }

    /// Returns the number of children so far, including children that were skipped because an earlier start
    /// had sent them.
    pub fn children(&self) -> u64 {
        self.next
    }

    async fn secret(&mut self) -> Result<String, Error> {
        if let Some(secret) = &self.secret {
            return Ok(secret.clone());
        }
        let ledger = self.ledger();
        let secret = if self.is_swept {
            // Such a batch sends nothing.
            String::new()
        } else if self.sent_before > 0 {
            // The children that were sent carry the secret. With a new one their ends would not count.
            ledger.secret().await?.ok_or_else(|| ledger.swept_during_start())?
        } else {
            ledger.make_secret().await?
        };
        self.secret = Some(secret.clone());
        Ok(secret)
    }

    /// Seals the batch, which then accepts no more children. The `continuation` is sent once when all
    /// children have ended; immediately if they have already ended or if there are none. Its handler reads
    /// the results with [`Context::batch_results`]. If an earlier start has sealed the batch, the
    /// continuation of that start is sent.
    ///
    /// # Errors
    /// - [`Conflict`](crate::ErrorKind::Conflict): an earlier start has sealed the batch with another number
    ///   of children; or the sending job is a child of a batch, and another job has sealed this batch, whose
    ///   continuation ends only the child of that job.
    /// - [`Invalid`](crate::ErrorKind::Invalid) or [`TooLarge`](crate::ErrorKind::TooLarge): the continuation
    ///   breaks a rule of its type, or does not fit into one message.
    /// - [`Storage`](crate::ErrorKind::Storage): the storage failed. Start again.
    ///
    /// # Cancel safety
    /// Dropping the future is an interruption: start again with the same children.
    pub async fn then<C: QueueMessage>(mut self, continuation: &C) -> Result<(), Error> {
        let (core, secret) = self.ready_to_send(None, QueueOf::of::<C>(), None).await?;
        let outer = self.outer().await?;
        let options = self.continuation_options(&secret, outer.as_ref());
        let prepared = send::prepare(&core, continuation, options, Purpose::OneOfMany)?;
        self.seal(&core, prepared, outer).await
    }

    fn ledger(&self) -> Ledger<'_> {
        Ledger::new(&self.storage, self.id.clone())
    }

    /// Opens the queue of a type once.
    async fn core(&mut self, queue: QueueOf<'static>) -> Result<Arc<QueueCore>, Error> {
        let name = queue.name;
        if let Some(core) = self.opened.get(name) {
            return Ok(Arc::clone(core));
        }
        let core = match &self.context {
            Some(context) => context.open(queue).await?,
            None => queue.open(&self.storage).await?,
        };
        self.opened.insert(name, Arc::clone(&core));
        Ok(core)
    }
}

jobqueue_storage::debug_fields! {
    Batch { id = id.as_str(), children = next }
}
