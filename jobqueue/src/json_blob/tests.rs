use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;

use super::*;
use crate::name::ContainerName;
use crate::storage::{Access, Blob, BlobListing, BlobProperties, LeaseDuration, LeaseId, Storage};

/// A blob store whose `n`-th put loses its request or its answer.
#[derive(Debug)]
struct Lossy {
    inner: Arc<dyn BlobStore>,
    puts: AtomicU64,
    loses: fn(u64) -> Option<Lost>,
}

#[derive(Debug, Clone, Copy)]
enum Lost {
    Request,
    Answer,
}

#[async_trait]
impl BlobStore for Lossy {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.inner.create_container(container).await
    }
    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.inner.delete_container(container).await
    }
    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        let lost = (self.loses)(self.puts.fetch_add(1, Ordering::Relaxed) + 1);
        let timeout = StoreError::new(Kind::Timeout, "put blob", blob).with_ambiguous(true);
        match lost {
            Some(Lost::Request) => return Err(timeout),
            Some(Lost::Answer) => self.inner.put_blob(blob, data, options).await.and(Err(timeout)),
            None => self.inner.put_blob(blob, data, options).await,
        }
    }
    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        self.inner.get_blob(blob, max_bytes).await
    }
    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        self.inner.blob_properties(blob).await
    }
    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        self.inner.delete_blob(blob, lease).await
    }
    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        self.inner.list_blobs(container, prefix, marker).await
    }
    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: LeaseDuration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        self.inner.acquire_lease(blob, duration, proposed).await
    }
    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        self.inner.renew_lease(blob, lease).await
    }
    async fn change_lease(
        &self,
        blob: &BlobName,
        lease: &LeaseId,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        self.inner.change_lease(blob, lease, proposed).await
    }
    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        self.inner.release_lease(blob, lease).await
    }
    async fn break_lease(&self, blob: &BlobName, period: Option<Duration>) -> Result<Duration, StoreError> {
        self.inner.break_lease(blob, period).await
    }
    async fn check_access(&self, container: &ContainerName, access: Access) -> Result<(), StoreError> {
        self.inner.check_access(container, access).await
    }
    fn detached(self: Arc<Self>) -> Arc<dyn BlobStore> {
        self
    }
}

fn counter(storage: &Storage, loses: fn(u64) -> Option<Lost>) -> JsonBlob<u64> {
    let inner = Arc::clone(storage.blobs());
    let blobs: Arc<dyn BlobStore> = Arc::new(Lossy { inner, puts: AtomicU64::new(0), loses });
    let name = BlobName::new(ContainerName::new("records").unwrap(), "counter").unwrap();
    JsonBlob::new(&blobs, name, 100)
}

/// Adds one. The change is deliberately not idempotent.
async fn add_one(counter: &JsonBlob<u64>) -> u64 {
    counter
        .change(Known::Nothing, |n| Edit::Write(n.unwrap_or(0) + 1, n.unwrap_or(0) + 1))
        .await
        .unwrap()
        .result
}

#[tokio::test(start_paused = true)]
async fn a_write_without_an_answer_is_applied_once() {
    for loses in [
        |n: u64| n.is_multiple_of(2).then_some(Lost::Answer),
        |n: u64| n.is_multiple_of(2).then_some(Lost::Request),
        |n: u64| [None, Some(Lost::Answer), Some(Lost::Request)][n as usize % 3],
    ] {
        let counter = counter(&Storage::memory(), loses);
        for n in 1..=10 {
            assert_eq!(add_one(&counter).await, n);
        }
        assert_eq!(counter.read().await.unwrap().unwrap().value, 10);
    }
}

#[tokio::test(start_paused = true)]
async fn many_writers_lose_no_change() {
    let storage = Storage::memory();
    let writers = (0..5).map(|_| {
        let counter = counter(&storage, |n| n.is_multiple_of(5).then_some(Lost::Answer));
        async move {
            for _ in 0..10 {
                add_one(&counter).await;
            }
        }
    });
    futures_util::future::join_all(writers).await;
    let counter = counter(&storage, |_| None);
    assert_eq!(counter.read().await.unwrap().unwrap().value, 50);
}

#[tokio::test(start_paused = true)]
async fn what_never_was_answered_stays_ambiguous() {
    let counter = counter(&Storage::memory(), |_| Some(Lost::Request));
    let error = counter.change(Known::Nothing, |_| Edit::Write(1, ())).await.unwrap_err();
    assert!(error.is_ambiguous(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_known_version_is_written_without_a_read_or_read_again() {
    let storage = Storage::memory();
    let counter = counter(&storage, |_| None);
    let first = counter
        .change(Known::Absent, |n| Edit::Write(n.unwrap_or(0) + 1, ()))
        .await
        .unwrap()
        .version
        .unwrap();
    let second =
        counter.change(Known::Version(first.clone()), |n| Edit::Write(n.unwrap() + 1, ())).await.unwrap();
    assert_eq!(second.version.unwrap().value, 2);
    // The metadata no longer holds the mark of the first version.
    let third = counter.change(Known::Version(first), |n| Edit::Write(n.unwrap() + 1, ())).await.unwrap();
    assert_eq!(third.version.unwrap().value, 3);
}

#[tokio::test]
async fn a_damaged_document_is_neither_read_nor_written() {
    let storage = Storage::memory();
    let counter = counter(&storage, |_| None);
    add_one(&counter).await;
    let text = Bytes::from_static(b"\"secret");
    storage.blobs().put_blob(counter.name(), text, PutBlob::new()).await.unwrap();
    let error = counter.change(Known::Nothing, |_| Edit::Write(1, ())).await.unwrap_err();
    assert!(error.kind() == Kind::Corrupt && !error.to_string().contains("secret"), "{error}");
    assert!(counter.read().await.is_err());
}
