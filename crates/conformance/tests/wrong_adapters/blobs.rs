//! The blobs of a wrong adapter.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jobqueue::memory;
use jobqueue::storage::{
    Blob, BlobLeases, BlobListing, BlobName, BlobPowers, BlobProperties, BlobStore, Condition, ContainerName,
    Detach, ETag, LeaseId, Metadata, PutBlob, StoreError, StoreErrorKind,
};

use crate::Wrong;
use crate::mistakes::Mistake;
use crate::queues::refusal;

fn named(container: &ContainerName, name: &str) -> BlobName {
    BlobName::new(container.clone(), name).expect("the name of a blob")
}

impl Wrong {
    /// Returns the blob to use instead of `blob`: in one shared container, if the mistake is to ignore
    /// containers.
    async fn in_any_container<'b>(&self, blob: &'b BlobName) -> Result<Cow<'b, BlobName>, StoreError> {
        if !self.has(Mistake::MixesContainers) {
            return Ok(Cow::Borrowed(blob));
        }
        let container = ContainerName::new("mixed").expect("the name of a container");
        self.below.blobs().create_container(&container).await?;
        Ok(Cow::Owned(named(&container, blob.name())))
    }
}

#[async_trait]
impl BlobStore for Wrong {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.below.blobs().create_container(container).await
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        match self.mistake {
            Mistake::KeepsDeletedContainers => Ok(()),
            Mistake::DeletesMissingContainers => {
                self.below.blobs().delete_container(container).await.or(Ok(()))
            }
            _ => self.below.blobs().delete_container(container).await,
        }
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        mut options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        let blobs = self.below.blobs();
        let blob = &*self.in_any_container(blob).await?;
        match self.mistake {
            Mistake::WritesInTwoSteps => {
                let first = options.clone().with_metadata(Metadata::new());
                blobs.put_blob(blob, data.clone(), first).await?;
                tokio::task::yield_now().await;
                return blobs.put_blob(blob, data, PutBlob::new().with_metadata(options.metadata)).await;
            }
            Mistake::WritesToLeased if options.lease.is_none() => {
                if let Ok(properties) = blobs.blob_properties(blob).await
                    && properties.is_leased
                {
                    return Ok(properties);
                }
            }
            Mistake::IgnoresLeasesOfMissing if blobs.blob_properties(blob).await.is_err() => {
                options.lease = None
            }
            Mistake::WritesWithoutCondition => options.condition = Condition::Always,
            Mistake::WritesWithoutMetadata => options.metadata = Metadata::new(),
            _ => {}
        }
        let lease = options.lease;
        let mut written = blobs.put_blob(blob, data, options).await?;
        if let Some(lease) = lease
            && self.has(Mistake::EndsLeasesByWrites)
        {
            self.below.leases()?.release_lease(blob, &lease).await?;
        }
        if self.has(Mistake::NeverChangesTheTag) {
            written.etag = ETag::new("tag");
        }
        Ok(written)
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        let max_bytes = if self.has(Mistake::ReadsBeyondTheLimit) { u64::MAX } else { max_bytes };
        let blob = &*self.in_any_container(blob).await?;
        let read = self.below.blobs().get_blob(blob, max_bytes).await?;
        match self.mistake {
            Mistake::ReadsNoLeased if read.properties.is_leased => {
                return Err(refusal(StoreErrorKind::LeaseIdMissing));
            }
            Mistake::WritesWhatIsRead => {
                self.below.blobs().put_blob(blob, read.data.clone(), PutBlob::new()).await?;
            }
            _ => {}
        }
        Ok(read)
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        let mut properties = self.below.blobs().blob_properties(blob).await?;
        properties.is_leased &= !self.has(Mistake::ShowsNoLease);
        if self.has(Mistake::NeverChangesTheTag) {
            properties.etag = ETag::new("tag");
        }
        Ok(properties)
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        if self.has(Mistake::KeepsDeletedBlobs) {
            return Ok(());
        }
        if self.has(Mistake::DeletesByPrefix) {
            let blobs = self.below.blobs();
            for (name, _) in blobs.list_blobs(blob.container(), blob.name(), None).await?.blobs {
                blobs.delete_blob(&named(blob.container(), name.as_ref()), lease).await?;
            }
            return Ok(());
        }
        let deleted = self.below.blobs().delete_blob(blob, lease).await;
        if self.has(Mistake::DeletesMissingBlobs) { Ok(()) } else { deleted }
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        let prefix = if self.has(Mistake::ListsBlobsWithoutPrefix) { "" } else { prefix };
        let mut listing = self.below.blobs().list_blobs(container, prefix, marker).await?;
        match self.mistake {
            Mistake::ListsOnePage => listing.next = None,
            Mistake::ListsBlobsBackwards => listing.blobs.reverse(),
            Mistake::TellsTimesOf1970 => listing.now = Some(std::time::SystemTime::UNIX_EPOCH),
            _ => {}
        }
        Ok(listing)
    }

    fn powers(self: Arc<Self>) -> BlobPowers {
        BlobPowers { leases: Some(Arc::clone(&self) as _), detach: Some(self), ..BlobPowers::default() }
    }
}

#[async_trait]
impl BlobLeases for Wrong {
    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: Duration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        let (shortest, longest) = (Duration::from_secs(15), Duration::from_secs(60));
        let duration = match self.mistake {
            Mistake::LeasesForAnyTime => duration.clamp(shortest, longest),
            Mistake::LeasesForAMinute => longest,
            _ => duration,
        };
        if self.has(Mistake::RefusesOwnLease) && self.below.blobs().blob_properties(blob).await?.is_leased {
            return Err(refusal(StoreErrorKind::LeaseAlreadyPresent));
        }
        let acquired = self.below.leases()?.acquire_lease(blob, duration, proposed).await;
        if self.has(Mistake::LeasesToAll) { Ok(*proposed) } else { acquired }
    }

    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        match self.mistake {
            Mistake::RenewsNothing => Ok(*lease),
            Mistake::RenewsForAll => self.below.leases()?.renew_lease(blob, lease).await.or(Ok(*lease)),
            _ => self.below.leases()?.renew_lease(blob, lease).await,
        }
    }

    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        match self.mistake {
            Mistake::ReleasesNothing => Ok(()),
            Mistake::LeasesContainers => {
                for (name, _) in self.below.blobs().list_blobs(blob.container(), "", None).await?.blobs {
                    let other = named(blob.container(), name.as_ref());
                    drop(self.below.leases()?.release_lease(&other, lease).await);
                }
                Ok(())
            }
            _ => self.below.leases()?.release_lease(blob, lease).await,
        }
    }
}

impl Detach<dyn BlobStore> for Wrong {
    fn detached(&self) -> Arc<dyn BlobStore> {
        match self.mistake {
            Mistake::DetachesOtherBlobs => Arc::clone(memory::open().blobs()),
            _ => Arc::clone(self.below.blobs()),
        }
    }
}
