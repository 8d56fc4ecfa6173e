//! A full disk, damage at run time, clock jumps, expired messages.

use jobqueue::Runtime;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jobqueue::QueueName;
use jobqueue::clock::{Clock, ManualClock};
use jobqueue::settings::Metadata;
use jobqueue::sqlite::Options;
use jobqueue::storage::{ExpiredReceipt, GetMessages, PutMessage, Storage, StoreErrorKind};

fn queue() -> QueueName {
    "queue".parse().unwrap()
}

fn get(count: u32, seconds: u64) -> GetMessages {
    GetMessages::new(count, Duration::from_secs(seconds))
}

async fn open(options: Options) -> Storage {
    let storage = Storage::open(options).await.unwrap();
    storage.queues().create_queue(&queue(), &Metadata::new()).await.unwrap();
    storage
}

async fn open_at(path: &Path, clock: &Arc<ManualClock>) -> Storage {
    open(Options::new(path).runtime(Runtime::new().with_clock(clock.clone()))).await
}

/// Outside of a runtime the last handle waits until the file is closed.
fn close(storage: Storage) {
    std::thread::spawn(move || drop(storage)).join().unwrap();
}

// Time that runs backwards neither gives leased messages out twice nor stops delayed ones.
#[tokio::test]
async fn the_clock_may_step_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let clock = Arc::new(ManualClock::new());
    let storage = open_at(&path, &clock).await;
    let delayed = PutMessage::new("delayed").with_visibility_delay(Duration::from_secs(60));
    storage.queues().put(&queue(), PutMessage::new("leased")).await.unwrap();
    storage.queues().put(&queue(), delayed).await.unwrap();
    let lease = storage.queues().get(&queue(), get(1, 30)).await.unwrap().messages.remove(0);

    clock.set(clock.now() - Duration::from_secs(86_400));
    assert!(storage.queues().get(&queue(), get(32, 30)).await.unwrap().messages.is_empty());
    clock.advance(Duration::from_secs(29));
    assert!(storage.queues().get(&queue(), get(32, 30)).await.unwrap().messages.is_empty());
    clock.advance(Duration::from_secs(2));
    let error = storage.queues().delete(&queue(), &lease.message, ExpiredReceipt::Refuse).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::LeaseExpired);
    assert_eq!(storage.queues().get(&queue(), get(32, 600)).await.unwrap().messages.len(), 1);
    close(storage);

    // Another process whose clock is still wrong continues from the time in the file.
    let storage = open_at(&path, &clock).await;
    assert!(storage.queues().get(&queue(), get(32, 600)).await.unwrap().messages.is_empty());
    clock.advance(Duration::from_secs(30));
    let expired = storage.queues().get(&queue(), get(32, 600)).await.unwrap().messages;
    assert_eq!(expired.len(), 1);
    assert_eq!(expired[0].text.as_deref(), Ok("delayed"));
}

#[tokio::test]
async fn thousands_of_expired_messages_hide_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new());
    let storage = open_at(&folder.path().join("jobs.db"), &clock).await;
    let short = || PutMessage::new("short").with_ttl(Some(Duration::from_secs(1)));
    let all = (0..3_000).map(|_| short()).chain([PutMessage::new("lasting")]).collect();
    storage.queues().put_all(&queue(), all).await.into_iter().for_each(|put| drop(put.unwrap()));
    clock.advance(Duration::from_secs(2));
    let mut rounds = 0;
    let message = loop {
        rounds += 1;
        let mut received = storage.queues().get(&queue(), get(32, 600)).await.unwrap();
        match received.messages.pop() {
            Some(message) => break message,
            // It says that it is worth asking again at once.
            None => assert_eq!(received.next_visible_in, Some(Duration::ZERO)),
        }
    };
    assert_eq!(message.text.as_deref(), Ok("lasting"));
    assert!(rounds > 1, "one get removed all expired messages at once");
    assert_eq!(storage.queues().queue_properties(&queue()).await.unwrap().approximate_count, 1);
}

// F75
#[tokio::test]
async fn the_longest_time_to_live_does_not_overflow() {
    let folder = tempfile::tempdir().unwrap();
    let storage = open(Options::new(folder.path().join("jobs.db"))).await;
    let queues = storage.queues();
    queues.put(&queue(), PutMessage::new("x").with_ttl(Some(Duration::MAX))).await.unwrap();
    let error =
        queues.put(&queue(), PutMessage::new("x").with_visibility_delay(Duration::MAX)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidInput);
    assert_eq!(queues.get(&queue(), get(32, 1)).await.unwrap().messages.len(), 1);
}

// F57
#[tokio::test]
async fn a_full_disk_fails_loudly_applies_nothing_and_is_got_over() {
    let folder = tempfile::tempdir().unwrap();
    let storage = open(Options::new(folder.path().join("jobs.db")).max_bytes(1 << 20)).await;
    let queues = storage.queues();
    let text = "x".repeat(20_000);
    let mut acknowledged = 0;
    let error = loop {
        match queues.put(&queue(), PutMessage::new(&text)).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::Full);
    assert!(!error.is_ambiguous(), "{error}");
    assert!(acknowledged > 10);
    let many = vec![PutMessage::new(&text); 5];
    let answers = queues.put_all(&queue(), many.into()).await;
    assert!(answers.iter().all(|put| put.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Full)));
    assert_eq!(queues.queue_properties(&queue()).await.unwrap().approximate_count, acknowledged);

    // In one transaction with puts that do not fit, what does fit still happens.
    let leased = queues.get(&queue(), get(10, 600)).await.unwrap().messages;
    let name = queue();
    let deletes = leased.iter().map(|message| queues.delete(&name, &message.message, ExpiredReceipt::Refuse));
    let puts = (0..20).map(|_| queues.put(&name, PutMessage::new("y".repeat(60_000))));
    let (puts, deletes) =
        futures_util::join!(futures_util::future::join_all(puts), futures_util::future::join_all(deletes));
    deletes.into_iter().for_each(|deleted| deleted.unwrap());
    assert!(puts.iter().any(Result::is_err));
    let more = puts.iter().filter(|put| put.is_ok()).count() as u64;
    let count = queues.queue_properties(&queue()).await.unwrap().approximate_count;
    assert_eq!(count, acknowledged - 10 + more);
}

// F58
#[tokio::test]
async fn damage_met_at_work_stops_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = open(Options::new(&path)).await;
    // More than the connections keep in memory.
    let all = (0..8_000).map(|n| PutMessage::new(format!("{n:0>4000}"))).collect();
    storage.queues().put_all(&queue(), all).await.into_iter().for_each(|put| drop(put.unwrap()));
    close(storage);
    let storage = open(Options::new(&path)).await;
    // By another process, since closing the file in this one would end SQLite's locks.
    let pages = std::fs::metadata(&path).unwrap().len() / 4096;
    let zeroed = std::process::Command::new("dd")
        .args(["if=/dev/zero", "bs=4096", "conv=notrunc", "status=none", "seek=20"])
        .arg(format!("of={}", path.display()))
        .arg(format!("count={}", pages - 20))
        .status();
    assert!(zeroed.unwrap().success());
    let error = loop {
        match storage.queues().get(&queue(), get(32, 600)).await {
            Ok(received) => assert!(!received.messages.is_empty(), "damage was read as an empty queue"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    let error = storage.queues().put(&queue(), PutMessage::new("x")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    let error = storage.queues().peek(&queue(), 1).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
}
