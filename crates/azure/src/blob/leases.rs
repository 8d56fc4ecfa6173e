//! Implements Lease Blob. Every action except a break names its lease's id, and so may be repeated.

use std::time::Duration;

use async_trait::async_trait;
use azure_core::http::headers::Headers;
use azure_storage_blob::models::{BlobClientAcquireLeaseOptions, BlobClientBreakLeaseOptions};

use super::super::call::Call;
use super::super::convert;
use super::{AzureBlobs, text};
use jobqueue_storage::rules::limits;
use jobqueue_storage::{BlobLeases, BlobName, LeaseDuration, LeaseId, StoreError, StoreErrorKind};

#[async_trait]
impl BlobLeases for AzureBlobs {
    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: LeaseDuration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        let call = Call::repeatable("acquire lease", blob);
        limits::check_lease_duration(blob, duration)?;
        let seconds = match duration {
            LeaseDuration::Infinite => -1,
            LeaseDuration::Finite(length) => convert::seconds(call, "a lease", length)?,
        };
        let acquire = || async {
            let options = BlobClientAcquireLeaseOptions {
                proposed_lease_id: Some(proposed.expose()),
                ..BlobClientAcquireLeaseOptions::default()
            };
            self.client(blob).acquire_lease(seconds, Some(options)).await
        };
        lease_id(call, call.run_again(self.connection.runtime(), acquire).await?.headers())
    }

    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        let call = Call::repeatable("renew lease", blob);
        let renew = || async { self.client(blob).renew_lease(lease.expose(), None).await };
        lease_id(call, call.run_again(self.connection.runtime(), renew).await?.headers())
    }

    async fn change_lease(
        &self,
        blob: &BlobName,
        lease: &LeaseId,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        let call = Call::repeatable("change lease", blob);
        let change =
            || async { self.client(blob).change_lease(lease.expose(), proposed.expose(), None).await };
        lease_id(call, call.run_again(self.connection.runtime(), change).await?.headers())
    }

    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        use StoreErrorKind as K;
        let call = Call::repeatable("release lease", blob);
        let release = || async { self.client(blob).release_lease(lease.expose(), None).await };
        match call.run_again(self.connection.runtime(), release).await {
            // An earlier request ended the lease, and only its answer was lost. A later holder would have another id.
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

    async fn break_lease(&self, blob: &BlobName, period: Option<Duration>) -> Result<Duration, StoreError> {
        // A break is not repeated: a second one may meet the next owner's lease.
        let call = Call::once("break lease", blob);
        limits::check_break_period(blob, period)?;
        let period = period.map(|period| convert::seconds(call, "a break period", period)).transpose()?;
        let options =
            BlobClientBreakLeaseOptions { break_period: period, ..BlobClientBreakLeaseOptions::default() };
        let answer = call.run(async { self.client(blob).break_lease(Some(options)).await }).await?;
        let left = text(answer.headers(), "x-ms-lease-time").and_then(|left| left.parse().ok());
        left.map(Duration::from_secs).ok_or_else(|| call.unreadable("the answer has no x-ms-lease-time"))
    }
}

fn lease_id(call: Call<'_>, headers: &Headers) -> Result<LeaseId, StoreError> {
    text(headers, "x-ms-lease-id")
        .and_then(LeaseId::parse)
        .ok_or_else(|| call.unreadable("the answer has no lease id"))
}
