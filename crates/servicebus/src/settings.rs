//! The metadata of queues. They are stored in blobs, because the service's own metadata are short and need
//! the claim Manage.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::texts::QueueBlobs;
use jobqueue_storage::json_blob::{Edit, JsonBlob, Known, is_raced};
use jobqueue_storage::{
    ETag, MAX_METADATA_BYTES, Metadata, Operation, PutBlob, QueueName, StoreError, StoreErrorKind as Kind,
    Tries,
};

/// JSON may double the size of the characters, and adds overhead per entry.
const MAX_METADATA_BLOB_BYTES: u64 = 16 * MAX_METADATA_BYTES as u64;

type Entries = BTreeMap<String, String>;

impl QueueBlobs {
    /// Returns the metadata of a queue; `None` if none were ever written.
    pub(super) async fn metadata(&self, queue: &QueueName) -> Result<Option<Metadata>, StoreError> {
        Ok(self.document(queue)?.read().await?.map(|found| found.value.into_iter().collect()))
    }

    /// Writes the first metadata of a queue. Returns `false` if it has metadata.
    pub(super) async fn create_metadata(
        &self,
        queue: &QueueName,
        all: &Metadata,
    ) -> Result<bool, StoreError> {
        self.document(queue)?.create(&entries(all), self.one_try()).await
    }

    /// Writes the metadata if the stored metadata equal `before`.
    ///
    /// # Errors
    /// `ConditionNotMet` if they do not, and the errors of the blob storage.
    pub(super) async fn replace_metadata(
        &self,
        queue: &QueueName,
        before: &Metadata,
        metadata: &Metadata,
    ) -> Result<(), StoreError> {
        let replace = |found: Option<Entries>| {
            if Metadata::from_iter(found.unwrap_or_default()) == *before {
                Edit::Write(entries(metadata), true)
            } else {
                Edit::Keep(false)
            }
        };
        let replaced = self.document(queue)?.change(Known::Nothing, replace).await?.result;
        let changed = || StoreError::new(Kind::ConditionNotMet, Operation::SetQueueMetadata.as_str(), queue);
        replaced.then_some(()).ok_or_else(changed)
    }

    /// Returns the tag of the stored metadata.
    pub(super) async fn metadata_tag(&self, queue: &QueueName) -> Result<Option<ETag>, StoreError> {
        match self.blobs.blob_properties(&self.metadata_blob(queue)?).await {
            Err(error) if error.is_missing_blob() => Ok(None),
            found => Ok(Some(found?.etag)),
        }
    }

    /// Empties the metadata if they still have this tag. They are not read, so damaged metadata do not
    /// prevent the deletion of their queue.
    pub(super) async fn empty_metadata(&self, queue: &QueueName, tag: ETag) -> Result<(), StoreError> {
        let blob = self.metadata_blob(queue)?;
        match self.blobs.put_blob(&blob, "{}".into(), PutBlob::if_match(tag)).await {
            Err(error) if !is_raced(error.kind()) => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) async fn write_metadata(&self, queue: &QueueName, all: &Metadata) -> Result<(), StoreError> {
        self.document(queue)?.replace(&entries(all), self.one_try()).await.map(drop)
    }

    fn document(&self, queue: &QueueName) -> Result<JsonBlob<Entries>, StoreError> {
        Ok(JsonBlob::new(&self.blobs, &self.runtime, self.metadata_blob(queue)?, MAX_METADATA_BLOB_BYTES))
    }

    /// Returns a limit of a single attempt for a write: the caller repeats it.
    fn one_try(&self) -> Tries {
        Tries::until(&self.runtime, Instant::now(), 0, 0)
    }
}

fn entries(metadata: &Metadata) -> Entries {
    metadata.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
