//! Promises of listing blobs.

use super::super::Broken;
use super::super::fixture::TestBlob;

async fn names(blob: &TestBlob, prefix: &str) -> Result<Vec<String>, Broken> {
    let (mut names, mut marker) = (Vec::new(), None::<String>);
    loop {
        let page = blob.store.list_blobs(blob.name.container(), prefix, marker.as_deref()).await?;
        ensure!(page.blobs.len() <= 5_000, "a page of {}", page.blobs.len());
        names.extend(page.blobs.into_iter().map(|(name, _)| name));
        match page.next {
            Some(next) => marker = Some(next),
            None => return Ok(names),
        }
    }
}

promises! { "listing";
    /// All blobs are listed once, in order of name.
    async fn has_every_blob_in_order(subject) {
        let blob = subject.missing_blob().await?;
        for name in ["b", "a/2", "c/1", "a/1", "B", "a-1"] {
            blob.sibling(name)?.write("x").await?;
        }
        ensure_eq!(names(&blob, "").await?, ["B", "a-1", "a/1", "a/2", "b", "c/1"], "names");
    }

    /// A listing has only blobs with the prefix, which need not end at a slash.
    async fn has_only_blobs_with_the_prefix(subject) {
        let blob = subject.missing_blob().await?;
        for name in ["a/1", "a/2", "ab", "b/a/1"] {
            blob.sibling(name)?.write("x").await?;
        }
        ensure_eq!(names(&blob, "a/").await?, ["a/1", "a/2"], "names");
        ensure_eq!(names(&blob, "a").await?, ["a/1", "a/2", "ab"], "names");
        ensure!(names(&blob, "c").await?.is_empty(), "names out of nothing");
    }

    /// An empty container has an empty listing.
    async fn of_an_empty_container_is_empty(subject) {
        let blob = subject.missing_blob().await?;
        ensure!(names(&blob, "").await?.is_empty(), "names out of nothing");
    }

    /// A listing tells the properties of each blob.
    async fn tells_properties(subject) {
        let blob = subject.blob().await?;
        blob.leased().await?;
        let known = blob.properties().await?;
        let listed = blob.store.list_blobs(blob.name.container(), "", None).await?.blobs;
        let listed = listed.first().map(|(_, properties)| properties);
        ensure_eq!(listed.map(|p| p.length), Some(known.length), "length");
        ensure_eq!(listed.map(|p| p.etag.as_str().trim_matches('"')), Some(known.etag.as_str().trim_matches('"')), "tag");
        ensure_eq!(listed.map(|p| p.lease), Some(known.lease), "lease");
    }

    /// A deleted blob is no longer listed.
    async fn forgets_deleted_blobs(subject) {
        let blob = subject.blob().await?;
        blob.store.delete_blob(&blob.name, None).await?;
        ensure!(names(&blob, "").await?.is_empty(), "a deleted blob is listed");
    }
}
