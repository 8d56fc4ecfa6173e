//! The metadata of queues: in blobs, because that of the service is short and needs the claim Manage.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::texts::Beside;
use jobqueue_storage::json_blob::{Edit, JsonBlob, Known, is_raced};
use jobqueue_storage::{
    ETag, MAX_METADATA_BYTES, Metadata, Operation, PutBlob, QueueName, StoreError, StoreErrorKind as Kind,
    Tries,
};

/// JSON doubles some characters, and adds some per entry.
const MAX_BLOB: u64 = 16 * MAX_METADATA_BYTES as u64;

type Entries = BTreeMap<String, String>;

impl Beside {
    /// Returns the metadata of a queue; `None` if none was ever written.
    pub(super) async fn metadata(&self, queue: &QueueName) -> Result<Option<Metadata>, StoreError> {
        Ok(self.document(queue)?.read().await?.map(|found| found.value.into_iter().collect()))
    }

    /// Writes the first metadata of a queue. Returns false if it has some.
    pub(super) async fn create_metadata(
        &self,
        queue: &QueueName,
        all: &Metadata,
    ) -> Result<bool, StoreError> {
        self.document(queue)?.create(&entries(all), self.one_try()).await
    }

    /// Writes the metadata if it is still `before`.
    ///
    /// # Errors
    /// `ConditionNotMet` if it is not; those of the blobs.
    pub(super) async fn replace_metadata(
        &self,
        queue: &QueueName,
        before: &Metadata,
        metadata: &Metadata,
    ) -> Result<(), StoreError> {
        let replace = |found: Option<Entries>| match Metadata::from_iter(found.unwrap_or_default()) == *before
        {
            true => Edit::Write(entries(metadata), true),
            false => Edit::Keep(false),
        };
        let replaced = self.document(queue)?.change(Known::Nothing, replace).await?.result;
        let changed = || StoreError::new(Kind::ConditionNotMet, Operation::SetQueueMetadata.as_str(), queue);
        replaced.then_some(()).ok_or_else(changed)
    }

    /// Returns the tag of the metadata that are there.
    pub(super) async fn metadata_tag(&self, queue: &QueueName) -> Result<Option<ETag>, StoreError> {
        match self.blobs.blob_properties(&self.metadata_blob(queue)?).await {
            Err(error) if error.is_missing_blob() => Ok(None),
            found => Ok(Some(found?.etag)),
        }
    }

    /// Removes all metadata if they still have this tag. They are not read: damaged ones hold up no deletion of their queue.
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
        Ok(JsonBlob::new(&self.blobs, &self.runtime, self.metadata_blob(queue)?, MAX_BLOB))
    }

    /// Returns the one attempt of a write: its caller repeats it.
    fn one_try(&self) -> Tries {
        Tries::until(&self.runtime, Instant::now(), 0, 0)
    }
}

fn entries(metadata: &Metadata) -> Entries {
    metadata.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
