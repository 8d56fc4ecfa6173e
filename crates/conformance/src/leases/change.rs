//! Promises of changing the id of a blob's lease.

use crate::prelude::*;

promises! { "change" if crate::leases::are_granted;
    /// The holder changes the id; the new one holds, the old one does not.
    async fn hands_over_to_the_new_id(subject, blob) {
        let (old, new) = (blob.leased().await?, lease_id());
        ensure_eq!(blob.change(old, new).await?, new, "id");
        refused(blob.renew(old).await, &[K::LeaseIdMismatch])?;
        ensure_eq!(blob.renew(new).await?, new, "id");
    }

    /// A change can be repeated, so that a lost answer does no harm.
    async fn can_be_repeated(subject, blob) {
        let (old, new) = (blob.leased().await?, lease_id());
        blob.change(old, new).await?;
        ensure_eq!(blob.change(old, new).await?, new, "id");
        ensure_eq!(blob.lease_state().await?, LeaseState::Leased, "state");
    }

    /// Nobody but the holder can change the id.
    async fn is_refused_to_others(subject, blob) {
        let id = blob.leased().await?;
        refused(blob.change(lease_id(), lease_id()).await, &[K::LeaseIdMismatch])?;
        blob.renew(id).await?;
    }

    /// A lease that was never taken has no id to change.
    async fn needs_a_lease(subject, blob) {
        let changed = blob.change(lease_id(), lease_id()).await;
        refused(changed, &[K::LeaseNotPresent, K::LeaseIdMismatch])?;
    }

    /// The id of a lease that is being broken cannot be changed.
    async fn is_refused_while_breaking(subject, blob) {
        let id = blob.breaking().await?;
        let changed = blob.change(id, lease_id()).await;
        refused(changed, &[K::LeaseBroken, K::LeaseIdMismatch, K::LeaseNotPresent])?;
    }

    /// The id of a broken lease cannot be changed.
    async fn is_refused_when_broken(subject, blob) {
        let id = blob.broken().await?;
        let changed = blob.change(id, lease_id()).await;
        refused(changed, &[K::LeaseBroken, K::LeaseIdMismatch, K::LeaseNotPresent])?;
    }
}
