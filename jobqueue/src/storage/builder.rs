//! Joins the queues of one storage with the blobs of another.

use std::sync::Arc;

use super::{BlobStore, QueueStore, Storage};
use crate::error::{Error, ErrorKind};
use crate::runtime::Runtime;

/// Joins the queues of one storage with the blobs of another.
///
/// All processes that use the queues must use the same blobs: large payloads, leases of leaders, batches and
/// FIFO groups are there. Storages that have different queues under one name must not share blobs, because
/// these records are found by the name of the queue.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::Storage;
///
/// let (fast, durable) = (Storage::memory(), Storage::memory());
/// let storage = Storage::builder().queues_of(&fast).blobs_of(&durable).build()?;
/// assert_eq!(storage.description(), "memory + blobs of memory");
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
#[must_use = "call `build`"]
pub struct StorageBuilder {
    queues: Option<(Arc<dyn QueueStore>, String)>,
    blobs: Option<(Arc<dyn BlobStore>, String)>,
    description: Option<String>,
    /// The runtime of the first storage that gave its queues or blobs.
    runtime: Option<Runtime>,
}

impl Storage {
    /// Returns a builder that joins the queues of one storage with the blobs of another.
    pub fn builder() -> StorageBuilder {
        StorageBuilder::default()
    }
}

impl StorageBuilder {
    jobqueue_storage::setters! {
        /// Sets the queues.
        queues(queues: Arc<dyn QueueStore>) = Some((queues, "queues".to_owned()));
    }

    /// Uses the queues of a storage.
    pub fn queues_of(mut self, storage: &Storage) -> Self {
        self.queues = Some((Arc::clone(storage.queues().store()), storage.description().to_owned()));
        self.runtime = self.runtime.or_else(|| Some(storage.runtime().clone()));
        self
    }

    jobqueue_storage::setters! {
        /// Sets the blobs.
        blobs(blobs: Arc<dyn BlobStore>) = Some((blobs, "another storage".to_owned()));
    }

    /// Uses the blobs of a storage.
    pub fn blobs_of(mut self, storage: &Storage) -> Self {
        self.blobs = Some((Arc::clone(storage.blobs()), storage.description().to_owned()));
        self.runtime = self.runtime.or_else(|| Some(storage.runtime().clone()));
        self
    }

    jobqueue_storage::setters! {
        /// Sets the name for logs; it must not contain secrets.
        description(text some String) => description;
    }

    /// Returns the storage.
    ///
    /// # Errors
    /// [`Configuration`](ErrorKind::Configuration) when the queues or the blobs are missing.
    pub fn build(self) -> Result<Storage, Error> {
        let missing = |half: &str| {
            Error::new(
                ErrorKind::Configuration,
                format!("a storage needs {half}; call `{half}` of the builder"),
            )
        };
        let (queues, of_queues) = self.queues.ok_or_else(|| missing("queues"))?;
        let (blobs, of_blobs) = self.blobs.ok_or_else(|| missing("blobs"))?;
        let description = self.description.unwrap_or_else(|| format!("{of_queues} + blobs of {of_blobs}"));
        Ok(Storage::new(queues, blobs, description).with_runtime(self.runtime.unwrap_or_default()))
    }
}
