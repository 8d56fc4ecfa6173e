//! Promises of renewing a blob's lease.

use crate::prelude::*;

promises! { "renew" if crate::leases::are_granted;
    /// The holder can renew, and the answer contains its lease id.
    async fn is_for_the_holder(subject, blob) {
        let id = blob.leased().await?;
        ensure_eq!(blob.renew(id).await?, id, "id");
        ensure_eq!(blob.renew(id).await?, id, "id");
    }

    /// Nobody but the holder can renew.
    async fn is_refused_to_others(subject, blob) {
        blob.leased().await?;
        refused(blob.renew(lease_id()).await, &[K::LeaseIdMismatch])?;
    }

    /// A lease that was never taken cannot be renewed.
    async fn needs_a_lease(subject, blob) {
        refused(blob.renew(lease_id()).await, &[K::LeaseNotPresent, K::LeaseIdMismatch])?;
    }

    /// A lease that was given up cannot be renewed.
    async fn is_refused_after_release(subject, blob) {
        let id = blob.leased().await?;
        blob.release(id).await?;
        refused(blob.renew(id).await, &[K::LeaseNotPresent, K::LeaseIdMismatch])?;
    }

    /// A blob that does not exist has no lease to renew.
    async fn needs_a_blob(subject, blob: missing_blob) {
        refused(blob.renew(lease_id()).await, &[K::BlobNotFound])?;
    }

    /// A lease that another took over after a release cannot be renewed by the former holder.
    async fn is_refused_to_a_former_holder(subject, blob) {
        let former = blob.leased().await?;
        blob.release(former).await?;
        blob.leased().await?;
        refused(blob.renew(former).await, &[K::LeaseIdMismatch])?;
    }
}
