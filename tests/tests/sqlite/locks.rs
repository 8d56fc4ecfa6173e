//! Several connections and processes on one SQLite file.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use jobqueue::Storage;
use jobqueue::sqlite::{Options, put_blob_in, put_in};
use jobqueue::storage::BlobName;
use jobqueue::storage::{
    ExpiredReceipt, GetMessages, PutBlob, PutMessage, StoreError, StoreErrorKind, UpdateMessage,
};
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::say;
use jobqueue_tests::sqlite_file::{open, queue};
use rusqlite::{Connection, TransactionBehavior};

fn get(count: u32) -> GetMessages {
    GetMessages::new(count, Duration::from_secs(600))
}

/// Holds the write lock until it is released.
struct Holder {
    release: mpsc::Sender<()>,
    thread: thread::JoinHandle<()>,
}

impl Holder {
    fn start(path: PathBuf) -> Self {
        let (release, released) = mpsc::channel();
        let (began, beginning) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut connection = Connection::open(path).unwrap();
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            began.send(()).unwrap();
            released.recv().unwrap();
            transaction.rollback().unwrap();
        });
        beginning.recv().unwrap();
        Self { release, thread }
    }

    fn release(self) {
        self.release.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

// A part of the next test; alone it does nothing.
#[tokio::test]
async fn part_claim() {
    let Some(path) = part("locks::part_claim") else { return };
    let storage = open(Path::new(&path)).await;
    loop {
        let got = storage.queues().get(&queue(), get(32)).await.unwrap().messages;
        if got.is_empty() {
            return;
        }
        for message in got {
            say!("{}", message.text.unwrap());
        }
    }
}

// I19, F61
#[tokio::test]
async fn each_message_is_claimed_once_by_four_processes() {
    const MESSAGES: usize = 10_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = open(&path).await;
    let all = (0..MESSAGES).map(|n| PutMessage::new(n.to_string())).collect();
    storage.queues().put_all(&queue(), all).await.into_iter().for_each(|put| drop(put.unwrap()));

    let parts: Vec<_> = (0..4).map(|_| Part::start("locks::part_claim", &path)).collect();
    let readers: Vec<_> = parts.into_iter().map(|part| thread::spawn(|| part.finish())).collect();
    let leased_job: Vec<String> = readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
    assert_eq!(leased_job.len(), MESSAGES);
    assert_eq!(leased_job.iter().collect::<HashSet<_>>().len(), MESSAGES);
}

// I19, F62
#[tokio::test]
async fn a_short_lock_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = open(&path).await;
    let holder = Holder::start(path.clone());
    let queues = Arc::clone(storage.queues());
    let put = tokio::spawn(async move { queues.put(&queue(), PutMessage::new("x")).await });
    // Readers do not wait for the lock.
    assert_eq!(storage.queues().peek(&queue(), 1).await.unwrap().len(), 0);
    assert!(!put.is_finished());
    tokio::task::spawn_blocking(|| holder.release()).await.unwrap();
    put.await.unwrap().unwrap();
}

// F72
#[tokio::test]
async fn a_long_lock_ends_in_a_timeout_that_says_nothing_was_done() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = open(&path).await;
    let impatient = Storage::open(Options::new(&path).busy_timeout(Duration::from_millis(50))).await.unwrap();
    let holder = Holder::start(path.clone());
    let error = impatient.queues().put(&queue(), PutMessage::new("x")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    assert!(error.is_retryable() && !error.is_ambiguous(), "{error}");
    tokio::task::spawn_blocking(|| holder.release()).await.unwrap();
    assert!(storage.queues().get(&queue(), get(1)).await.unwrap().messages.is_empty());
    impatient.queues().put(&queue(), PutMessage::new("x")).await.unwrap();
}

// A part of the next test; alone it does nothing.
#[tokio::test]
async fn part_read_and_put() {
    let Some(path) = part("locks::part_read_and_put") else { return };
    let options = Options::new(path).busy_timeout(Duration::from_millis(50)).migrate(false);
    let storage = Storage::open(options).await.unwrap();
    say!("{}", storage.queues().peek(&queue(), 32).await.unwrap().len());
    say!("{}", storage.queues().put(&queue(), PutMessage::new("x")).await.unwrap_err());
}

// F72: an operator's shell may keep a transaction open for minutes.
#[tokio::test]
async fn store_is_opened_and_read_while_another_process_holds_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = open(&path).await;
    storage.queues().put(&queue(), PutMessage::new("x")).await.unwrap();
    let holder = Holder::start(path.clone());
    let said = tokio::task::spawn_blocking({
        let path = path.clone();
        move || Part::start("locks::part_read_and_put", &path).finish()
    });
    let said = said.await.unwrap();
    assert_eq!(said[0], "1");
    assert!(said[1].contains("was not applied") && said[1].contains("COMMIT or ROLLBACK"), "{}", said[1]);
    #[cfg(target_os = "linux")]
    assert!(said[1].contains(&format!("process {} (`", std::process::id())), "{}", said[1]);
    tokio::task::spawn_blocking(|| holder.release()).await.unwrap();
    storage.queues().put(&queue(), PutMessage::new("x")).await.unwrap();
}

// F72
#[tokio::test]
async fn creating_tables_waits_for_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    Connection::open(&path).unwrap().pragma_update(None, "journal_mode", "wal").unwrap();
    let holder = Holder::start(path.clone());
    let impatient = Options::new(&path).busy_timeout(Duration::from_millis(50));
    let error = Storage::open(impatient.clone()).await.unwrap_err();
    let cause = StoreError::in_chain(&error).unwrap();
    assert_eq!(cause.kind(), StoreErrorKind::Timeout, "{error:?}");
    assert!(cause.to_string().contains("holds the write lock"), "{error:?}");
    tokio::task::spawn_blocking(|| holder.release()).await.unwrap();
    Storage::open(impatient).await.unwrap();
}

// I19, F72: the renewer of a lease waits for a part of the lease, and another process may hold the lock for
// longer.
#[tokio::test]
async fn renewal_that_is_given_up_during_a_lock_is_not_made_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = open(&path).await;
    let (queues, queue) = (storage.queues(), queue());
    queues.put(&queue, PutMessage::new("x")).await.unwrap();
    let leased = queues.get(&queue, get(1)).await.unwrap().messages.remove(0);
    let holder = Holder::start(path.clone());
    let renewal = || queues.update(&queue, &leased.message, UpdateMessage::new(Duration::from_secs(60)));
    tokio::time::timeout(Duration::from_millis(50), renewal()).await.unwrap_err();
    tokio::task::spawn_blocking(|| holder.release()).await.unwrap();
    renewal().await.expect("the receipt is still the one of the lease");
}

// I19, F64
#[tokio::test(flavor = "multi_thread")]
async fn no_snapshot_error_escapes_between_stores_that_write_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let storage = open(&path).await;
        running.spawn(async move {
            for _ in 0..50 {
                let queues = storage.queues();
                queues.put(&queue(), PutMessage::new("x")).await.unwrap();
                for message in queues.get(&queue(), get(2)).await.unwrap().messages {
                    let change = UpdateMessage::new(Duration::from_secs(60));
                    let updated = queues.update(&queue(), &message.message, change).await.unwrap();
                    let mut newest = message.message.clone();
                    newest.receipt = updated.receipt;
                    queues.delete(&queue(), &newest, ExpiredReceipt::Refuse).await.unwrap();
                }
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
    let storage = open(&path).await;
    assert_eq!(storage.queues().queue_properties(&queue()).await.unwrap().approximate_count, 0);
}

// I19, F71
#[tokio::test]
async fn a_message_sent_in_a_transaction_shares_its_fate() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = open(&path).await;
    let container = "blobs".parse().unwrap();
    storage.blobs().create_container(&container).await.unwrap();
    let blob = BlobName::new(container, "a").unwrap();
    let mut subscribe = storage.queues().subscribe(&queue()).unwrap();

    let mut mine = Connection::open(&path).unwrap();
    mine.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)").unwrap();
    for commit in [false, true] {
        let transaction = mine.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        transaction.execute("INSERT INTO orders VALUES (1)", []).unwrap();
        put_in(&transaction, &queue(), PutMessage::new("order")).unwrap();
        put_blob_in(&transaction, &blob, "content".into(), PutBlob::if_absent()).unwrap();
        let missing = put_in(&transaction, &"none".parse().unwrap(), PutMessage::new("x")).unwrap_err();
        assert_eq!(missing.kind(), StoreErrorKind::QueueNotFound);
        assert!(storage.queues().peek(&queue(), 1).await.unwrap().is_empty());
        if commit {
            transaction.commit().unwrap();
        } else {
            transaction.rollback().unwrap();
            assert!(storage.queues().get(&queue(), get(1)).await.unwrap().messages.is_empty());
            let error = storage.blobs().blob_properties(&blob).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::BlobNotFound);
        }
    }
    // The store hears of the commit of another connection.
    let message = loop {
        subscribe.wait().await;
        if let Some(message) = storage.queues().get(&queue(), get(1)).await.unwrap().messages.pop() {
            break message;
        }
    };
    assert_eq!(message.text.as_deref(), Ok("order"));
    assert_eq!(&storage.blobs().get_blob(&blob, 100).await.unwrap().data[..], b"content");
}

// F71
#[tokio::test]
async fn a_transaction_on_another_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut mine = Connection::open(folder.path().join("other.db")).unwrap();
    let transaction = mine.transaction().unwrap();
    let error = put_in(&transaction, &queue(), PutMessage::new("x")).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidInput);
}

// A part of the next test; alone it does nothing.
#[tokio::test]
async fn part_put() {
    let Some(path) = part("locks::part_put") else { return };
    let storage = open(Path::new(&path)).await;
    storage.queues().put(&queue(), PutMessage::new("from afar")).await.unwrap();
}

#[tokio::test]
async fn another_process_notifies() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = open(&path).await;
    let mut subscribe = storage.queues().subscribe(&queue()).unwrap();
    let part = Part::start("locks::part_put", &path);
    loop {
        subscribe.wait().await;
        if !storage.queues().get(&queue(), get(1)).await.unwrap().messages.is_empty() {
            break;
        }
    }
    part.finish();
}

#[tokio::test]
async fn delayed_message_of_another_connection_notifies() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = open(&path).await;
    let mut subscribe = storage.queues().subscribe(&queue()).unwrap();
    let mut mine = Connection::open(&path).unwrap();
    for round in 0..3 {
        let transaction = mine.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let later = Duration::from_secs(600 - round);
        put_in(&transaction, &queue(), PutMessage::new("later").with_visibility_delay(later)).unwrap();
        transaction.commit().unwrap();
        loop {
            subscribe.wait().await;
            let received = storage.queues().get(&queue(), get(1)).await.unwrap();
            assert!(received.messages.is_empty());
            // The ring may be for the round before.
            if received.next_visible_in.is_some_and(|wait| wait <= later) {
                break;
            }
        }
    }
}

// F65
#[tokio::test]
async fn the_log_is_cut_after_a_long_reader_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = open(&path).await;
    let log = || std::fs::metadata(folder.path().join("jobs.db-wal")).unwrap().len();
    let write = async || {
        for _ in 0..12 {
            let all = (0..200).map(|_| PutMessage::new("x".repeat(8_000))).collect();
            storage.queues().put_all(&queue(), all).await.into_iter().for_each(|put| drop(put.unwrap()));
            storage.queues().clear(&queue()).await.unwrap();
        }
    };
    let mut reader = Connection::open(&path).unwrap();
    let reading = reader.transaction().unwrap();
    let _: i64 = reading.query_row("SELECT count(*) FROM jobqueue_message", [], |row| row.get(0)).unwrap();
    write().await;
    let held = log();
    reading.rollback().unwrap();
    for _ in 0..4 {
        write().await;
    }
    assert!(log() < held * 2, "the log grew from {held} to {} although nobody reads", log());
}
