//! Promises about conditional writes and ETags.

use crate::prelude::*;
use jobqueue::storage::{Condition, ETag};

fn if_match(etag: &ETag) -> PutBlob {
    PutBlob::new().with_condition(Condition::IfMatch(etag.clone()))
}

promises! { "condition";
    /// A write on the condition that the blob is absent leaves an existing blob alone.
    async fn if_absent_never_overwrites(subject, blob) {
        refused(blob.write_with("new", PutBlob::if_absent()).await, &[K::BlobAlreadyExists])?;
        ensure_eq!(&*blob.read().await?, b"first", "content");
    }

    /// Of many concurrent conditional creations of a blob, exactly one succeeds.
    async fn if_absent_has_one_winner(subject, blob: missing_blob) {
        let writes = join_all((0..20).map(|_| blob.write_with("new", PutBlob::if_absent()))).await;
        ensure_eq!(writes.iter().filter(|write| write.is_ok()).count(), 1, "winners");
        ensure_eq!(&*blob.read().await?, b"new", "content");
        for write in writes.into_iter().filter(Result::is_err) {
            refused(write, &[K::BlobAlreadyExists])?;
        }
    }

    /// After a deletion the blob is absent again.
    async fn if_absent_creates_after_a_deletion(subject, blob) {
        blob.store.delete_blob(&blob.name, None).await?;
        blob.write_with("new", PutBlob::if_absent()).await?;
    }

    /// A write on the condition of a former tag leaves the blob alone.
    async fn if_match_refuses_a_former_tag(subject, blob) {
        let former = blob.properties().await?.etag;
        blob.write("second").await?;
        refused(blob.write_with("third", if_match(&former)).await, &[K::ConditionNotMet])?;
        ensure_eq!(&*blob.read().await?, b"second", "content");
    }

    /// A write on the condition of a tag is refused if the blob does not exist.
    async fn if_match_needs_a_blob(subject, blob) {
        let etag = blob.properties().await?.etag;
        blob.store.delete_blob(&blob.name, None).await?;
        refused(blob.write_with("new", if_match(&etag)).await, &[K::ConditionNotMet, K::BlobNotFound])?;
        refused(blob.read().await, &[K::BlobNotFound])?;
    }

    /// Of many concurrent changes of one version of a blob, exactly one succeeds.
    async fn if_match_has_one_winner(subject, blob) {
        let etag = blob.properties().await?.etag;
        let writes = join_all((0..20).map(|_| blob.write_with("new", if_match(&etag)))).await;
        ensure_eq!(writes.iter().filter(|write| write.is_ok()).count(), 1, "winners");
        ensure_eq!(&*blob.read().await?, b"new", "content");
        for write in writes.into_iter().filter(Result::is_err) {
            refused(write, &[K::ConditionNotMet])?;
        }
    }

    /// Each write changes the tag, even if it writes the same content.
    async fn tag_changes_with_every_write(subject, blob) {
        let first = blob.properties().await?.etag;
        let second = blob.write("first").await?.etag;
        ensure!(first != second, "the same tag");
        ensure_eq!(blob.properties().await?.etag, second, "tag");
    }

    /// A blob that is deleted and written again has a new tag.
    async fn tag_is_never_used_again(subject, blob) {
        let first = blob.properties().await?.etag;
        blob.store.delete_blob(&blob.name, None).await?;
        ensure!(blob.write("first").await?.etag != first, "the same tag");
    }

    /// Reading leaves the tag as it is.
    async fn tag_survives_reading(subject, blob) {
        let first = blob.properties().await?.etag;
        blob.read().await?;
        ensure_eq!(blob.properties().await?.etag, first, "tag");
    }
}
