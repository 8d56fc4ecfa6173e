//! The progress of a batch, counted from its markers.

use super::ledger::{FAILED, Ledger, Plan, for_each_blob};
use super::names::{BatchId, child_of};
use crate::error::Error;
use crate::storage::Storage;

/// The progress of a [batch](crate::batch::Batch), returned by [`Storage::batch_progress`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BatchProgress {
    /// The number of children that were certainly sent. While the batch is being sent, up to 100 more may
    /// have been.
    pub children: u64,
    /// True if [`then`](crate::batch::Batch::then) has sealed the batch, so that `children` is final.
    pub sealed: bool,
    /// The number of children that are done.
    pub done: u64,
    /// The number of children that were dead-lettered and count as ended
    /// ([`OnDeadLetters::Continue`](crate::batch::OnDeadLetters::Continue)). A child that is redriven stays
    /// in this count until it is done, which replaces its failure. With
    /// [`OnDeadLetters::Wait`](crate::batch::OnDeadLetters::Wait), a dead-lettered child has not ended.
    pub failed: u64,
    /// True if the continuation has run.
    pub finished: bool,
}

impl BatchProgress {
    /// Returns the number of children that have not ended yet.
    pub fn left(&self) -> u64 {
        self.children.saturating_sub(self.done + self.failed)
    }
}

impl Storage {
    /// Returns the progress of the batch with this id, for dashboards and progress bars. Any process can call
    /// it. Returns `None` if the storage has nothing of the batch: it was never begun, no child was sent yet,
    /// or it was [swept](crate::batch::sweep_batches).
    ///
    /// Every child that ends writes its own blob, and the blobs are counted; there is no counter that all
    /// children would have to update. So the reader pays: it reads up to four small blobs and lists the names
    /// of the ended children, 5,000 per request, which is 203 requests for a million children. Azure bills a
    /// listing like a write, about ten times a read ([prices]); call this every few seconds, not in a loop.
    ///
    /// Children that end during the listing may or may not be counted. A child that was counted stays
    /// counted.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{JobError, QueueMessage, Storage, Worker}; use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, QueueMessage)] #[message(queue = "squares", kind = "square")] struct Square(u64);
    /// # #[derive(Serialize, Deserialize, QueueMessage)] #[message(queue = "sums", kind = "sum")] struct Sum {}
    /// # async fn square(_: Square) -> Result<(), JobError> { Ok(()) }
    /// # let storage = Storage::memory();
    /// let mut batch = storage.batch("squares-1").await?;
    /// batch.send_all((1..=3).map(Square)).await?;
    /// batch.then(&Sum {}).await?;
    /// # let _ = Worker::builder(storage.clone()).handle(square).build()?.run_until_idle().await?;
    /// if let Some(progress) = storage.batch_progress("squares-1").await? {
    ///     println!("{} of {}, {} failed", progress.done, progress.children, progress.failed);
    /// #   assert_eq!((progress.done, progress.left(), progress.finished), (3, 0, false));
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// [prices]: https://azure.microsoft.com/pricing/details/storage/blobs/
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for an invalid id, [`Storage`](crate::ErrorKind::Storage) if
    /// the batch cannot be read.
    pub async fn batch_progress(&self, id: &str) -> Result<Option<BatchProgress>, Error> {
        let found = read(&Ledger::new(self, BatchId::new(id)?), |_| {}).await?;
        Ok(found.map(|(progress, _)| progress))
    }
}

/// Returns the progress of a batch, and its plan if it is sealed. Calls `ended` with the name of the marker
/// of each child that has ended. Returns `None` if the storage has nothing of the batch.
pub(super) async fn read(
    ledger: &Ledger<'_>,
    mut ended: impl FnMut(&str),
) -> Result<Option<(BatchProgress, Option<Plan>)>, Error> {
    // Read before the children are counted, so that a batch is never shown as finished with children left.
    let finished = ledger.has_continued().await?;
    let plan = ledger.plan().await?;
    let cursor: Option<u64> = ledger.read(&ledger.id.blob("cursor")?).await?;
    let (mut done, mut failed) = (0, 0);
    for_each_blob(ledger.storage, &format!("{}/0/", ledger.id.as_str()), |name, properties| {
        // A start that ran concurrently with the sealing start may have sent more children.
        if plan.as_ref().zip(child_of(name)).is_some_and(|(plan, index)| index >= plan.children) {
            return;
        }
        if properties.metadata.get(FAILED).is_some() {
            failed += 1;
        } else {
            done += 1;
        }
        ended(name);
    })
    .await?;
    if plan.is_none() && cursor.is_none() && done + failed == 0 {
        return Ok(None);
    }
    let sealed = plan.as_ref().map(|plan| plan.children);
    // A child may end before the cursor has passed it.
    let children = sealed.unwrap_or_else(|| cursor.unwrap_or(0).max(done + failed));
    let progress = BatchProgress { children, sealed: sealed.is_some(), done, failed, finished };
    Ok(Some((progress, plan)))
}
