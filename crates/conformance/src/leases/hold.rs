//! Promises about a held lease, which only its holder renews and releases.

use crate::prelude::*;
use jobqueue::storage::LeaseId;

/// Checks that an id which does not hold the lease can neither renew, release nor write under it.
async fn no_lease(blob: &TestBlob, id: LeaseId, kinds: &[K]) -> Result<(), Broken> {
    refused(blob.renew(id).await, kinds)?;
    refused(blob.release(id).await, kinds)?;
    refused(blob.write_as(id, "second").await, kinds)?;
    ensure_eq!(&*blob.read().await?, b"first", "content");
    Ok(())
}

promises! { "hold" if crate::leases::are_granted;
    /// The holder can renew the lease, and the answer contains its id.
    async fn is_renewed_by_the_holder(subject, blob) {
        let id = blob.leased().await?;
        ensure_eq!(blob.renew(id).await?, id, "id");
        ensure_eq!(blob.renew(id).await?, id, "id");
    }

    /// While a lease is held, no other id can renew it, release it or write under it.
    async fn is_for_the_holder_only(subject, blob) {
        let id = blob.leased().await?;
        no_lease(&blob, lease_id(), &[K::LeaseIdMismatch]).await?;
        blob.renew(id).await?;
    }

    /// A lease that was never acquired, or was released, can be neither renewed, released nor written under.
    async fn begins_with_an_acquisition(subject, blob) {
        let kinds = &[K::LeaseNotPresent, K::LeaseIdMismatch];
        no_lease(&blob, lease_id(), kinds).await?;
        let former = blob.leased().await?;
        blob.release(former).await?;
        no_lease(&blob, former, kinds).await?;
    }

    /// A released lease can be acquired at once; the former holder then cannot renew it.
    async fn ends_with_a_release(subject, blob) {
        let former = blob.leased().await?;
        blob.release(former).await?;
        ensure!(!blob.is_leased().await?, "still leased");
        blob.leased().await?;
        refused(blob.renew(former).await, &[K::LeaseIdMismatch])?;
    }

    /// A blob that does not exist has no lease.
    async fn needs_a_blob(subject, blob: missing_blob) {
        refused(blob.acquire(60, lease_id()).await, &[K::BlobNotFound])?;
        refused(blob.renew(lease_id()).await, &[K::BlobNotFound])?;
    }
}
