//! The metadata of queues: in blobs, because that of the service is short and needs the claim Manage.

use std::collections::BTreeMap;

use super::texts::{Beside, metadata_blob};
use jobqueue_storage::QueueName;
use jobqueue_storage::{
    ETag, MAX_METADATA_BYTES, Metadata, Operation, PutBlob, StoreError, StoreErrorKind as Kind,
    get_if_present, put_creating,
};

/// JSON doubles some characters, and adds some per entry.
const MAX_BLOB: u64 = 16 * MAX_METADATA_BYTES as u64;

impl Beside {
    /// Returns the metadata of a queue; `None` if none was ever written.
    pub(super) async fn metadata(&self, queue: &QueueName) -> Result<Option<Metadata>, StoreError> {
        let name = metadata_blob(queue)?;
        let Some(blob) = get_if_present(&*self.blobs, &name, MAX_BLOB).await? else { return Ok(None) };
        let entries: BTreeMap<String, String> = serde_json::from_slice(&blob.data).map_err(|error| {
            StoreError::new(Kind::Corrupt, Operation::QueueMetadata.as_str(), queue)
                .with_detail("the metadata in the blob is not JSON")
                .with_source(error)
        })?;
        Ok(Some(entries.into_iter().collect()))
    }

    /// Returns the tag of the metadata that are there.
    pub(super) async fn metadata_tag(&self, queue: &QueueName) -> Result<Option<ETag>, StoreError> {
        match self.blobs.blob_properties(&metadata_blob(queue)?).await {
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
        put_creating(&*self.blobs, &metadata_blob(queue)?, data.into(), options).await.map(drop)
    }
}
