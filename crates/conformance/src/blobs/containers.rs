//! Promises about creating and deleting containers.

use crate::prelude::*;
use jobqueue::storage::BlobName;

promises! { "container";
    /// Creating a container again changes nothing.
    async fn can_be_created_again(subject, blob) {
        blob.store.create_container(blob.name.container()).await?;
        ensure_eq!(&*blob.read().await?, b"first", "content");
    }

    /// Blobs of a container that does not exist can be neither written, read, deleted nor listed.
    async fn that_is_missing_has_no_blobs(subject) {
        let container = subject.container_name()?;
        let name = BlobName::new(container.clone(), "blob").map_err(|e| Broken::new(e.to_string()))?;
        let blob = TestBlob::new(subject.storage(), name);
        refused(blob.write("text").await, &[K::ContainerNotFound])?;
        refused(blob.write_with("text", PutBlob::if_absent()).await, &[K::ContainerNotFound])?;
        refused(blob.store.list_blobs(&container, "", None).await, &[K::ContainerNotFound])?;
        let missing = &[K::ContainerNotFound, K::BlobNotFound];
        refused(blob.read().await, missing)?;
        refused(blob.properties().await, missing)?;
        refused(blob.store.delete_blob(&blob.name, None).await, missing)?;
    }

    /// Deleting a container that does not exist finds nothing.
    async fn that_is_missing_cannot_be_deleted(subject) {
        let container = subject.container_name()?;
        refused(subject.storage().blobs().delete_container(&container).await, &[K::ContainerNotFound])?;
    }

    /// Deleting a container deletes its blobs, including leased ones.
    async fn can_be_deleted_with_leased_blobs(subject, blob) {
        if subject.storage().leases().is_ok() {
            blob.leased().await?;
        }
        blob.store.delete_container(blob.name.container()).await?;
        refused(blob.read().await, &[K::ContainerNotFound, K::ContainerBeingDeleted, K::BlobNotFound])?;
    }

    /// Blobs with the same name in two containers are two blobs.
    async fn keeps_its_blobs_apart(subject) {
        let (one, other) = (subject.blob().await?, subject.blob().await?);
        one.write("second").await?;
        ensure_eq!(&*other.read().await?, b"first", "content of the other");
    }
}
