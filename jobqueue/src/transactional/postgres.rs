//! Sends and completions of jobs within the caller's own transaction on PostgreSQL.

use std::sync::Arc;

use bytes::Bytes;
use jobqueue_postgres::{OpenTransaction, create_blob_in, put_in, update_in};
use tokio::time::{Instant, sleep};

use super::{EFFECT_RECORD, invalid, refuse_announced};
use crate::delivery::Context;
use crate::error::Error;
use crate::queue_core::QueueCore;
use crate::send::{self, Purpose, SendRequest, Sent, TransactionSend};
use crate::storage::{StoreErrorKind, TransactionPlace};

impl<T> SendRequest<T> {
    /// Sends within a transaction of the caller on the PostgreSQL database of the storage: the message exists
    /// if and only if the transaction commits. The commit notifies the workers of all processes.
    ///
    /// A transaction of `tokio-postgres` is passed by reference, as here; [the
    /// guide](crate::guide::postgres#the-driver-of-your-transaction) shows transactions of sqlx and
    /// diesel-async.
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
    /// A message [in order](SendRequest::in_order) takes its position at the send. Until the transaction
    /// ends, it holds up the completion of the last job of its key that others can see: commit soon. It
    /// overlaps until then with all sends of its key: if the first job of the key ends before the commit, a
    /// job that was sent later and committed earlier may run before this one.
    ///
    /// The time until the message is visible, and its time to live, count from the send. The message has the
    /// [encoding](crate::settings::QueueSettings) that this process read last. If that was more than 30
    /// seconds ago, the process reads it again in the background, for later sends.
    ///
    /// The send does not check that the transaction is on the database of the storage: another database with
    /// the same schema and queue takes the job. Above the isolation level `read committed`, a send in order
    /// can fail with a serialization failure, which is retryable: repeat the transaction. PostgreSQL refuses
    /// `PREPARE TRANSACTION` after a send. The send takes numbers of sequences: read `lastval()` of your own
    /// statements before it, or let them return their numbers, as here.
    ///
    /// # Errors
    /// - [`Invalid`](crate::ErrorKind::Invalid): the message is not valid, or its options contradict each
    ///   other. The storage is not on PostgreSQL, or keeps the blob that this message needs elsewhere. A send
    ///   cannot wait ([`when_below`](SendRequest::when_below)) within a transaction.
    /// - [`Storage`](crate::ErrorKind::Storage): the transaction is on a database without the queue, or the
    ///   server failed.
    ///
    /// After an error, roll the transaction back.
    ///
    /// # Cancel safety
    /// If the future is dropped, the transaction may contain the message: roll it back.
    pub async fn in_postgres(self, transaction: impl OpenTransaction) -> Result<Sent, Error>
    where
        T: TransactionSend,
    {
        let (one, options, below) = self.into_target();
        let core = one.queue().core();
        if below.is_some() {
            return Err(invalid(super::CANNOT_WAIT));
        }
        // Reads in the background: the transaction must not wait for another connection.
        drop(core.refresh_settings());
        let prepared = send::prepare(core, one.message(), options, Purpose::One)?;
        send(core, transaction, prepared).await
    }
}

impl Context {
    /// Completes the job within a transaction of the handler on the PostgreSQL database of the queue: the job
    /// is done if and only if the transaction commits. [The
    /// guide](crate::guide::handlers#completing-a-job-in-your-transaction) says what to do before the call,
    /// and what follows from a commit and a rollback.
    ///
    /// ```no_run
    /// # use jobqueue::{Context, JobError, QueueMessage}; use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "payments", kind = "payment")] struct Payment { account: i64, cents: i64 }
    /// # async fn connect() -> Result<jobqueue::postgres::tokio_postgres::Client, jobqueue::postgres::tokio_postgres::Error> { unimplemented!() }
    /// async fn book(payment: Payment, ctx: Context) -> Result<(), JobError> {
    ///     let mut client = connect().await.map_err(JobError::retry)?;      // or one of a pool
    ///     let transaction = client.transaction().await.map_err(JobError::retry)?;
    ///     // A send that was repeated after a lost answer may have left two messages of the job.
    ///     if ctx.once_in_postgres(&transaction, "booked").await? {
    ///         let book = "UPDATE accounts SET cents = cents + $1 WHERE id = $2";
    ///         transaction.execute(book, &[&payment.cents, &payment.account]).await.map_err(JobError::retry)?;
    ///     }
    ///     ctx.complete_in_postgres(&transaction).await?;
    ///     transaction.commit().await.map_err(JobError::retry)              // booked once and done, or neither
    /// }
    /// ```
    ///
    /// After a commit whose answer is lost, return the error. [Running on
    /// PostgreSQL](crate::guide::postgres#completing-a-job-in-your-transaction) says more about lost answers,
    /// isolation levels, savepoints and prepared transactions.
    ///
    /// # Errors
    /// - [`is_lease_lost`](Error::is_lease_lost): another worker may have the job, an earlier transaction has
    ///   completed it, or the transaction (`read committed`) is on another database with the same queue.
    /// - [`is_lease_uncertain`](Error::is_lease_uncertain): the answer to a renewal was lost.
    /// - [`Invalid`](crate::ErrorKind::Invalid): the storage is not on PostgreSQL, or keeps a blob that this
    ///   message needs elsewhere.
    /// - [`TooLarge`](crate::ErrorKind::TooLarge): the result is larger than 16 KiB, or a record has no room.
    /// - [`Conflict`](crate::ErrorKind::Conflict), retryable: another task is saving a checkpoint.
    /// - [`Storage`](crate::ErrorKind::Storage): a serialization failure, a statement of the transaction has
    ///   failed before, the database has no such queue, or the server failed.
    ///
    /// After an error, roll the transaction back. If the handler returns a `Storage` error, the worker treats
    /// it as an outage: the job runs again without the cost of an attempt, for at most a day.
    ///
    /// # Cancel safety
    /// If the future is dropped, the transaction may contain the end of the job: roll it back.
    pub async fn complete_in_postgres(&self, mut transaction: impl OpenTransaction) -> Result<(), Error> {
        let core = &self.leased_job().core;
        let schema = TransactionSchema::of(core)?;
        let mut end = self.end_in_transaction()?;
        for (name, data, put) in std::mem::take(&mut end.blobs) {
            create_blob_in(&mut transaction, schema.for_blob()?, &name, data, put).await?;
        }
        loop {
            let answer =
                update_in(&mut transaction, &schema.name, &core.name, end.message(), &end.change).await;
            match end.answered(answer)? {
                Some(pause) => sleep(pause).await,
                None => return Ok(()),
            }
        }
    }

    /// Records an effect within a transaction of the handler, which may be the transaction that completes the
    /// job. Returns true if the effect must happen in this transaction, false if another delivery or message
    /// of the job has committed it. Waits for a transaction that records the same effect at the same time.
    /// The record belongs to the job's queue, source and id, and to `key`. It is kept as long as a record of
    /// [`once`](Self::once).
    ///
    /// ```no_run
    /// # use jobqueue::Context; use jobqueue::postgres::tokio_postgres::Transaction;
    /// # async fn book(ctx: &Context, transaction: Transaction<'_>) -> Result<(), Box<dyn std::error::Error>> {
    /// if ctx.once_in_postgres(&transaction, "fee").await? {
    ///     transaction.execute("UPDATE accounts SET cents = cents - 100 WHERE id = 1", &[]).await?;
    /// }
    /// transaction.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// The call does not check that the transaction is on the database of the storage.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) and [`Storage`](crate::ErrorKind::Storage) as for
    /// [`complete_in_postgres`](Self::complete_in_postgres). After an error, roll the transaction back.
    ///
    /// # Cancel safety
    /// If the future is dropped, the transaction may contain the record: roll it back.
    pub async fn once_in_postgres(
        &self,
        mut transaction: impl OpenTransaction,
        key: &str,
    ) -> Result<bool, Error> {
        let core = &self.leased_job().core;
        let schema = TransactionSchema::of(core)?;
        let (name, put) = self.record_in_transaction(key)?;
        let record = Bytes::from_static(EFFECT_RECORD);
        match create_blob_in(&mut transaction, schema.for_blob()?, &name, record, put).await {
            Err(error) if error.kind() == StoreErrorKind::BlobAlreadyExists => {
                // The record is prolonged outside the transaction, which can only create blobs and must not
                // wait for another connection. If this fails, the next delivery prolongs the record.
                self.prolong_beside_transaction(name);
                Ok(false)
            }
            created => Ok(created.map(|()| true)?),
        }
    }
}

/// Stores a message: its payload's blob, then the message.
async fn send(
    core: &QueueCore,
    mut transaction: impl OpenTransaction,
    mut prepared: send::Prepared,
) -> Result<Sent, Error> {
    let started = Instant::now();
    let schema = TransactionSchema::of(core)?;
    refuse_announced(&prepared)?;
    if let Some((reference, data)) = prepared.blob.as_deref() {
        let (name, put) = core.claim_checks.blob(reference, prepared.expires)?;
        create_blob_in(&mut transaction, schema.for_blob()?, &name, data.clone(), put).await?;
    }
    let outcome = put_in(transaction, &schema.name, &core.name, prepared.take_put()).await?;
    Ok(send::sent_in_transaction(core, prepared, started, outcome.message))
}

/// The schema of a queue, in which a transaction writes.
struct TransactionSchema {
    name: Arc<str>,
    /// True if the storage keeps its blobs in this schema.
    has_blobs: bool,
}

impl TransactionSchema {
    /// Returns the schema of a queue.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the queue is not on PostgreSQL.
    fn of(core: &QueueCore) -> Result<Self, Error> {
        let place = core.storage.queues().powers().transaction_place.clone();
        let Some(TransactionPlace::Schema { name, .. }) = &place else {
            return Err(invalid("the storage of the queue is not on PostgreSQL, where this transaction is"));
        };
        let has_blobs = core.storage.blob_powers().transaction_place == place;
        Ok(Self { name: Arc::clone(name), has_blobs })
    }

    /// Returns the schema for a blob.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the storage keeps its blobs elsewhere.
    fn for_blob(&self) -> Result<&str, Error> {
        if !self.has_blobs {
            let elsewhere = "the storage keeps its blobs elsewhere: large payloads and records of effects cannot be written in this transaction";
            return Err(invalid(elsewhere));
        }
        Ok(&self.name)
    }
}
