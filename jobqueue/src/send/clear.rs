//! Deletes all messages of a queue, and the records of earlier sends.

use futures_util::future::BoxFuture;

use super::unique::SentRecords;
use crate::error::Error;
use crate::message::QueueMessage;
use crate::queue_core::{Queue, QueueCore};
use crate::storage::StoreErrorKind;

impl<M: QueueMessage> Queue<M> {
    /// Deletes all messages, including the messages of running jobs, and ends the windows of all [unique
    /// work](crate::queue::SendRequest::unique_for) sent before, also of completed jobs.
    ///
    /// Stop the senders of unique work first: work that is sent during this call may keep its window although
    /// its message is deleted, until the queue is cleared again. Jobs in order that are sent during this call
    /// keep their order, or their send fails with a retryable error; a job whose message is deleted holds up
    /// its key for some eight minutes. A sweep deletes the payload blobs later.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the storage fails. Clear the queue again: until then, a job
    /// in order whose message is gone may hold up the next job of its key, for some eight minutes, and
    /// windows of unique work may still be open.
    ///
    /// # Cancel safety
    /// If the future is dropped, all, none or (on shards) some messages may be deleted, and windows of unique
    /// work may still be open. Clear the queue again.
    pub async fn clear(&self) -> Result<(), Error> {
        clear(self.core()).await
    }
}

/// Deletes all messages, the logs of their order, and the records of unique work.
fn clear(core: &QueueCore) -> BoxFuture<'_, Result<(), Error>> {
    Box::pin(async {
        // Listed first, so that jobs sent during the deletion keep their records.
        let sent = SentRecords::of(core).await?;
        let logs = core.groups.stored().await?;
        match core.store().clear(&core.name).await {
            Err(e) if e.kind() != StoreErrorKind::QueueNotFound => return Err(e.into()),
            _ => core.groups.forget(&logs).await?,
        }
        sent.free(core.runtime().now()).await
    })
}
