//! A full file does not stop work on the messages it has.

use jobqueue_storage::runtime::Runtime;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use jobqueue_storage::clock::ManualClock;
use jobqueue_storage::{
    ExpiredReceipt, GetMessages, LeasedMessage, Metadata, PutMessage, QueueName, QueueStore, StoreErrorKind,
    UpdateMessage,
};

use super::options::{Options, Synchronous};
use super::store::Store;

const MINUTE: Duration = Duration::from_secs(60);

/// Puts messages until there is no room for even the smallest. Returns their number.
async fn fill(store: &Store, queue: &QueueName, bytes: usize) -> usize {
    let (mut bytes, mut count) = (bytes, 0);
    while bytes > 0 {
        let texts = (0..100).map(|_| PutMessage::new("x".repeat(bytes)));
        match join_all(texts.map(|text| store.put(queue, text))).await {
            puts if puts.iter().all(Result::is_ok) => count += puts.len(),
            puts => {
                let kinds =
                    puts.iter().filter_map(|put| put.as_ref().err()).map(jobqueue_storage::StoreError::kind);
                assert!(
                    kinds.clone().all(|kind| kind == StoreErrorKind::Full),
                    "{:?}",
                    kinds.collect::<Vec<_>>()
                );
                count += puts.iter().filter(|put| put.is_ok()).count();
                bytes /= 2;
            }
        }
    }
    count
}

async fn lease(store: &Store, queue: &QueueName, gets: usize) -> Vec<LeasedMessage> {
    let mut leased = Vec::new();
    for _ in 0..gets {
        leased.extend(store.get(queue, GetMessages::new(32, MINUTE)).await.unwrap().messages);
    }
    leased
}

/// Leases some messages, renews the leases, puts some messages back with a longer text, and deletes the
/// others. Returns the number of deletions.
async fn work(store: &Store, queue: &QueueName, clock: &ManualClock) -> usize {
    let leased = lease(store, queue, 16).await;
    let done = leased.into_iter().enumerate().map(async |(number, mut one)| {
        let renewed = store.update(queue, &one.message, UpdateMessage::new(MINUTE * 2)).await.unwrap();
        one.message.receipt = renewed.receipt;
        if one.dequeue_count > 2 || number % 4 != 0 {
            store.delete(queue, &one.message, ExpiredReceipt::Refuse).await.unwrap();
            return 1;
        }
        let text = one.text.unwrap() + &"y".repeat(300);
        let mut back = UpdateMessage::new(MINUTE).with_text(Some(text));
        back.ends_lease = true;
        store.update(queue, &one.message, back).await.unwrap();
        0
    });
    let deleted = join_all(done).await.into_iter().sum();
    clock.advance(MINUTE);
    deleted
}

#[tokio::test]
async fn full_file_is_worked_through() {
    for bytes in [500, 1_500, 9_000, 60_000] {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new());
        let options =
            Options::new(folder.path().join("jobs.db"))
                .runtime(Runtime::new().with_clock(Arc::<ManualClock>::clone(&clock)));
        let store = Store::open(options.max_bytes(4 << 20)).await.unwrap();
        let queue: QueueName = "orders".parse().unwrap();
        store.create_queue(&queue, &Metadata::new()).await.unwrap();
        let mut left = fill(&store, &queue, bytes).await;
        // The leases of workers that died.
        assert!(!lease(&store, &queue, 32).await.is_empty());
        clock.advance(MINUTE);
        while left > 0 {
            left -= work(&store, &queue, &clock).await;
        }
        assert!(lease(&store, &queue, 1).await.is_empty());
    }
}

/// Leases some messages, as long as the file has room for the leases.
async fn lease_some(store: &Store, queue: &QueueName) -> Vec<LeasedMessage> {
    let mut leased = Vec::new();
    for _ in 0..8 {
        match store.get(queue, GetMessages::new(32, MINUTE)).await {
            Ok(received) => leased.extend(received.messages),
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::Full);
                break;
            }
        }
    }
    leased
}

/// Puts messages back, with texts `longer` bytes longer where the file has room.
async fn put_back(store: &Store, queue: &QueueName, leased: Vec<LeasedMessage>, longer: usize) {
    let backs = leased.into_iter().map(async |one| {
        let mut back = UpdateMessage::new(MINUTE);
        back.ends_lease = true;
        if longer > 0 {
            let with_text = back.clone().with_text(Some(one.text.unwrap() + &"y".repeat(longer)));
            match store.update(queue, &one.message, with_text).await {
                Ok(_) => return,
                Err(error) => assert_eq!(error.kind(), StoreErrorKind::Full),
            }
        }
        store.update(queue, &one.message, back).await.unwrap();
    });
    join_all(backs).await;
}

/// As long as no deletion succeeds, no page becomes free, and the reserved pages are used up.
#[tokio::test]
async fn full_file_gives_messages_although_all_are_put_back() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new());
    let options =
        Options::new(folder.path().join("jobs.db"))
            .runtime(Runtime::new().with_clock(Arc::<ManualClock>::clone(&clock)));
    let options = options.max_bytes(1 << 20).synchronous(Synchronous::Normal);
    let store = Store::open(options).await.unwrap();
    let queue: QueueName = "orders".parse().unwrap();
    store.create_queue(&queue, &Metadata::new()).await.unwrap();
    let mut left = fill(&store, &queue, 20).await;
    for round in 0..16 {
        let leased = lease_some(&store, &queue).await;
        assert!(!leased.is_empty(), "round {round}");
        put_back(&store, &queue, leased, if round < 4 { 300 } else { 0 }).await;
        clock.advance(MINUTE);
    }
    while left > 0 {
        let leased = lease_some(&store, &queue).await;
        assert!(!leased.is_empty(), "{left} messages are left");
        left -= leased.len();
        let deletions = leased.iter().map(|one| store.delete(&queue, &one.message, ExpiredReceipt::Refuse));
        assert!(join_all(deletions).await.iter().all(Result::is_ok));
        clock.advance(MINUTE);
    }
    assert!(lease(&store, &queue, 1).await.is_empty());
}
