//! Promises about listing blobs.

use crate::prelude::*;

/// The maximum number of blobs on a page.
const MAX_PAGE: usize = 5_000;

async fn names(blob: &TestBlob, prefix: &str) -> Result<Vec<String>, Broken> {
    let (mut names, mut marker) = (Vec::new(), None::<String>);
    loop {
        let page = blob.store.list_blobs(blob.name.container(), prefix, marker.as_deref()).await?;
        ensure!(page.blobs.len() <= MAX_PAGE, "a page of {}", page.blobs.len());
        names.extend(page.blobs.into_iter().map(|(name, _)| name));
        match page.next {
            Some(next) => marker = Some(next),
            None => return Ok(names),
        }
    }
}

promises! { "listing";
    /// All blobs are listed once, in the order of their names.
    async fn has_every_blob_in_order(subject, blob: missing_blob) {
        for name in ["b", "a/2", "c/1", "a/1", "B", "a-1"] {
            blob.sibling(name)?.write("x").await?;
        }
        ensure_eq!(names(&blob, "").await?, ["B", "a-1", "a/1", "a/2", "b", "c/1"], "names");
    }

    /// A listing has only blobs with the prefix, which need not end with a slash.
    async fn has_only_blobs_with_the_prefix(subject, blob: missing_blob) {
        for name in ["a/1", "a/2", "ab", "b/a/1"] {
            blob.sibling(name)?.write("x").await?;
        }
        ensure_eq!(names(&blob, "a/").await?, ["a/1", "a/2"], "names");
        ensure_eq!(names(&blob, "a").await?, ["a/1", "a/2", "ab"], "names");
        ensure!(names(&blob, "c").await?.is_empty(), "names out of nothing");
    }

    /// An empty container has an empty listing.
    async fn of_an_empty_container_is_empty(subject, blob: missing_blob) {
        ensure!(names(&blob, "").await?.is_empty(), "names out of nothing");
    }

    /// A listing returns the properties of each blob.
    async fn tells_properties(subject, blob) {
        if subject.storage().leases().is_ok() {
            blob.leased().await?;
        }
        let known = blob.properties().await?;
        let listed = blob.store.list_blobs(blob.name.container(), "", None).await?.blobs;
        let listed = listed.first().map(|(_, properties)| properties);
        ensure_eq!(listed.map(|p| p.length), Some(known.length), "length");
        ensure_eq!(listed.map(|p| p.etag.as_str()), Some(known.etag.as_str()), "tag");
        ensure_eq!(listed.map(|p| p.is_leased), Some(known.is_leased), "lease");
    }

    /// The time in a listing, even an empty one, comes from the clock that stamps modifications.
    async fn is_stamped_by_the_clock_of_modifications(subject, blob) {
        let modified = blob.properties().await?.modified;
        if let Some(now) = blob.store.list_blobs(blob.name.container(), "", None).await?.now {
            ensure!(near(now, modified, subject.tolerance()), "{now:?} after a modification at {modified:?}");
            let empty = blob.store.list_blobs(blob.name.container(), "no-such-name", None).await?;
            ensure!(empty.now.is_some(), "a listing without names has no time");
        }
    }

    /// A deleted blob is no longer listed.
    async fn forgets_deleted_blobs(subject, blob) {
        blob.store.delete_blob(&blob.name, None).await?;
        ensure!(names(&blob, "").await?.is_empty(), "a deleted blob is listed");
    }

    /// A listing of several pages continues after its marker and has each blob once.
    @slow
    async fn goes_on_behind_a_marker(subject, blob: missing_blob) {
        let all: Vec<String> = (0..MAX_PAGE + 1).map(|number| format!("{number:05}")).collect();
        for some in all.chunks(64) {
            let siblings = some.iter().map(|name| blob.sibling(name)).collect::<Result<Vec<_>, _>>()?;
            let writes = siblings.iter().map(|sibling| sibling.write("x"));
            futures_util::future::try_join_all(writes).await?;
        }
        let first = blob.store.list_blobs(blob.name.container(), "", None).await?;
        ensure!(first.next.is_some(), "a page of {} without a marker", first.blobs.len());
        ensure!(names(&blob, "").await? == all, "the names or their order differ from the written blobs");
    }
}
