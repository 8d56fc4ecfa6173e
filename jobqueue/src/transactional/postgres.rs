//! Sends within the caller's own transaction on PostgreSQL.

use jobqueue_postgres::tokio_postgres::Transaction;
use jobqueue_postgres::{create_blob_in, put_in};
use tokio::time::Instant;

use super::{invalid, refuse_announced};
use crate::error::Error;
use crate::message::QueueMessage;
use crate::queue_core::QueueCore;
use crate::send::{self, One, Purpose, SendRequest, Sent};
use crate::storage::TransactionPlace;

impl<M: QueueMessage> SendRequest<One<'_, M>> {
    /// Sends at once, within a transaction of the caller's own on the PostgreSQL database of the storage: the message exists if and only if the transaction
    /// commits. Workers of all processes are notified of the commit.
    ///
    /// ```no_run
    /// # use jobqueue::{Queue, QueueMessage}; use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "welcomes", kind = "welcome")] struct Welcome { user: i64 }
    /// use jobqueue::postgres::tokio_postgres::Client;
    ///
    /// async fn sign_up(client: &mut Client, welcomes: &Queue<Welcome>) -> Result<(), Box<dyn std::error::Error>> {
    ///     let transaction = client.transaction().await?;
    ///     let row = transaction.query_one("INSERT INTO users (name) VALUES ('Ada') RETURNING id", &[]).await?;
    ///     welcomes.send(&Welcome { user: row.get(0) }).in_postgres(&transaction).await?;
    ///     transaction.commit().await?; // the user and the job, or neither
    ///     Ok(())
    /// }
    /// ```
    ///
    /// A message [in order](SendRequest::in_order) takes its position at the send, and holds up the completion of the first job of its key until
    /// the transaction ends: commit soon. The time until the message is visible, and its time to live, count from the send.
    ///
    /// That the transaction is on the database of the storage is not checked: another one with the same schema and queue takes the job. With an
    /// isolation level above `read committed` a send in order can fail with a serialization failure, a retryable error: repeat the transaction.
    /// PostgreSQL refuses `PREPARE TRANSACTION` after a send.
    ///
    /// # Errors
    /// - [`Invalid`](crate::ErrorKind::Invalid): the message is not valid, or its options contradict each other. The storage is not on
    ///   PostgreSQL, or keeps the blob that this message needs elsewhere. A send cannot wait
    ///   ([`when_below`](SendRequest::when_below)) within a transaction.
    /// - [`Storage`](crate::ErrorKind::Storage): the transaction is on a database without the queue, or the server failed.
    ///
    /// After an error roll the transaction back.
    ///
    /// # Cancel safety
    /// If the future is dropped, the transaction may contain the message: roll it back.
    pub async fn in_postgres(self, transaction: &Transaction<'_>) -> Result<Sent, Error> {
        let (queue, message, options, below) = self.into_parts();
        let core = queue.core();
        if below.is_some() {
            return Err(invalid(super::CANNOT_WAIT));
        }
        let prepared = send::prepare(core, message, options, Purpose::One)?;
        send(core, transaction, prepared).await
    }
}

/// Stores a message: its payload's blob, then the message.
async fn send(
    core: &QueueCore,
    transaction: &Transaction<'_>,
    mut prepared: send::Prepared,
) -> Result<Sent, Error> {
    let started = Instant::now();
    let place = core.storage.queues().powers().transaction_place.clone();
    let Some(TransactionPlace::Schema { name: schema, .. }) = &place else {
        return Err(invalid("the storage of the queue is not on PostgreSQL, where this transaction is"));
    };
    refuse_announced(&prepared)?;
    if let Some((reference, data)) = prepared.blob.as_deref() {
        if core.storage.blob_powers().transaction_place != place {
            return Err(invalid(
                "the storage keeps its blobs elsewhere: large payloads cannot be sent in this transaction",
            ));
        }
        let (name, put) = core.claim_checks.blob(reference, prepared.expires)?;
        create_blob_in(transaction, schema, &name, data.clone(), put).await?;
    }
    let outcome = put_in(transaction, schema, &core.name, prepared.take_put()).await?;
    Ok(send::sent_in_transaction(core, prepared, started, outcome.message))
}
