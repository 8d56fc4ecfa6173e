//! Sends and completions of jobs within the caller's own transaction on SQLite.

use bytes::Bytes;
use jobqueue_sqlite::rusqlite::Connection;
use tokio::time::Instant;

use super::{CANNOT_WAIT, EFFECT_RECORD, invalid, refuse_announced};
use crate::delivery::Context;
use crate::error::Error;
use crate::queue_core::QueueCore;
use crate::send;
use crate::send::{Prepared, Purpose, SendRequest, Sent, TransactionSend};
use crate::storage::{Blob, BlobName, PutBlob, StoreError, StoreErrorKind, TransactionPlace};
use jobqueue_sqlite::{WITHOUT_LOCK, get_blob_in, holds_write_lock, put_blob_in, put_in, update_in};

impl<T> SendRequest<T> {
    /// Sends within the transaction that is open on `connection`, the caller's own connection to the same
    /// SQLite file: the message exists if and only if the transaction commits. Workers notice the commit. The
    /// call is not async: like the transaction, it runs on the caller's thread.
    ///
    /// A `Transaction` or a `Savepoint` of `rusqlite` is passed by reference, as here, and so is a connection
    /// over the handle of another library: [the guide](crate::guide::other_crates) shows this for sqlx.
    ///
    /// You can pass the returned value to [`cancel`](crate::Queue::cancel) after the commit.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{QueueMessage, Storage}; use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "welcomes", kind = "welcome")] struct Welcome { user: i64 }
    /// # let folder = tempfile::tempdir()?; let path = folder.path().join("app.db");
    /// let storage = Storage::connect(&format!("sqlite:{}", path.display())).await?;
    /// let welcomes = storage.queue::<Welcome>().await?;
    ///
    /// let mut connection = rusqlite::Connection::open(&path)?;
    /// connection.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)", [])?;
    /// let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    /// transaction.execute("INSERT INTO users (name) VALUES ('Ada')", [])?;
    /// welcomes.send(&Welcome { user: transaction.last_insert_rowid() }).in_sqlite(&transaction)?;
    /// transaction.commit()?;                          // the user and the job, or neither
    /// assert_eq!(welcomes.approximate_len().await?, 1);
    ///
    /// let mut transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    /// let savepoint = transaction.savepoint()?;
    /// welcomes.send(&Welcome { user: 2 }).in_sqlite(&savepoint)?;
    /// savepoint.finish()?;                            // rolled back alone, as it was not committed
    /// transaction.commit()?;
    /// assert_eq!(welcomes.approximate_len().await?, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// The call cannot wait, so it writes the message in the [encoding](crate::QueueSettings) that this
    /// process read last: when it opened the queue, or with another send since then. A message [in
    /// order](SendRequest::in_order) takes its position at the send. All other writers of the file, such as
    /// senders, wait for the transaction: commit soon.
    ///
    /// The send inserts rows on `connection`: read `last_insert_rowid()` and `changes()` of your own
    /// statements before it, as here.
    ///
    /// Leave `synchronous` of the connection at `FULL`, and on macOS set `PRAGMA fullfsync = ON` and
    /// `PRAGMA checkpoint_fullfsync = ON`. Otherwise a power cut may undo the commit, and leave a log that
    /// looks damaged.
    ///
    /// # Errors
    /// - [`Invalid`](crate::ErrorKind::Invalid): the message is not valid, or its options contradict each
    ///   other. No transaction is open that holds the write lock: begin it with
    ///   `TransactionBehavior::Immediate`. The transaction belongs to another file than the queue, or the
    ///   storage keeps the blob that this message needs elsewhere. A send cannot wait
    ///   ([`when_below`](SendRequest::when_below)) within a transaction.
    /// - [`Storage`](crate::ErrorKind::Storage): the file has another schema version, the volume is full, or
    ///   SQLite failed.
    ///
    /// After an error, roll the transaction back.
    pub fn in_sqlite(self, connection: &Connection) -> Result<Sent, Error>
    where
        T: TransactionSend,
    {
        let (one, options, below) = self.into_target();
        let core = one.queue().core();
        let blobs = TransactionBlobs::new(core, connection, below)?;
        send(core, &blobs, send::prepare(core, one.message(), options, Purpose::One)?)
    }
}

impl Context {
    /// Completes the job within the transaction that is open on `connection`, the handler's own connection to
    /// the SQLite file of the queue: the job is done if and only if the transaction commits. [The
    /// guide](crate::guide::handlers#completing-a-job-in-your-transaction) says what to do before the call,
    /// and what follows from a commit and a rollback.
    ///
    /// ```
    /// # use jobqueue::{Context, JobError, QueueMessage, Storage, Worker}; use serde::{Deserialize, Serialize};
    /// use jobqueue::sqlite::rusqlite::{Connection, TransactionBehavior};
    ///
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "payments", kind = "payment")] struct Payment { account: i64, cents: i64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?; let path = folder.path().join("app.db");
    /// # let storage = Storage::connect(&format!("sqlite:{}", path.display())).await?;
    /// # Connection::open(&path)?.execute_batch("CREATE TABLE accounts (id INTEGER PRIMARY KEY, cents INTEGER); INSERT INTO accounts VALUES (1, 0)")?;
    /// # storage.queue::<Payment>().await?.send(&Payment { account: 1, cents: 500 }).await?;
    /// # let file = path.clone();
    /// let handler = move |payment: Payment, ctx: Context| {
    ///     let file = file.clone();
    ///     async move {
    ///         // A transaction blocks its thread: in an application it runs in `spawn_blocking`.
    ///         let mut connection = Connection::open(file).map_err(JobError::retry)?;
    ///         let transaction =
    ///             connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(JobError::retry)?;
    ///         // A send that was repeated after a lost answer may have left two messages of the job.
    ///         if ctx.once_in_sqlite(&transaction, "booked")? {
    ///             let book = "UPDATE accounts SET cents = cents + ?1 WHERE id = ?2";
    ///             transaction.execute(book, [payment.cents, payment.account]).map_err(JobError::retry)?;
    ///         }
    ///         ctx.complete_in_sqlite(&transaction)?;
    ///         transaction.commit().map_err(JobError::retry)    // booked once and done, or neither
    ///     }
    /// };
    /// let report = Worker::builder(storage.clone()).handle(handler).build()?.run_until_idle().await?;
    /// assert_eq!(report.completed, 1);
    /// # let cents: i64 = Connection::open(&path)?.query_row("SELECT cents FROM accounts", [], |row| row.get(0))?;
    /// # assert_eq!(cents, 500);
    /// # Ok(()) }
    /// ```
    ///
    /// The call blocks for up to a second if a renewal of the lease has just been made. It changes
    /// `last_insert_rowid()` and `changes()` of the connection, as a send does.
    ///
    /// # Errors
    /// - [`is_lease_lost`](Error::is_lease_lost): another worker may have the job, or an earlier transaction
    ///   has completed it.
    /// - [`is_lease_uncertain`](Error::is_lease_uncertain): the answer to a renewal was lost.
    /// - [`Invalid`](crate::ErrorKind::Invalid): no transaction is open that holds the write lock, the
    ///   transaction is on another file, or the storage keeps a blob that this message needs elsewhere.
    /// - [`TooLarge`](crate::ErrorKind::TooLarge): the result is larger than 16 KiB, or a record has no room.
    /// - [`Conflict`](crate::ErrorKind::Conflict), retryable: another task is saving a checkpoint.
    /// - [`Storage`](crate::ErrorKind::Storage): the file has another schema version, or SQLite failed.
    ///
    /// After an error, roll the transaction back.
    pub fn complete_in_sqlite(&self, connection: &Connection) -> Result<(), Error> {
        let core = &self.leased_job().core;
        let blobs = TransactionBlobs::new(core, connection, None)?;
        let mut end = self.end_in_transaction()?;
        for (name, data, put) in std::mem::take(&mut end.blobs) {
            blobs.put(&name, data, put)?;
        }
        while let Some(pause) = end.answered(update_in(connection, &core.name, end.message(), &end.change))? {
            std::thread::sleep(pause);
        }
        Ok(())
    }

    /// Records an effect within the transaction that is open on `connection`, which may be the transaction
    /// that completes the job. Returns true if the effect must happen in this transaction, false if another
    /// delivery or message of the job has committed it. The record belongs to the job's queue, source and id,
    /// and to `key`. It is kept as long as a record of [`once`](Self::once); only transactions that commit
    /// prolong it. The call changes `last_insert_rowid()` and `changes()` of the connection, as a send does.
    ///
    /// ```no_run
    /// # use jobqueue::{Context, Error}; use jobqueue::sqlite::rusqlite::Transaction;
    /// # fn book(ctx: &Context, transaction: Transaction<'_>) -> Result<(), Box<dyn std::error::Error>> {
    /// if ctx.once_in_sqlite(&transaction, "fee")? {
    ///     transaction.execute("UPDATE accounts SET cents = cents - 100 WHERE id = 1", [])?;
    /// }
    /// transaction.commit()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) and [`Storage`](crate::ErrorKind::Storage) as for
    /// [`complete_in_sqlite`](Self::complete_in_sqlite). After an error, roll the transaction back.
    pub fn once_in_sqlite(&self, connection: &Connection, key: &str) -> Result<bool, Error> {
        let blobs = TransactionBlobs::new(&self.leased_job().core, connection, None)?;
        let (name, put) = self.record_in_transaction(key)?;
        match blobs.put(&name, Bytes::from_static(EFFECT_RECORD), put) {
            Err(error) if error.kind() == StoreErrorKind::BlobAlreadyExists => {
                let record = blobs.get(&name, EFFECT_RECORD.len() as u64)?;
                if let Some(again) = record.and_then(|record| self.prolonged_record(&record)) {
                    blobs.put(&name, Bytes::from_static(EFFECT_RECORD), again)?;
                }
                Ok(false)
            }
            written => Ok(written.map(|()| true)?),
        }
    }
}

/// Stores a message: its payload's blob, then the message.
fn send(core: &QueueCore, blobs: &TransactionBlobs<'_>, mut prepared: Prepared) -> Result<Sent, Error> {
    let started = Instant::now();
    refuse_announced(&prepared)?;
    if let Some((reference, data)) = prepared.blob.as_deref() {
        let (name, put) = core.claim_checks.blob(reference, prepared.expires)?;
        blobs.put(&name, data.clone(), put)?;
    }
    let outcome = put_in(blobs.connection, &core.name, prepared.take_put())?;
    Ok(send::sent_in_transaction(core, prepared, started, outcome.message))
}

/// The blobs of the file to which a transaction belongs.
struct TransactionBlobs<'t> {
    connection: &'t Connection,
    /// True if the storage keeps its blobs in the file of the transaction.
    are_here: bool,
}

impl<'t> TransactionBlobs<'t> {
    /// Returns the blobs of the file of `connection`. Refuses a send that waits until its queue is `below` a
    /// length.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if a send to this queue cannot be part of the transaction.
    fn new(core: &QueueCore, connection: &'t Connection, below: Option<u64>) -> Result<Self, Error> {
        if below.is_some() {
            return Err(invalid(CANNOT_WAIT));
        }
        let file = connection.path().and_then(|path| std::fs::canonicalize(path).ok());
        let here = file.map(|file| TransactionPlace::File(file.into()));
        if here.is_none() || core.storage.queues().powers().transaction_place != here {
            return Err(invalid(
                "the transaction belongs to another file than the queue: a send or the end of a job can be part of a transaction on the SQLite file of its storage only",
            ));
        }
        if !holds_write_lock(connection) {
            return Err(invalid(WITHOUT_LOCK));
        }
        Ok(Self { connection, are_here: core.storage.blob_powers().transaction_place == here })
    }

    fn check(&self, operation: &'static str, blob: &BlobName) -> Result<(), StoreError> {
        if self.are_here {
            return Ok(());
        }
        let text = "the storage keeps its blobs outside the file of this transaction: large payloads and records of effects cannot be \
                    written in it";
        Err(StoreError::new(StoreErrorKind::InvalidInput, operation, blob).with_detail(text))
    }

    fn get(&self, blob: &BlobName, max_bytes: u64) -> Result<Option<Blob>, StoreError> {
        self.check("read blob", blob)?;
        get_blob_in(self.connection, blob, max_bytes)
    }

    fn put(&self, blob: &BlobName, data: Bytes, options: PutBlob) -> Result<(), StoreError> {
        self.check("write blob", blob)?;
        put_blob_in(self.connection, blob, data, options).map(drop)
    }
}
