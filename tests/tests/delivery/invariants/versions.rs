//! Old and new programs on one queue: F97. The effect of a rolling deploy on messages, in both directions.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::clock::ManualClock;
use jobqueue::sqlite::Options;
use jobqueue::{JobError, QueueMessage, Runtime, Storage, Worker, memory};
use jobqueue_tests::jobs::outcomes;
use serde::{Deserialize, Serialize};

/// The first release.
#[derive(Debug, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order")]
struct Order {
    id: u32,
    note: String,
}

/// One more field, with a default.
#[derive(Debug, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order")]
struct Added {
    id: u32,
    note: String,
    #[serde(default)]
    express: bool,
}

/// One field less.
#[derive(Debug, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order")]
struct Removed {
    id: u32,
}

/// A field renamed; the old name is still read.
#[derive(Debug, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order")]
struct Renamed {
    id: u32,
    #[serde(alias = "note")]
    remark: String,
}

/// A field renamed under a new version.
#[derive(Debug, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order", version = 2, upgrade_from = Order)]
struct Second {
    id: u32,
    remark: String,
}

impl From<Order> for Second {
    fn from(order: Order) -> Self {
        Self { id: order.id, remark: order.note }
    }
}

/// The storages in which the matrix is tried, on a clock that the test moves.
async fn storages(folder: &std::path::Path, clock: &Arc<ManualClock>) -> [Storage; 2] {
    let file =
        Storage::open(Options::new(folder.join("jobs.db")).runtime(Runtime::new().with_clock(clock.clone())))
            .await
            .unwrap();
    [memory::open_on(Runtime::new().with_clock(clock.clone())), file]
}

/// Runs a worker that knows `M` until nothing is visible. Returns the outcomes and the messages of its
/// handler.
async fn work<M: QueueMessage + Debug>(storage: &Storage) -> (Vec<String>, Vec<String>) {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = Arc::clone(&seen);
    let handler = move |message: M| {
        sink.lock().unwrap().push(format!("{message:?}"));
        async { Ok::<(), JobError>(()) }
    };
    let (log, listen) = outcomes();
    let worker = Worker::builder(storage.clone()).handle(handler).on_event(listen).build().unwrap();
    let _ = worker.run_until_idle().await.unwrap();
    let (log, seen) = (log.lock().unwrap().clone(), seen.lock().unwrap().clone());
    (log, seen)
}

async fn send<M: QueueMessage>(storage: &Storage, message: &M) {
    let _ = storage.queue::<M>().await.unwrap().send(message).await.unwrap();
}

fn order() -> Order {
    Order { id: 1, note: "n".into() }
}

// F97
#[tokio::test]
async fn new_workers_read_old_messages() {
    let folder = tempfile::tempdir().unwrap();
    for storage in storages(folder.path(), &Arc::default()).await {
        send(&storage, &order()).await;
        assert_eq!(work::<Order>(&storage).await.1, [r#"Order { id: 1, note: "n" }"#]);
        send(&storage, &order()).await;
        assert_eq!(work::<Added>(&storage).await.1, [r#"Added { id: 1, note: "n", express: false }"#]);
        send(&storage, &order()).await;
        assert_eq!(work::<Removed>(&storage).await.1, ["Removed { id: 1 }"]);
        send(&storage, &order()).await;
        assert_eq!(work::<Renamed>(&storage).await.1, [r#"Renamed { id: 1, remark: "n" }"#]);
        send(&storage, &order()).await;
        assert_eq!(work::<Second>(&storage).await.1, [r#"Second { id: 1, remark: "n" }"#]);
        assert!(storage.queue::<Order>().await.unwrap().is_empty().await.unwrap());
    }
}

// F97
#[tokio::test]
async fn old_workers_read_added_fields_and_keep_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    for storage in storages(folder.path(), &Arc::default()).await {
        send(&storage, &Added { id: 2, note: "n".into(), express: true }).await;
        assert_eq!(work::<Order>(&storage).await.1, [r#"Order { id: 2, note: "n" }"#]);
        // Without a new version, a field less or renamed is a mistake, which nothing is lost by.
        send(&storage, &Removed { id: 3 }).await;
        send(&storage, &Renamed { id: 4, remark: "r".into() }).await;
        let (log, seen) = work::<Order>(&storage).await;
        assert_eq!(log, vec!["dead_lettered".to_owned(); 2]);
        assert_eq!(seen.len(), 0);
        let letters = storage.queue::<Renamed>().await.unwrap().dead_letters().unwrap();
        assert_eq!(letters.list().await.unwrap().letters.len(), 2);
    }
}

// F97
#[tokio::test]
async fn old_workers_leave_newer_versions_to_new_ones() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::<ManualClock>::default();
    for storage in storages(folder.path(), &clock).await {
        send(&storage, &Second { id: 5, remark: "r".into() }).await;
        for _ in 0..2 {
            assert_eq!(work::<Order>(&storage).await, (vec!["released".to_owned()], vec![]));
            // Until it is visible again.
            assert_eq!(work::<Second>(&storage).await.0.len(), 0);
            clock.advance(Duration::from_secs(60));
        }
        let (log, seen) = work::<Second>(&storage).await;
        assert_eq!(log, vec!["completed".to_owned()]);
        assert_eq!(seen, [r#"Second { id: 5, remark: "r" }"#]);
        assert!(
            storage
                .queue::<Second>()
                .await
                .unwrap()
                .dead_letters()
                .unwrap()
                .list()
                .await
                .unwrap()
                .letters
                .is_empty()
        );
    }
}
