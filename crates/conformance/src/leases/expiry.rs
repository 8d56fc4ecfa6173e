//! Promises about expired blob leases. The shortest lease lasts 15 seconds, so these promises are slow in
//! real time.

use crate::prelude::*;
use jobqueue::storage::LeaseId;

/// Returns a blob whose lease has expired, and the id of its former holder.
async fn expired(subject: &Subject) -> Result<(TestBlob, LeaseId), Broken> {
    let blob = subject.blob().await?;
    let id = lease_id();
    blob.acquire(15, id).await?;
    subject.advance(secs(15)).await;
    Ok((blob, id))
}

promises! { "expiry" if crate::leases::are_granted;
    /// A lease that is not renewed expires at its time, and not earlier.
    @slow async fn comes_in_time(subject, blob) {
        blob.acquire(15, lease_id()).await?;
        subject.advance(secs(10)).await;
        ensure!(blob.is_leased().await?, "not leased");
        subject.advance(secs(5)).await;
        ensure!(!blob.is_leased().await?, "still leased");
    }

    /// A renewal restarts the lease's duration.
    @slow async fn is_put_off_by_renewal(subject, blob) {
        let id = lease_id();
        blob.acquire(15, id).await?;
        subject.advance(secs(9)).await;
        blob.renew(id).await?;
        subject.advance(secs(9)).await;
        ensure!(blob.is_leased().await?, "not leased");
    }

    /// Another holder can acquire an expired lease; the former holder then cannot renew it.
    @slow async fn lets_another_acquire(subject) {
        let (blob, former) = expired(subject).await?;
        blob.acquire(60, lease_id()).await?;
        refused(blob.renew(former).await, &[K::LeaseIdMismatch])?;
    }

    /// The former holder can acquire an expired lease again.
    @slow async fn lets_the_holder_acquire(subject) {
        let (blob, id) = expired(subject).await?;
        blob.acquire(60, id).await?;
        ensure!(blob.is_leased().await?, "not leased");
    }

    /// The holder can renew an expired lease if nothing has happened since.
    @slow async fn lets_the_holder_renew(subject) {
        let (blob, id) = expired(subject).await?;
        ensure_eq!(blob.renew(id).await?, id, "id");
        ensure!(blob.is_leased().await?, "not leased");
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
        ensure!(!blob.is_leased().await?, "still leased");
        refused(blob.renew(id).await, &[K::LeaseNotPresent, K::LeaseIdMismatch])?;
    }

    /// The holder can release an expired lease, and others cannot.
    @slow async fn lets_the_holder_release(subject) {
        let (blob, id) = expired(subject).await?;
        refused(blob.release(lease_id()).await, &[K::LeaseIdMismatch, K::LeaseNotPresent])?;
        blob.release(id).await?;
        ensure!(!blob.is_leased().await?, "still leased");
    }

    /// A blob cannot be written under an expired lease, not even by the former holder.
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
