//! Promises of renewing a blob's lease.

use super::super::check::refused;
use jobqueue::storage::{LeaseId, LeaseState, StoreErrorKind as K};

promises! { "renew";
    /// The holder renews, and is told its own id.
    async fn is_for_the_holder(subject) {
        let blob = subject.blob().await?;
        let id = blob.leased().await?;
        ensure_eq!(blob.renew(id).await?, id, "id");
        ensure_eq!(blob.renew(id).await?, id, "id");
    }

    /// An infinite lease can be renewed, and stays infinite.
    async fn is_for_infinite_leases_too(subject) {
        let blob = subject.blob().await?;
        let id = LeaseId::random();
        blob.acquire_forever(id).await?;
        ensure_eq!(blob.renew(id).await?, id, "id");
        ensure_eq!(blob.lease_state().await?, LeaseState::Leased, "state");
    }

    /// Nobody but the holder can renew.
    async fn is_refused_to_others(subject) {
        let blob = subject.blob().await?;
        blob.leased().await?;
        refused(blob.renew(LeaseId::random()).await, &[K::LeaseIdMismatch])?;
    }

    /// A lease that was never taken cannot be renewed.
    async fn needs_a_lease(subject) {
        let blob = subject.blob().await?;
        refused(blob.renew(LeaseId::random()).await, &[K::LeaseNotPresent, K::LeaseIdMismatch])?;
    }

    /// A lease that was given up cannot be renewed.
    async fn is_refused_after_release(subject) {
        let blob = subject.blob().await?;
        let id = blob.leased().await?;
        blob.release(id).await?;
        refused(blob.renew(id).await, &[K::LeaseNotPresent, K::LeaseIdMismatch])?;
    }

    /// A lease that is being broken cannot be renewed, not even by its holder.
    async fn is_refused_while_breaking(subject) {
        let blob = subject.blob().await?;
        let id = blob.breaking().await?;
        refused(blob.renew(id).await, &[K::LeaseBroken])?;
        refused(blob.renew(LeaseId::random()).await, &[K::LeaseBroken, K::LeaseIdMismatch])?;
    }

    /// A broken lease cannot be renewed, not even by its former holder.
    async fn is_refused_when_broken(subject) {
        let blob = subject.blob().await?;
        let id = blob.broken().await?;
        refused(blob.renew(id).await, &[K::LeaseBroken])?;
        refused(blob.renew(LeaseId::random()).await, &[K::LeaseBroken, K::LeaseIdMismatch])?;
    }

    /// A blob that does not exist has no lease to renew.
    async fn needs_a_blob(subject) {
        let blob = subject.missing_blob().await?;
        refused(blob.renew(LeaseId::random()).await, &[K::BlobNotFound])?;
    }

    /// A lease that another took over after a release cannot be renewed by the former holder.
    async fn is_refused_to_a_former_holder(subject) {
        let blob = subject.blob().await?;
        let former = blob.leased().await?;
        blob.release(former).await?;
        blob.leased().await?;
        refused(blob.renew(former).await, &[K::LeaseIdMismatch])?;
    }
}
