//! The seven methods of a blob store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use jobqueue::clock::Clock;
use jobqueue::storage::rules::limits;
use jobqueue::storage::{
    Blob, BlobListing, BlobName, BlobProperties, BlobStore, Condition, ContainerName, ETag, LeaseId,
    Operation, PutBlob, StoreError, StoreErrorKind as Kind,
};

type Container = BTreeMap<String, Blob>;

/// Blobs in memory, without leases.
#[derive(Debug)]
pub struct PlainBlobs {
    clock: Arc<dyn Clock>,
    containers: Mutex<BTreeMap<ContainerName, Container>>,
}

impl PlainBlobs {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, containers: Mutex::default() }
    }

    fn on<T>(
        &self,
        operation: Operation,
        name: &ContainerName,
        action: impl FnOnce(&mut Container) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut containers = self.containers.lock().unwrap();
        let missing = || StoreError::new(Kind::ContainerNotFound, operation.as_str(), name);
        action(containers.get_mut(name).ok_or_else(missing)?)
    }
}

#[async_trait]
impl BlobStore for PlainBlobs {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.containers.lock().unwrap().entry(container.clone()).or_default();
        Ok(())
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.on(Operation::DeleteContainer, container, |_| Ok(()))?;
        self.containers.lock().unwrap().remove(container);
        Ok(())
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        limits::check_metadata(Operation::PutBlob, blob, &options.metadata)?;
        self.on(Operation::PutBlob, blob.container(), |container| {
            let present = container.get(blob.name()).map(|found| &found.properties.etag);
            let refused = match &options.condition {
                _ if options.lease.is_some() => Some(Kind::LeaseNotPresent),
                Condition::IfAbsent if present.is_some() => Some(Kind::BlobAlreadyExists),
                Condition::IfMatch(etag) if present != Some(etag) => Some(Kind::ConditionNotMet),
                _ => None,
            };
            if let Some(kind) = refused {
                return Err(error(kind, Operation::PutBlob, blob));
            }
            let etag = ETag::new(uuid::Uuid::new_v4().to_string());
            let properties = BlobProperties::new(data.len() as u64, etag, self.clock.now());
            let properties = properties.with_metadata(options.metadata);
            container.insert(blob.name().to_owned(), Blob::new(data, properties.clone()));
            Ok(properties)
        })
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        self.on(Operation::GetBlob, blob.container(), |container| match container.get(blob.name()) {
            Some(found) if found.properties.length <= max_bytes => Ok(found.clone()),
            Some(_) => Err(error(Kind::TooLarge, Operation::GetBlob, blob)),
            None => Err(error(Kind::BlobNotFound, Operation::GetBlob, blob)),
        })
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        self.on(Operation::BlobProperties, blob.container(), |container| {
            let found = container.get(blob.name()).map(|found| found.properties.clone());
            found.ok_or_else(|| error(Kind::BlobNotFound, Operation::BlobProperties, blob))
        })
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        self.on(Operation::DeleteBlob, blob.container(), |container| {
            let kind = match (container.contains_key(blob.name()), lease) {
                (false, _) => Kind::BlobNotFound,
                (true, Some(_)) => Kind::LeaseNotPresent,
                (true, None) => {
                    container.remove(blob.name());
                    return Ok(());
                }
            };
            Err(error(kind, Operation::DeleteBlob, blob))
        })
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        self.on(Operation::ListBlobs, container, |container| {
            let below = container.iter().filter(|(name, _)| {
                name.starts_with(prefix) && marker.is_none_or(|marker| name.as_str() > marker)
            });
            let mut all = below.map(|(name, blob)| (name.clone(), blob.properties.clone()));
            let page: Vec<_> = all.by_ref().take(limits::MAX_LISTED_BLOBS).collect();
            let last = page.last().map(|(name, _)| name.clone());
            let next = last.filter(|_| all.next().is_some());
            Ok(BlobListing::new(page).with_next(next).with_now(self.clock.now()))
        })
    }
}

fn error(kind: Kind, operation: Operation, blob: &BlobName) -> StoreError {
    StoreError::new(kind, operation.as_str(), blob)
}
