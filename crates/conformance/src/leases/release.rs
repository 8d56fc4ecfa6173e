//! Promises of releasing a blob's lease.

use crate::prelude::*;

promises! { "release" if crate::leases::are_granted;
    /// A released lease is available, and another can take it at once.
    async fn frees_the_lease(subject, blob) {
        let id = blob.leased().await?;
        blob.release(id).await?;
        ensure!(!blob.is_leased().await?, "still leased");
        blob.leased().await?;
    }

    /// Nobody but the holder can release.
    async fn is_refused_to_others(subject, blob) {
        let id = blob.leased().await?;
        refused(blob.release(lease_id()).await, &[K::LeaseIdMismatch])?;
        blob.renew(id).await?;
    }

    /// A lease that is not held cannot be released, nor released twice.
    async fn needs_a_lease(subject, blob) {
        let kinds = &[K::LeaseNotPresent, K::LeaseIdMismatch];
        refused(blob.release(lease_id()).await, kinds)?;
        let id = blob.leased().await?;
        blob.release(id).await?;
        refused(blob.release(id).await, kinds)?;
    }
}
