//! The metadata of queues: in blobs, because that of the service is short and needs the claim Manage.

use std::collections::BTreeMap;

use super::texts::{Beside, is_conflict};
use jobqueue_storage::QueueName;
use jobqueue_storage::{
    Condition, ETag, MAX_METADATA_BYTES, Metadata, Operation, PutBlob, StoreError, StoreErrorKind as Kind,
    get_if_present, put_creating,
};

/// JSON doubles some characters, and adds some per entry.
const MAX_BLOB: u64 = 16 * MAX_METADATA_BYTES as u64;

impl Beside {
    /// Returns the metadata of a queue; `None` if none was ever written.
    pub(super) async fn metadata(&self, queue: &QueueName) -> Result<Option<Metadata>, StoreError> {
        Ok(self.tagged_metadata(queue).await?.map(|(metadata, _)| metadata))
    }

    /// Returns the metadata of a queue with the tag of its blob.
    async fn tagged_metadata(&self, queue: &QueueName) -> Result<Option<(Metadata, ETag)>, StoreError> {
        let name = self.metadata_blob(queue)?;
        let Some(blob) = get_if_present(&*self.blobs, &name, MAX_BLOB).await? else { return Ok(None) };
        let entries: BTreeMap<String, String> = serde_json::from_slice(&blob.data).map_err(|error| {
            StoreError::new(Kind::Corrupt, Operation::QueueMetadata.as_str(), queue)
                .with_detail("the metadata in the blob is not JSON")
                .with_source(error)
        })?;
        Ok(Some((entries.into_iter().collect(), blob.properties.etag)))
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
        let (present, condition) = match self.tagged_metadata(queue).await? {
            Some((present, tag)) => (present, Condition::IfMatch(tag)),
            None => (Metadata::new(), Condition::IfAbsent),
        };
        let changed = || StoreError::new(Kind::ConditionNotMet, Operation::SetQueueMetadata.as_str(), queue);
        if present != *before {
            return Err(changed());
        }
        let options = PutBlob::new().with_condition(condition);
        match self.write_metadata(queue, metadata, options).await {
            Err(error) if is_conflict(&error) => Err(changed()),
            written => written,
        }
    }

    /// Returns the tag of the metadata that are there.
    pub(super) async fn metadata_tag(&self, queue: &QueueName) -> Result<Option<ETag>, StoreError> {
        match self.blobs.blob_properties(&self.metadata_blob(queue)?).await {
            Err(error) if error.is_missing_blob() => Ok(None),
            found => Ok(Some(found?.etag)),
        }
    }

    pub(super) async fn write_metadata(
        &self,
        queue: &QueueName,
        metadata: &Metadata,
        options: PutBlob,
    ) -> Result<(), StoreError> {
        let entries: BTreeMap<_, _> = metadata.iter().collect();
        let data = serde_json::to_vec(&entries).map_err(|error| {
            StoreError::new(Kind::InvalidInput, Operation::SetQueueMetadata.as_str(), queue)
                .with_source(error)
        })?;
        put_creating(&*self.blobs, &self.metadata_blob(queue)?, data.into(), options).await.map(drop)
    }
}
