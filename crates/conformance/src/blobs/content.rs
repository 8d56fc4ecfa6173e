//! Promises about writing, reading and deleting blobs.

use std::future::{Future, poll_fn};
use std::task::Poll;

use crate::prelude::*;
use bytes::Bytes;

/// Writes a blob whose metadata repeats its content.
async fn write_marked(blob: &TestBlob, text: &'static str) -> Result<(), Broken> {
    blob.write_with(text, PutBlob::new().with_metadata(Metadata::new().with("is", text))).await?;
    Ok(())
}

/// Checks that the metadata of a blob matches its content.
async fn is_whole(blob: &TestBlob) -> Result<(), Broken> {
    let read = blob.store.get_blob(&blob.name, 100).await?;
    let text = read.properties.metadata.get("is").map(str::as_bytes);
    ensure_eq!(text, Some(&*read.data), "metadata for the content");
    Ok(())
}

promises! { "blob";
    /// A written blob is read back with the same content and properties.
    async fn is_read_as_written(subject, blob: missing_blob) {
        let written = blob.write("content").await?;
        let read = blob.store.get_blob(&blob.name, 100).await?;
        ensure_eq!(&*read.data, b"content", "content");
        ensure_eq!(read.properties.etag, written.etag, "tag");
        ensure_eq!(read.properties.length, 7, "length");
        ensure!(!read.properties.is_leased, "leased");
    }

    /// A blob can contain any bytes.
    async fn holds_any_bytes(subject, blob: missing_blob) {
        let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        blob.write_with(bytes.clone(), PutBlob::new()).await?;
        ensure!(*blob.read().await? == *bytes, "the bytes came back changed");
    }

    /// A blob may be empty.
    async fn may_be_empty(subject, blob: missing_blob) {
        let written = blob.write_with(Bytes::new(), PutBlob::new()).await?;
        ensure_eq!(written.length, 0, "length");
        ensure!(blob.store.get_blob(&blob.name, 0).await?.data.is_empty(), "content out of nothing");
    }

    /// A blob may be a few megabytes large.
    async fn may_be_large(subject, blob: missing_blob) {
        let bytes = vec![7_u8; 5 << 20];
        blob.write_with(bytes.clone(), PutBlob::new()).await?;
        let read = blob.store.get_blob(&blob.name, 5 << 20).await?;
        ensure!(read.data == bytes, "the bytes came back changed");
    }

    /// Writing a blob again replaces all its content.
    async fn is_replaced_by_a_write(subject, blob) {
        blob.write("2").await?;
        ensure_eq!(&*blob.read().await?, b"2", "content");
        ensure_eq!(blob.properties().await?.length, 1, "length");
    }

    /// A blob's metadata is read back.
    async fn keeps_metadata(subject, blob: missing_blob) {
        let metadata = Metadata::new().with("sha256", "0a").with("owner", "somebody else");
        blob.write_with("x", PutBlob::new().with_metadata(metadata.clone())).await?;
        ensure_eq!(blob.properties().await?.metadata, metadata, "metadata by properties");
        let read = blob.store.get_blob(&blob.name, 100).await?;
        ensure_eq!(read.properties.metadata, metadata, "metadata by read");
    }

    /// Writing a blob replaces all its metadata.
    async fn loses_metadata_with_a_write(subject, blob: missing_blob) {
        blob.write_with("x", PutBlob::new().with_metadata(Metadata::new().with("a", "1"))).await?;
        blob.write("x").await?;
        ensure!(blob.properties().await?.metadata.is_empty(), "some metadata is left");
    }

    /// Metadata names that are not identifiers are refused.
    async fn refuses_bad_metadata(subject, blob: missing_blob) {
        let bad = PutBlob::new().with_metadata(Metadata::new().with("1bad", "1"));
        refused(blob.write_with("x", bad).await, &[K::InvalidInput])?;
        refused(blob.read().await, &[K::BlobNotFound])?;
    }

    /// A blob that does not exist can be neither read nor deleted, and has no properties.
    async fn that_is_missing_is_not_found(subject, blob: missing_blob) {
        refused(blob.read().await, &[K::BlobNotFound])?;
        refused(blob.properties().await, &[K::BlobNotFound])?;
        refused(blob.store.delete_blob(&blob.name, None).await, &[K::BlobNotFound])?;
    }

    /// A deleted blob is gone, and deleting it again finds nothing.
    async fn is_gone_when_deleted(subject, blob) {
        blob.store.delete_blob(&blob.name, None).await?;
        refused(blob.read().await, &[K::BlobNotFound])?;
        refused(blob.store.delete_blob(&blob.name, None).await, &[K::BlobNotFound])?;
    }

    /// Deleting a blob leaves all other blobs.
    async fn is_deleted_alone(subject, blob) {
        let neighbour = blob.sibling("a/blob2")?;
        neighbour.write("kept").await?;
        blob.store.delete_blob(&blob.name, None).await?;
        ensure_eq!(&*neighbour.read().await?, b"kept", "content of the neighbour");
    }

    /// A blob longer than the reader allows is refused as too large; a blob of exactly that length is read.
    async fn is_not_read_beyond_the_limit(subject, blob) {
        refused(blob.store.get_blob(&blob.name, 4).await, &[K::TooLarge])?;
        ensure_eq!(blob.store.get_blob(&blob.name, 5).await?.data.len(), 5, "length");
    }

    /// A blob's properties have the time of the last write.
    async fn tells_when_it_was_written(subject, blob: missing_blob) {
        let first = blob.write("x").await?.modified;
        subject.advance(secs(2)).await;
        let second = blob.write("y").await?.modified;
        ensure!(second > first, "{second:?} is not after {first:?}");
        ensure_eq!(blob.properties().await?.modified, second, "date");
    }

    /// Names with slashes, dots, dashes and equal signs are kept, up to 1,024 characters.
    async fn keeps_its_name(subject, blob) {
        for name in ["20261120/queue/0190-a_b.c=d", &format!("long/{}", "x".repeat(1019))] {
            let other = blob.sibling(name)?;
            other.write("named").await?;
            ensure_eq!(&*other.read().await?, b"named", "content");
            let listed = blob.store.list_blobs(blob.name.container(), name, None).await?.blobs;
            ensure_eq!(listed.first().map(|(name, _)| name.as_str()), Some(name), "name listed");
        }
    }

    /// Content and metadata change in one step: a reader never sees a mix of two writes.
    async fn is_written_in_one_step(subject, blob: missing_blob) {
        write_marked(&blob, "one").await?;
        let writing = async {
            for _ in 0..20 {
                write_marked(&blob, "two").await?;
                write_marked(&blob, "one").await?;
            }
            Ok::<_, Broken>(())
        };
        let reading = async {
            for _ in 0..40 {
                is_whole(&blob).await?;
                tokio::task::yield_now().await;
            }
            Ok::<_, Broken>(())
        };
        let (written, read) = futures_util::future::join(writing, reading).await;
        written?;
        read?;
    }

    /// A write whose future is dropped has changed the whole blob or nothing.
    async fn is_whole_after_a_dropped_write(subject, blob: missing_blob) {
        write_marked(&blob, "one").await?;
        for polls in 1..6 {
            let mut dropped = Box::pin(write_marked(&blob, "two"));
            for _ in 0..polls {
                if poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context).is_ready())).await {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(dropped);
            is_whole(&blob).await?;
        }
    }

    /// A detached handle sees the same blobs, and other handles see its writes.
    async fn is_the_same_through_a_detached_handle(subject, blob) {
        let detached = TestBlob::new(&subject.storage().detached(), blob.name.clone());
        ensure_eq!(&*detached.read().await?, b"first", "content through the detached handle");
        detached.write("second").await?;
        ensure_eq!(&*blob.read().await?, b"second", "content that the detached handle wrote");
    }
}
