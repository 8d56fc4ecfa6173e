//! Sends and ends of jobs within a transaction of the caller.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, TransactionState};

use super::batch::Batch;
use super::clock::StoreClock;
use super::error::{Applied, Cause, Failure, from_sql};
use super::new_row::NewRow;
use super::receipt::Presented;
use super::{blob, queue, schema};
use jobqueue_storage::rules::limits;
use jobqueue_storage::{
    Blob, BlobName, BlobProperties, MessageRef, Operation, PutBlob, PutMessage, PutOutcome, QueueName,
    StoreError, StoreErrorKind, UpdateMessage, Updated,
};

/// Adds a message within the transaction that is open on the caller's connection to the store's file. The
/// message exists if and only if the transaction commits, together with the transaction's other writes. The
/// commit wakes workers in this and other processes.
///
/// The file must have been opened by [`Options`](super::Options) before, by this or another program. The
/// application's tables live in the same file, under names that do not begin with `jobqueue_`. The caller
/// waits for locks and commits: begin with
/// [`TransactionBehavior::Immediate`](rusqlite::TransactionBehavior::Immediate), set a busy timeout, and
/// commit soon, since the transaction blocks all other writers.
///
/// Leave the connection's `synchronous` at `FULL`, SQLite's default. On macOS set `PRAGMA fullfsync = ON` and
/// `PRAGMA checkpoint_fullfsync = ON`, without which SQLite passes the data only to the disk's cache. With
/// weaker settings, a power cut may lose the commit and leave a log that looks damaged. `PRAGMA user_version`
/// and `application_id` belong to the store: keep the version of your own tables in a table. The time is the
/// store's, if this process has it open, and otherwise the system's. The call changes `last_insert_rowid()`
/// and `changes()` of the connection.
///
/// ```no_run
/// # fn order() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::sqlite::put_in;
/// use jobqueue::storage::PutMessage;
/// use rusqlite::{Connection, TransactionBehavior};
///
/// let mut connection = Connection::open("jobs.db")?;
/// let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
/// transaction.execute("INSERT INTO orders (id) VALUES (?1)", [7])?;
/// put_in(&transaction, &"invoices".parse()?, PutMessage::new("7"))?;
/// transaction.commit()?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`QueueStore::put`](jobqueue_storage::QueueStore::put). `InvalidInput` if the file has no schema or
/// another version of it, or if the transaction does not hold the write lock: it was begun as `Deferred` and
/// has written nothing yet. After an error from SQLite roll the transaction back; after any other error it
/// can continue.
pub fn put_in(
    connection: &Connection,
    queue: &QueueName,
    message: PutMessage,
) -> Result<PutOutcome, StoreError> {
    limits::check_put(queue, &message)?;
    within(connection, Operation::Put, queue, |batch| {
        queue::put(batch, queue, &Arc::new(message)).map(NewRow::outcome)
    })
}

/// Changes a leased message within a transaction of the caller's connection to the store's file; see
/// [`put_in`]. If the transaction commits, the returned receipt is the message's receipt; otherwise the
/// former receipt stays valid.
///
/// # Errors
/// As [`QueueStore::update`](jobqueue_storage::QueueStore::update) and [`put_in`].
pub fn update_in(
    connection: &Connection,
    queue: &QueueName,
    message: &MessageRef,
    change: &UpdateMessage,
) -> Result<Updated, StoreError> {
    limits::check_update(queue, change)?;
    within(connection, Operation::Update, queue, |batch| {
        queue::update(batch, queue, Presented::of(message), change)
    })
}

/// Writes a blob within a transaction of the caller's connection to the store's file; see [`put_in`].
///
/// # Errors
/// As [`BlobStore::put_blob`](jobqueue_storage::BlobStore::put_blob) and [`put_in`].
pub fn put_blob_in(
    connection: &Connection,
    blob: &BlobName,
    data: Bytes,
    options: PutBlob,
) -> Result<BlobProperties, StoreError> {
    blob::check_put(blob, &data, &options)?;
    within(connection, Operation::PutBlob, blob, |batch| {
        blob::create_container(batch, blob.container())?;
        blob::put(batch, blob, &data, &options)
    })
}

/// Reads a blob of at most `max_bytes` bytes within a transaction; see [`put_in`]. Returns `None` if it does
/// not exist.
pub fn get_blob_in(
    connection: &Connection,
    blob: &BlobName,
    max_bytes: u64,
) -> Result<Option<Blob>, StoreError> {
    let read = within(connection, Operation::GetBlob, blob, |batch| {
        let Some(row) = blob::BlobRow::find(batch.connection(), Operation::GetBlob, blob)? else {
            return Ok(None);
        };
        blob::content(batch.connection(), &row, blob, max_bytes, batch.now()).map(Some)
    });
    match read {
        Err(error) if error.kind() == StoreErrorKind::ContainerNotFound => Ok(None),
        read => read,
    }
}

/// Returns whether the connection has an open transaction that holds the write lock, however it began. A
/// deferred transaction that has only read can lose the race for the lock, and then can never write.
pub fn holds_write_lock(connection: &Connection) -> bool {
    let state = connection.transaction_state(Some(rusqlite::MAIN_DB));
    matches!(state, Ok(TransactionState::Write))
}

/// The advice for a transaction without the write lock.
pub const WITHOUT_LOCK: &str = "no transaction is open that holds the write lock: begin it with BEGIN IMMEDIATE, in rusqlite with \
    TransactionBehavior::Immediate (`connection.transaction()` begins as Deferred, which another connection can overtake)";

fn within<T>(
    connection: &Connection,
    operation: Operation,
    subject: &dyn fmt::Display,
    work: impl FnOnce(&mut Batch<'_>) -> Applied<T>,
) -> Result<T, StoreError> {
    schema::require_current(connection, StoreErrorKind::InvalidInput)
        .map_err(|cause| cause.error(operation.as_str(), subject))?;
    if !holds_write_lock(connection) {
        let cause = Cause::new(StoreErrorKind::InvalidInput, WITHOUT_LOCK);
        return Err(cause.error(operation.as_str(), subject));
    }
    let clock = StoreClock::of(connection.path());
    let fail = |cause: Cause| cause.error(operation.as_str(), subject);
    let mut batch = Batch::within(connection, &clock).map_err(fail)?;
    let value = work(&mut batch).map_err(|failure| match failure {
        Failure::Refused(error) => error,
        Failure::Sql(error) => fail(from_sql(error)),
    })?;
    batch.finish().map_err(|error| fail(from_sql(error)))?;
    Ok(value)
}
