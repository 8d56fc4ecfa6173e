//! Promises about writing, reading and deleting blobs whose lease is in any state.

use crate::prelude::*;

promises! { "write" if crate::leases::are_granted;
    /// A leased blob cannot be written without the id of the lease.
    async fn to_a_leased_blob_needs_the_id(subject, blob) {
        blob.leased().await?;
        refused(blob.write("second").await, &[K::LeaseIdMissing])?;
        ensure_eq!(&*blob.read().await?, b"first", "content");
    }

    /// The holder can write, and still holds the lease afterwards.
    async fn by_the_holder_succeeds(subject, blob) {
        let id = blob.leased().await?;
        blob.write_as(id, "second").await?;
        ensure_eq!(&*blob.read().await?, b"second", "content");
        ensure!(blob.is_leased().await?, "not leased");
        blob.renew(id).await?;
    }

    /// A blob that does not exist cannot be written under a lease.
    async fn to_a_missing_blob_has_no_lease(subject, blob: missing_blob) {
        let written = blob.write_with("x", PutBlob::new().with_lease(lease_id())).await;
        let deviates = subject.deviates(Deviation::LeaseOnMissingBlobIgnored);
        refused_unless(deviates, written, &[K::LeaseNotPresent, K::LeaseIdMismatch, K::BlobNotFound])?;
    }

    /// Any client can read a leased blob.
    async fn is_not_what_a_read_is(subject, blob) {
        blob.leased().await?;
        ensure_eq!(&*blob.read().await?, b"first", "content");
        ensure!(blob.is_leased().await?, "not leased");
    }

    /// Only the holder can delete a leased blob.
    async fn that_deletes_needs_the_id(subject, blob) {
        let id = blob.leased().await?;
        refused(blob.store.delete_blob(&blob.name, None).await, &[K::LeaseIdMissing])?;
        let other = lease_id();
        refused(blob.store.delete_blob(&blob.name, Some(&other)).await, &[K::LeaseIdMismatch])?;
        blob.store.delete_blob(&blob.name, Some(&id)).await?;
        refused(blob.read().await, &[K::BlobNotFound])?;
    }

    /// A blob that is recreated after its deletion is not leased.
    async fn after_a_deletion_starts_without_lease(subject, blob) {
        let id = blob.leased().await?;
        blob.store.delete_blob(&blob.name, Some(&id)).await?;
        blob.write("new").await?;
        ensure!(!blob.is_leased().await?, "still leased");
    }
}
