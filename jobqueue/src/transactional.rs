//! Sends within the caller's own SQLite transaction. Besides `connect`, only this module knows both an adapter and
//! queues.

use rusqlite::Transaction;
use tokio::time::Instant;

use crate::error::{Error, ErrorKind};
use crate::message::QueueMessage;
use crate::queue::{One, Purpose, SendRequest, Sent};
use crate::sqlite::{put_blob_in, put_in};

impl<M: QueueMessage> SendRequest<One<'_, M>> {
    /// Sends at once, within `transaction`, a transaction of the caller's own connection to the same SQLite file: the
    /// message exists if and only if the transaction commits. Workers notice the commit. There is nothing to await:
    /// like the transaction, it runs on the caller's thread.
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
    /// welcomes.send(&Welcome { user: transaction.last_insert_rowid() }).in_transaction(&transaction)?;
    /// transaction.commit()?;                          // the user and the job, or neither
    /// assert_eq!(welcomes.approximate_len().await?, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a message that is not valid, for options that contradict each other, and
    /// for [`in_order`](SendRequest::in_order) and [`when_below`](SendRequest::when_below), which a transaction
    /// cannot provide. Other kinds for a connection to another file or to a file with another schema version, and for
    /// SQLite's own errors. After an error roll the transaction back.
    pub fn in_transaction(self, transaction: &Transaction<'_>) -> Result<Sent, Error> {
        let (queue, message, options, below) = self.into_parts();
        if below.is_some() {
            let text = "a send cannot wait for room in the queue within a transaction; wait before it begins";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let core = queue.core();
        let started = Instant::now();
        let mut prepared = core.prepare(message, options, Purpose::One)?;
        if prepared.announcement.is_some() {
            let text = "a message cannot be sent in order within a transaction: its position would not be part of it";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if let Some((reference, data)) = prepared.blob.take().map(|blob| *blob) {
            let (name, put) = core.claim_checks.blob(&reference, prepared.expires)?;
            put_blob_in(transaction, &name, data, put)?;
        }
        let outcome = put_in(transaction, &core.name, prepared.take_put())?;
        Ok(core.sent_in_transaction(prepared, started, outcome.message))
    }
}
