//! Implements Lease Blob. Each action contains the lease id, so it can be repeated.

use std::time::Duration;

use async_trait::async_trait;
use azure_core::http::headers::Headers;
use azure_storage_blob::models::BlobClientAcquireLeaseOptions;

use super::super::call::Call;
use super::super::convert;
use super::{AzureBlobs, text};
use jobqueue_storage::rules::limits;
use jobqueue_storage::{BlobLeases, BlobName, LeaseId, StoreError, StoreErrorKind};

#[async_trait]
impl BlobLeases for AzureBlobs {
    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: Duration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        let call = Call::repeatable("acquire lease", blob);
        limits::check_lease_duration(blob, duration)?;
        let seconds = convert::seconds(call, "a lease", duration)?;
        let acquire = || async {
            let options = BlobClientAcquireLeaseOptions {
                proposed_lease_id: Some(proposed.expose()),
                ..BlobClientAcquireLeaseOptions::default()
            };
            self.client(blob).acquire_lease(seconds, Some(options)).await
        };
        lease_id(call, call.run_repeatable(self.connection.runtime(), acquire).await?.headers())
    }

    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        let call = Call::repeatable("renew lease", blob);
        let renew = || async { self.client(blob).renew_lease(lease.expose(), None).await };
        lease_id(call, call.run_repeatable(self.connection.runtime(), renew).await?.headers())
    }

    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        use StoreErrorKind as K;
        let call = Call::repeatable("release lease", blob);
        let release = || async { self.client(blob).release_lease(lease.expose(), None).await };
        match call.run_repeatable(self.connection.runtime(), release).await {
            // An earlier request ended the lease, and its answer was lost. A later holder would have another
            // id.
            Err(error)
                if error.is_ambiguous()
                    && matches!(
                        error.kind(),
                        K::LeaseNotPresent | K::LeaseIdMismatch | K::BlobNotFound | K::ContainerNotFound
                    ) =>
            {
                Ok(())
            }
            released => released.map(drop),
        }
    }
}

fn lease_id(call: Call<'_>, headers: &Headers) -> Result<LeaseId, StoreError> {
    text(headers, "x-ms-lease-id")
        .and_then(LeaseId::parse)
        .ok_or_else(|| call.unreadable("the answer has no lease id"))
}
