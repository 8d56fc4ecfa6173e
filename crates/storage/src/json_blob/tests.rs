use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::name::ContainerName;
use crate::runtime::Runtime;
use crate::{Call, Intercepted, Interceptor, Operation, Stores, memory};

/// Loses the request or the answer of selected puts of a blob: `loses` gets the number of the put.
#[derive(Debug)]
struct Lossy {
    puts: AtomicU64,
    loses: fn(u64) -> Option<Lost>,
}

#[derive(Debug, Clone, Copy)]
enum Lost {
    Request,
    Answer,
}

impl Interceptor for Lossy {
    async fn call<T: Send>(
        &self,
        call: Call<'_>,
        perform: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        if call.operation != Operation::PutBlob {
            return perform.await;
        }
        let lost = (self.loses)(self.puts.fetch_add(1, Ordering::Relaxed) + 1);
        let timeout = StoreError::new(Kind::Timeout, "put blob", call.subject).with_ambiguous(true);
        match lost {
            Some(Lost::Request) => Err(timeout),
            Some(Lost::Answer) => perform.await.and(Err(timeout)),
            None => perform.await,
        }
    }
}

fn counter(storage: &Stores, loses: fn(u64) -> Option<Lost>) -> JsonBlob<u64> {
    let lossy = Arc::new(Lossy { puts: AtomicU64::new(0), loses });
    let blobs = Intercepted::blobs(Arc::clone(&storage.blobs), &lossy);
    let name = BlobName::new(ContainerName::new("records").unwrap(), "counter").unwrap();
    JsonBlob::new(&blobs, &Runtime::new(), name, 100)
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
async fn write_without_an_answer_is_applied_once() {
    for loses in [
        |n: u64| n.is_multiple_of(2).then_some(Lost::Answer),
        |n: u64| n.is_multiple_of(2).then_some(Lost::Request),
        |n: u64| [None, Some(Lost::Answer), Some(Lost::Request)][n as usize % 3],
    ] {
        let counter = counter(&memory::open(), loses);
        for n in 1..=10 {
            assert_eq!(add_one(&counter).await, n);
        }
        assert_eq!(counter.read().await.unwrap().unwrap().value, 10);
    }
}

#[tokio::test(start_paused = true)]
async fn many_writers_lose_no_change() {
    let storage = memory::open();
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
async fn change_without_any_answer_stays_ambiguous() {
    let counter = counter(&memory::open(), |_| Some(Lost::Request));
    let error = counter.change(Known::Nothing, |_| Edit::Write(1, ())).await.unwrap_err();
    assert!(error.is_ambiguous(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn known_version_is_written_without_a_read_or_read_again() {
    let storage = memory::open();
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
async fn damaged_document_is_neither_read_nor_written() {
    let storage = memory::open();
    let counter = counter(&storage, |_| None);
    add_one(&counter).await;
    let text = Bytes::from_static(b"\"secret");
    storage.blobs.put_blob(counter.name(), text, PutBlob::new()).await.unwrap();
    let error = counter.change(Known::Nothing, |_| Edit::Write(1, ())).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(!error.to_string().contains("secret"), "{error}");
    assert!(counter.read().await.is_err());
}
