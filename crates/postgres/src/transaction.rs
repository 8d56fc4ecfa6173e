//! Puts, changes and new blobs within the caller's transaction.

use bytes::Bytes;

use crate::arrivals::{NOTIFY, UNNAMED_SENDER, channel};
use crate::blob::{CREATE, CREATE_CONTAINER, check_put};
use crate::database::{Call, check_schema, in_schema};
use crate::driver::{Numbers, OpenTransaction, Value};
use crate::metadata;
use crate::queue::{INSPECT_ONE, PUT_ONE, Put, UPDATE, Update, inspect_one, reason};
use jobqueue_storage::rules::limits;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{
    BlobName, Condition, MessageRef, Operation, PutBlob, PutMessage, PutOutcome, QueueName, StoreError,
    StoreErrorKind, UpdateMessage, Updated,
};

const IS_READ_COMMITTED: &str = "SELECT (pg_catalog.current_setting('transaction_isolation') IN ('read committed', 'read uncommitted'))::int::bigint";

/// Adds a message within the caller's transaction on the database of the store. The message exists if and
/// only if the transaction commits, together with its other writes. Then the workers of all processes are
/// notified.
///
/// `schema` is the schema of the [`Options`](crate::Options), by default `jobqueue`. Its tables must exist.
///
/// Commit soon. The message becomes visible with the commit. Until then, a message of a
/// [group](PutMessage::group) holds up the deletion of the first message of its group, unless a committed
/// message follows that. At the commit the notification takes a lock of the whole database, for which all
/// commits with notifications wait in turn. After a notification PostgreSQL refuses `PREPARE TRANSACTION`.
///
/// The transaction may have any isolation level. Unless it is `read committed`, putting a message of a group
/// can fail with a serialization failure (SQLSTATE 40001), a retryable `Unavailable`, if the first message of
/// the group has changed since the transaction began. Repeat the transaction.
///
/// The function does not check that the transaction is on the database of the store. Another database with
/// the same schema and queue would accept the message.
///
/// ```no_run
/// # async fn order(client: &mut jobqueue_postgres::tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue_postgres::put_in;
/// use jobqueue_storage::PutMessage;
///
/// let transaction = client.transaction().await?;
/// transaction.execute("INSERT INTO orders (id) VALUES (7)", &[]).await?;
/// put_in(&transaction, "jobqueue", &"invoices".parse()?, PutMessage::new("7")).await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `InvalidInput` if [`Options::schema`](crate::Options::schema) would refuse the name of the schema, or an
/// earlier statement of the transaction failed; otherwise the errors of
/// [`QueueStore::put`](jobqueue_storage::QueueStore::put). No error is ambiguous, because nothing takes
/// effect before the commit. After an error of the server, roll the transaction back.
///
/// # Cancel safety
/// If the future is dropped, the transaction may contain the message: roll it back.
pub async fn put_in(
    mut transaction: impl OpenTransaction,
    schema: &str,
    queue: &QueueName,
    message: PutMessage,
) -> Result<PutOutcome, StoreError> {
    limits::check_put(queue, &message)?;
    let (call, messages) = (Call::new(Operation::Put, queue), [message]);
    let put = Put::new(queue, &messages, &Runtime::new());
    let rows = query(&mut transaction, call, schema, PUT_ONE, &put.values_of_one()).await?;
    let outcome = put.outcomes(call, &rows)?.pop().ok_or_else(|| call.refuse(StoreErrorKind::Protocol))?;
    notify(&mut transaction, call, schema, queue).await?;
    Ok(outcome)
}

/// Changes a leased message within the caller's transaction; see [`put_in`]. If the transaction commits, the
/// message has the returned receipt. Otherwise it keeps the former receipt.
///
/// The message is locked until the transaction ends, even beyond its lease: no get returns it, and other
/// changes of it fail with a retryable `Timeout`. The statement waits for a renewal in progress.
///
/// Only a change that ends the lease notifies workers. After other changes, for example for a completion,
/// `PREPARE TRANSACTION` is possible.
///
/// The transaction may have any isolation level. Unless it is `read committed`, its snapshot may be older
/// than the receipt. Then the change fails with a serialization failure, a retryable `Unavailable`. With such
/// a level every other refusal of the receipt is a retryable `Unavailable`, too. Repeat the transaction.
///
/// # Errors
/// `InvalidInput` as for [`put_in`]; otherwise the errors of
/// [`QueueStore::update`](jobqueue_storage::QueueStore::update). Another database than the store's refuses
/// the receipt, unless it is a copy of the store's. No error is ambiguous, because nothing takes effect
/// before the commit. After an error of the server, roll the transaction back.
///
/// # Cancel safety
/// If the future is dropped, the transaction may contain the change: roll it back.
pub async fn update_in(
    mut transaction: impl OpenTransaction,
    schema: &str,
    queue: &QueueName,
    message: &MessageRef,
    change: &UpdateMessage,
) -> Result<Updated, StoreError> {
    limits::check_update(queue, change)?;
    let call = Call::new(Operation::Update, queue);
    let update = Update::new(queue, message, change, &Runtime::new());
    let rows = query(&mut transaction, call, schema, UPDATE, &update.values()).await?;
    if let Some((updated, is_earlier)) = update.outcome(call, &rows)? {
        if is_earlier && change.ends_lease {
            notify(&mut transaction, call, schema, queue).await?;
        }
        return Ok(updated);
    }
    let rows = query(&mut transaction, call, schema, IS_READ_COMMITTED, &[]).await?;
    if !rows.first().is_some_and(|row| call.flag(row, 0).unwrap_or(false)) {
        let detail = "the message may have changed since the transaction began; repeat the transaction";
        return Err(call.refuse(StoreErrorKind::Unavailable).with_detail(detail));
    }
    let rows =
        query(&mut transaction, call, schema, INSPECT_ONE, &inspect_one(queue, &update.offered)).await?;
    let reason = rows.first().and_then(|row| reason(call, queue, row, Some(update.visibility)));
    Err(reason.unwrap_or_else(|| call.refuse(StoreErrorKind::PopReceiptMismatch)))
}

/// Creates a blob within the caller's transaction, and its container if that does not exist; see [`put_in`].
///
/// # Errors
/// `BlobAlreadyExists`; `InvalidInput` if the options have another condition than `IfAbsent`, or a lease;
/// otherwise the errors of [`BlobStore::put_blob`](jobqueue_storage::BlobStore::put_blob).
///
/// # Cancel safety
/// As for [`put_in`].
pub async fn create_blob_in(
    mut transaction: impl OpenTransaction,
    schema: &str,
    blob: &BlobName,
    data: Bytes,
    options: PutBlob,
) -> Result<(), StoreError> {
    check_put(blob, &data, &options)?;
    let call = Call::new(Operation::PutBlob, blob);
    if options.condition != Condition::IfAbsent || options.lease.is_some() {
        let detail = "within a transaction a blob can only be created";
        return Err(call.refuse(StoreErrorKind::InvalidInput).with_detail(detail));
    }
    let (container, name) = (blob.container().as_str(), blob.name());
    let metadata = metadata::to_text(&options.metadata);
    let values = [
        Value::Text(Some(container)),
        Value::Text(Some(name)),
        Value::Text(Some(&metadata)),
        Value::Bytes(Some(&data)),
    ];
    query(&mut transaction, call, schema, CREATE_CONTAINER, &values[..1]).await?;
    let rows = query(&mut transaction, call, schema, CREATE, &values).await?;
    // There is no row if another transaction has just deleted the container.
    let row = rows.first().ok_or_else(|| call.refuse(StoreErrorKind::ContainerNotFound))?;
    let created = call.number_or_null(row, 0)?;
    created.map(drop).ok_or_else(|| call.refuse(StoreErrorKind::BlobAlreadyExists))
}

/// Notifies the workers of all processes when the transaction commits.
async fn notify(
    transaction: &mut impl OpenTransaction,
    call: Call<'_>,
    schema: &str,
    queue: &QueueName,
) -> Result<(), StoreError> {
    let (channel, payload) = (channel(schema), format!("{UNNAMED_SENDER} {queue}"));
    let values = [Value::Text(Some(&channel)), Value::Text(Some(&payload))];
    query(transaction, call, schema, NOTIFY, &values).await.map(drop)
}

/// Runs a statement in the schema, whose name comes from the caller.
async fn query(
    transaction: &mut impl OpenTransaction,
    call: Call<'_>,
    schema: &str,
    text: &str,
    values: &[Value<'_>],
) -> Result<Vec<Numbers>, StoreError> {
    check_schema(schema).map_err(|detail| call.refuse(StoreErrorKind::InvalidInput).with_detail(detail))?;
    let rows = transaction.query(&in_schema(text, schema), values).await;
    // Whatever happened to the statement, the transaction is not committed.
    rows.map_err(|error| call.failed(error).with_ambiguous(false))
}
