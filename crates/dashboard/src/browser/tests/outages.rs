//! Pages while the storage, or a part of it, does not answer, and pages that show only a part.


use jobqueue::storage::{BlobName, PutBlob};
use jobqueue::{Storage, memory};

use super::support::Browser;

// audit 28, operator B2
#[tokio::test]
async fn batches_behind_those_that_are_listed_are_not_denied() {
    let storage = Storage::memory();
    let browser = Browser::operating(&storage);
    assert!(browser.page("/batches").await.contains("There are no batches"));
    let container = "jobqueue-batches".parse().unwrap();
    storage.blobs().create_container(&container).await.unwrap();
    for number in 0..=200_000 {
        // In the folder of another program.
        let blob = BlobName::new(container.clone(), format!("=/{number}")).unwrap();
        let _ = storage.blobs().put_blob(&blob, "1".into(), PutBlob::new()).await.unwrap();
    }
    let page = Browser::operating(&storage).page("/batches").await;
    assert!(page.contains("Batches with later ids are left out"), "{page}");
    assert!(!page.contains("There are no batches"), "{page}");
}
