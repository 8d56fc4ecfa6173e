//! Deletes all messages of a queue, and the records of what was sent.

use futures_util::future::BoxFuture;

use super::unique::SentRecords;
use crate::error::Error;
use crate::message::QueueMessage;
use crate::queue_core::{Queue, QueueCore};
use crate::storage::StoreErrorKind;

impl<M: QueueMessage> Queue<M> {
    /// Deletes all messages, including those of running jobs, and ends the windows of
    /// [unique work](crate::queue::SendRequest::unique_for) that was sent before, also of jobs that are done. Stop the senders of unique work first: what is
    /// sent while this runs may keep its window although its message is deleted, until the queue is cleared again. Jobs in order that are sent
    /// while this runs keep their order, or the send fails with a retryable error; one whose message is deleted holds up its key for some eight minutes. A sweep deletes the payload
    /// blobs later.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the storage fails. Clear the queue again: until then, a job in order whose
    /// message is gone may hold up the next of its key, for some eight minutes, and the windows of unique work stand.
    ///
    /// # Cancel safety
    /// If the future is dropped, all, none or (on shards) some messages may be deleted, and the windows of unique work may
    /// stand. Clear the queue again.
    pub async fn clear(&self) -> Result<(), Error> {
        clear(self.core()).await
    }
}

/// Deletes all messages, the records of their order, and those of unique work.
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
