//! Sends from within the caller's own transaction.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use rusqlite::Transaction;

use super::batch::Batch;
use super::clock::StoreClock;
use super::error::{Applied, Cause, Failure, from_sql};
use super::ids::Ids;
use super::{blob, queue, schema};
use crate::clock::SystemClock;
use crate::name::{BlobName, QueueName};
use crate::storage::rules::limits;
use crate::storage::{
    BlobProperties, Operation, PutBlob, PutMessage, PutOutcome, StoreError, StoreErrorKind,
};

/// Adds a message within a transaction of the caller's own connection to the store's file. The message exists if and
/// only if the transaction commits, together with the transaction's other writes. Workers in this and other processes
/// wake up when it does.
///
/// The file must have been opened by [`Options`](super::Options) before, by this or another program. The application's
/// tables live in the same file, under names that do not begin with `jobqueue_`. The caller waits for locks and
/// commits: begin with [`TransactionBehavior::Immediate`](rusqlite::TransactionBehavior::Immediate), set a busy
/// timeout, and commit soon, since nobody else can write meanwhile. Leave the connection's `synchronous` at `FULL`,
/// SQLite's default: with less, a power cut may lose the commit and leave a log that looks damaged. The time is the
/// system's.
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
/// Those of [`QueueStore::put`](crate::storage::QueueStore::put), and `InvalidInput` when the file has no schema or
/// another one, or when the transaction was not begun as `Immediate` and another connection was faster to write. After an error from SQLite roll the transaction back; after any other it can continue.
pub fn put_in(
    transaction: &Transaction<'_>,
    queue: &QueueName,
    message: PutMessage,
) -> Result<PutOutcome, StoreError> {
    limits::check_put(queue, &message)?;
    within(transaction, Operation::Put, queue, |batch| {
        queue::put(batch, queue, &Arc::new(message)).map(queue::NewRow::outcome)
    })
}

/// Writes a blob within a transaction of the caller's own connection to the store's file; see [`put_in`].
///
/// # Errors
/// Those of [`BlobStore::put_blob`](crate::storage::BlobStore::put_blob), and those of [`put_in`].
pub fn put_blob_in(
    transaction: &Transaction<'_>,
    blob: &BlobName,
    data: Bytes,
    options: PutBlob,
) -> Result<BlobProperties, StoreError> {
    blob::check_put(blob, &data, &options)?;
    within(transaction, Operation::PutBlob, blob, |batch| {
        blob::create_container(batch, blob.container())?;
        blob::put(batch, blob, &data, &options)
    })
}

fn within<T>(
    transaction: &Transaction<'_>,
    operation: Operation,
    subject: &dyn fmt::Display,
    work: impl FnOnce(&mut Batch<'_>) -> Applied<T>,
) -> Result<T, StoreError> {
    schema::require_current(transaction).map_err(|cause| cause.error(operation.as_str(), subject))?;
    let clock = StoreClock::new(Arc::new(SystemClock));
    let result =
        Batch::begin(transaction, &clock, Ids::one_by_one()).map_err(Failure::Sql).and_then(|mut batch| {
            let value = work(&mut batch)?;
            batch.finish()?;
            Ok(value)
        });
    result.map_err(|failure| match failure {
        Failure::Refused(error) => error,
        // A transaction that was begun as Immediate has the lock already.
        Failure::Sql(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => {
            let detail = "the transaction cannot write any more, since another connection writes or has written; begin it \
                          with TransactionBehavior::Immediate, roll this one back and try again";
            Cause::new(StoreErrorKind::InvalidInput, detail).error(operation.as_str(), subject)
        }
        Failure::Sql(error) => from_sql(error).error(operation.as_str(), subject),
    })
}
