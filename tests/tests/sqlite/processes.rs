//! Effects of processes on each other's SQLite storage: they upgrade its schema (F66), copy its files (F68),
//! and are forked (F69).

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use futures_util::FutureExt;
use jobqueue::sqlite::{Options, backup};
use jobqueue::storage::*;
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::fork::fork;
use jobqueue_tests::say;
use jobqueue_tests::sqlite_file::{open, queue};
use rusqlite::{Connection, TransactionBehavior};

async fn count(storage: &Storage) -> u64 {
    storage.queues().queue_properties(&queue()).await.unwrap().approximate_count
}

// A part of the next test: a newer version of the program, which brings up the file's tables.
#[test]
fn part_upgrade() {
    let Some(path) = part("processes::part_upgrade") else { return };
    let mut connection = Connection::open(path).unwrap();
    connection.busy_timeout(Duration::from_secs(20)).unwrap();
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    transaction.execute_batch("ALTER TABLE jobqueue_message ADD COLUMN priority INTEGER").unwrap();
    transaction.pragma_update(None, "user_version", 6).unwrap();
    let rows: u32 =
        transaction.query_row("SELECT count(*) FROM jobqueue_message", [], |row| row.get(0)).unwrap();
    transaction.commit().unwrap();
    say!("{rows}");
}

// I19, F66
#[tokio::test(flavor = "multi_thread")]
async fn process_stops_before_writing_to_a_newer_schema() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = open(&path).await;
    let upgrade = Part::start("processes::part_upgrade", &path);
    let upgraded = tokio::task::spawn_blocking(|| upgrade.finish());
    let mut acknowledged = 0_u64;
    let error = loop {
        let was_upgraded = upgraded.is_finished();
        match storage.queues().put(&queue(), PutMessage::new("x")).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(!was_upgraded, "a message was written to the newer schema");
    };
    assert!(error.kind() == StoreErrorKind::Stopped && !error.is_ambiguous(), "{error}");
    assert!(error.to_string().contains("schema version 6"), "{error}");
    assert_eq!(
        upgraded.await.unwrap(),
        [acknowledged.to_string()],
        "all that was acknowledged, before the upgrade"
    );
    for error in [
        storage.queues().peek(&queue(), 1).await.unwrap_err(),
        storage.queues().get(&queue(), GetMessages::new(1, Duration::from_secs(1))).await.unwrap_err(),
    ] {
        assert!(
            error.kind() == StoreErrorKind::Stopped && error.to_string().contains("schema version 6"),
            "{error}"
        );
    }
    let connection = Connection::open(&path).unwrap();
    let rows: u32 =
        connection.query_row("SELECT count(*) FROM jobqueue_message", [], |row| row.get(0)).unwrap();
    assert_eq!(u64::from(rows), acknowledged, "nothing was written after it");
}

// F66
#[tokio::test]
async fn read_notices_a_newer_schema() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = open(&path).await;
    Part::start("processes::part_upgrade", &path).finish();
    let error = storage.queues().peek(&queue(), 1).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Stopped, "{error}");
}

// The copy that the documentation of `backup` warns of.
// F68
#[tokio::test]
async fn backup_has_what_a_copy_of_the_file_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let [path, copied, backed_up] =
        ["jobs.db", "copied.db", "backed_up.db"].map(|name| folder.path().join(name));
    let storage = open(&path).await;
    for _ in 0..10 {
        storage.queues().put(&queue(), PutMessage::new("x")).await.unwrap();
    }
    // By another process: in this one, closing the file would end SQLite's locks on it.
    assert!(Command::new("cp").args([&path, &copied]).status().unwrap().success());
    backup(&path, &backed_up).await.unwrap();
    assert_eq!(count(&storage).await, 10);
    assert_eq!(count(&open(&copied).await).await, 0, "the messages are in the log");
    assert_eq!(count(&open(&backed_up).await).await, 10);
}

// A part of the next test: another program that looks into the file and closes it.
#[test]
fn part_look() {
    let Some(path) = part("processes::part_look") else { return };
    let connection = Connection::open(path).unwrap();
    let rows: u32 =
        connection.query_row("SELECT count(*) FROM jobqueue_message", [], |row| row.get(0)).unwrap();
    connection.close().unwrap();
    say!("{rows}");
}

// Reading the file ends SQLite's locks on it in this process. SQLite since 3.51 no longer takes the other
// process for the last to close it; an older one in another program may, and would delete the log.
// F68
#[tokio::test]
async fn copying_an_open_file_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = open(&path).await;
    storage.queues().put(&queue(), PutMessage::new("before")).await.unwrap();
    std::fs::copy(&path, folder.path().join("copy.db")).unwrap();
    assert_eq!(Part::start("processes::part_look", &path).finish(), ["1"]);
    storage.queues().put(&queue(), PutMessage::new("after")).await.unwrap();
    assert_eq!(Part::start("processes::part_look", &path).finish(), ["2"]);
    assert_eq!(count(&storage).await, 2);
}

// F58
#[tokio::test]
async fn deleted_log_stops_the_store_at_the_next_commit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = open(&path).await;
    storage.queues().put(&queue(), PutMessage::new("before")).await.unwrap();
    std::fs::remove_file(folder.path().join("jobs.db-wal")).unwrap();
    let error = storage.queues().put(&queue(), PutMessage::new("after")).await.unwrap_err();
    assert!(error.kind() == StoreErrorKind::Stopped && error.is_ambiguous(), "{error}");
    assert!(error.to_string().contains("write-ahead log was deleted"), "{error}");
    let error = storage.queues().put(&queue(), PutMessage::new("after")).await.unwrap_err();
    assert!(error.kind() == StoreErrorKind::Stopped && !error.is_ambiguous(), "{error}");
}

#[tokio::test]
async fn a_database_file_deleted_while_it_is_open_stops_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = open(&path).await;
    storage.queues().put(&queue(), PutMessage::new("before")).await.unwrap();
    std::fs::remove_file(&path).unwrap();
    let error = storage.queues().put(&queue(), PutMessage::new("after")).await.unwrap_err();
    assert!(error.kind() == StoreErrorKind::Stopped && error.is_ambiguous(), "{error}");
    assert!(error.to_string().contains("database file was deleted"), "{error}");
}

// A part of the next test: a process that forks while it has a store open.
#[test]
fn part_fork() {
    let Some(path) = part("processes::part_fork") else { return };
    let path = Path::new(&path);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let storage = runtime.block_on(open(path));
    runtime.block_on(storage.queues().put(&queue(), PutMessage::new("of the parent"))).unwrap();
    let clone = storage.clone();
    let refused = fork(move || {
        // Each is refused before anything would have to be waited for.
        let put = clone.queues().put(&queue(), PutMessage::new("of the child")).now_or_never();
        let peek = clone.queues().peek(&queue(), 1).now_or_never();
        let anew = Storage::open(Options::new(path)).now_or_never();
        let copy = |error: Option<jobqueue::Error>| {
            let cause = error.as_ref().and_then(|error| StoreError::in_chain(error));
            cause.filter(|cause| cause.kind() == StoreErrorKind::Stopped).map(ToString::to_string)
        };
        let put = copy(put.and_then(Result::err).map(Into::into))
            .is_some_and(|error| error.contains("before fork()"));
        let peek = copy(peek.and_then(Result::err).map(Into::into))
            .is_some_and(|error| error.contains("before fork()"));
        let anew = copy(anew.and_then(Result::err)).is_some_and(|error| error.contains("exec"));
        drop(clone);
        u8::from(put) + 2 * u8::from(peek) + 4 * u8::from(anew)
    });
    assert_eq!(refused, 7, "the child was refused put, peek and an opening of its own");
    // The parent's locks have survived its child.
    runtime.block_on(storage.queues().put(&queue(), PutMessage::new("of the parent"))).unwrap();
    assert_eq!(runtime.block_on(count(&storage)), 2);
    drop(storage);
    // With nothing open, a child may.
    let opened = fork(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let storage = runtime.block_on(open(path));
        u8::from(runtime.block_on(count(&storage)) == 2)
    });
    assert_eq!(opened, 1);
    say!("done");
}

// I19, F69
#[test]
fn forked_child_is_refused_both_handles() {
    let folder = tempfile::tempdir().unwrap();
    let part = Part::start("processes::part_fork", folder.path().join("jobs.db"));
    assert_eq!(part.finish(), ["done"]);
}
