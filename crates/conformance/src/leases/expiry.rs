//! Promises of blob leases whose time is over. The shortest lease lasts 15 seconds, so these promises are slow in real
//! time.

use crate::prelude::*;
use jobqueue::storage::LeaseId;

/// Returns a blob whose lease has run out, and the id under which it was held.
async fn expired(subject: &Subject) -> Result<(TestBlob, LeaseId), Broken> {
    let blob = subject.blob().await?;
    let id = lease_id();
    blob.acquire(15, id).await?;
    subject.advance(secs(15)).await;
    Ok((blob, id))
}

promises! { "expiry" if crate::leases::are_granted;
    /// A lease that is not renewed expires, and not before its time.
    @slow async fn comes_in_time(subject, blob) {
        blob.acquire(15, lease_id()).await?;
        subject.advance(secs(10)).await;
        ensure_eq!(blob.lease_state().await?, LeaseState::Leased, "state after 10 seconds");
        subject.advance(secs(5)).await;
        ensure_eq!(blob.lease_state().await?, LeaseState::Expired, "state after 15 seconds");
    }

    /// A renewal restarts the lease's duration.
    @slow async fn is_put_off_by_renewal(subject, blob) {
        let id = lease_id();
        blob.acquire(15, id).await?;
        subject.advance(secs(9)).await;
        blob.renew(id).await?;
        subject.advance(secs(9)).await;
        ensure_eq!(blob.lease_state().await?, LeaseState::Leased, "state after 18 seconds");
    }

    /// A change of id does not restart the lease's duration.
    @slow async fn is_not_put_off_by_change(subject, blob) {
        let id = lease_id();
        blob.acquire(15, id).await?;
        subject.advance(secs(9)).await;
        blob.change(id, lease_id()).await?;
        subject.advance(secs(6)).await;
        ensure_eq!(blob.lease_state().await?, LeaseState::Expired, "state after 15 seconds");
    }

    /// An infinite lease does not expire.
    @slow async fn never_comes_to_an_infinite_lease(subject, blob) {
        blob.acquire_forever(lease_id()).await?;
        subject.advance(secs(15)).await;
        ensure_eq!(blob.lease_state().await?, LeaseState::Leased, "state");
    }

    /// An expired lease can be taken by another; the former holder then cannot renew.
    @slow async fn lets_another_acquire(subject) {
        let (blob, former) = expired(subject).await?;
        blob.acquire(60, lease_id()).await?;
        refused(blob.renew(former).await, &[K::LeaseIdMismatch])?;
    }

    /// An expired lease can be taken again by its former holder.
    @slow async fn lets_the_holder_acquire(subject) {
        let (blob, id) = expired(subject).await?;
        blob.acquire(60, id).await?;
        ensure_eq!(blob.lease_state().await?, LeaseState::Leased, "state");
    }

    /// An expired lease is renewed by its holder if nothing happened since.
    @slow async fn lets_the_holder_renew(subject) {
        let (blob, id) = expired(subject).await?;
        ensure_eq!(blob.renew(id).await?, id, "id");
        ensure_eq!(blob.lease_state().await?, LeaseState::Leased, "state");
    }

    /// An expired lease cannot be renewed under another id.
    @slow async fn lets_nobody_else_renew(subject) {
        let (blob, _) = expired(subject).await?;
        let deviates = subject.deviates(Deviation::RenewWithWrongIdAfterExpiry);
        let renewed = blob.renew(lease_id()).await;
        refused_unless(deviates, renewed, &[K::LeaseIdMismatch, K::LeaseNotPresent])?;
    }

    /// An expired lease cannot be renewed after a write to the blob.
    @slow async fn is_final_after_a_write(subject) {
        let (blob, id) = expired(subject).await?;
        blob.write("second").await?;
        ensure_eq!(blob.lease_state().await?, LeaseState::Available, "state");
        refused(blob.renew(id).await, &[K::LeaseNotPresent, K::LeaseIdMismatch])?;
    }

    /// The id of an expired lease cannot be changed.
    @slow async fn refuses_a_change(subject) {
        let (blob, id) = expired(subject).await?;
        let changed = blob.change(id, lease_id()).await;
        refused(changed, &[K::LeaseNotPresent, K::LeaseIdMismatch])?;
    }

    /// An expired lease can be released by its holder, not by others.
    @slow async fn lets_the_holder_release(subject) {
        let (blob, id) = expired(subject).await?;
        refused(blob.release(lease_id()).await, &[K::LeaseIdMismatch, K::LeaseNotPresent])?;
        blob.release(id).await?;
        ensure_eq!(blob.lease_state().await?, LeaseState::Available, "state");
    }

    /// An expired lease can be broken, which takes no time.
    @slow async fn lets_anybody_break(subject) {
        let (blob, _) = expired(subject).await?;
        ensure_eq!(blob.break_in(30).await?, secs(0), "time left");
        ensure_eq!(blob.lease_state().await?, LeaseState::Broken, "state");
    }

    /// A blob whose lease has expired cannot be written under it, not even by its former holder.
    @slow async fn refuses_writes_under_the_lease(subject) {
        let (blob, id) = expired(subject).await?;
        for lease in [id, lease_id()] {
            refused(blob.write_as(lease, "second").await, &[K::LeaseNotPresent, K::LeaseIdMismatch])?;
        }
        ensure_eq!(&*blob.read().await?, b"first", "content");
    }

    /// A blob whose lease has expired can be deleted without the lease.
    @slow async fn lets_anybody_delete(subject) {
        let (blob, _) = expired(subject).await?;
        blob.store.delete_blob(&blob.name, None).await?;
    }
}
