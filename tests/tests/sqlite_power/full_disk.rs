//! No room (F57): an operation without room fails with `Full` and is not done. The store continues when there
//! is room again, and every acknowledged message exists all the time.

use std::process::Command;

use futures_util::future::join_all;
use jobqueue::settings::Metadata;
use jobqueue::sqlite::{Options, Synchronous};
use jobqueue::storage::{
    ExpiredReceipt, GetMessages, MessageRef, PutMessage, Storage, StoreErrorKind, UpdateMessage,
};
use jobqueue_tests::children::{Part, part};
use rand::RngExt;
use rand::rngs::StdRng;
use rusqlite::Connection;
use std::time::Duration;

use crate::cuts::{cut, cuts, random, rounds};
use crate::oracle::check_after_failure;
use crate::scene::Scene;
use crate::workload::{History, Task, queue};

const TASKS: usize = 3;

/// Checks the content, continues with the same handle, and cuts the power.
///
/// A failed commit may be in the log without being visible. A power cut brings it back, until the next commit
/// overwrites it; so there is a commit before the cuts.
fn go_on(scene: &Scene, storage: &Storage, histories: &[History], random: &mut StdRng) {
    let found = scene.look(histories.len());
    for (history, found) in histories.iter().zip(&found) {
        check_after_failure(history, found.as_ref()).unwrap();
    }
    scene.recorder.leave_room(None);
    scene.block_on(storage.queues().create_queue(&queue(TASKS), &Metadata::new())).unwrap();
    let from = scene.recorder.log().1.len();
    let tasks = scene.tasks(storage, found, random);
    let ended = scene.block_on(join_all(tasks.into_iter().map(|task| task.run(10))));
    let recording = scene.recording(ended, from);
    for history in &recording.histories {
        assert!(history.failure.is_none(), "{:?}", history.failure);
    }
    let wrong = cut(&recording, cuts(5), scene.synchronous, false, random);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn histories(ended: Vec<Task>) -> Vec<History> {
    ended.into_iter().map(|task| task.history).collect()
}

// F57
#[test]
fn full_disk_fails_operations_that_later_succeed() {
    let mut random = random();
    for _ in 0..rounds(15) {
        let scene = Scene::new(Synchronous::Full);
        let storage = scene.open().unwrap();
        let tasks = scene.tasks(&storage, vec![None; TASKS], &mut random);
        scene.recorder.leave_room(Some(random.random_range(10_000..400_000)));
        let ended = histories(scene.block_on(join_all(tasks.into_iter().map(|task| task.run(1000)))));
        assert!(scene.recorder.struck() > 0);
        for history in &ended {
            let error = &history.failure.as_ref().unwrap().error;
            assert!(error.kind() == StoreErrorKind::Full && !error.is_ambiguous(), "{error}");
        }
        go_on(&scene, &storage, &ended, &mut random);
    }
}

/// Returns a message of the first queue that was received.
async fn leased(storage: &Storage) -> MessageRef {
    let queues = storage.queues();
    queues.create_queue(&queue(0), &Metadata::new()).await.unwrap();
    queues.put(&queue(0), PutMessage::new("text")).await.unwrap();
    let options = GetMessages::new(1, Duration::from_secs(600));
    queues.get(&queue(0), options).await.unwrap().messages.remove(0).message
}

const LONGER: Duration = Duration::from_secs(900);

// F57
#[test]
fn message_is_settled_once_the_disk_has_room_again() {
    let scene = Scene::new(Synchronous::Full);
    let storage = scene.open().unwrap();
    let queues = storage.queues();
    scene.block_on(async {
        let leased = leased(&storage).await;
        // The log cannot start over as long as somebody reads an old state.
        let mut reader = Connection::open(scene.file()).unwrap();
        let reading = reader.transaction().unwrap();
        let _: i64 =
            reading.query_row("SELECT count(*) FROM jobqueue_message", [], |row| row.get(0)).unwrap();
        queues.put(&queue(0), PutMessage::new("text")).await.unwrap();
        scene.recorder.leave_room(Some(0));
        for error in [
            queues.put(&queue(0), PutMessage::new("x")).await.unwrap_err(),
            queues.update(&queue(0), &leased, UpdateMessage::new(LONGER)).await.unwrap_err(),
            queues.delete(&queue(0), &leased, ExpiredReceipt::Refuse).await.unwrap_err(),
        ] {
            assert!(
                error.kind() == StoreErrorKind::Full && error.is_retryable() && !error.is_ambiguous(),
                "{error}"
            );
        }
        assert_eq!(queues.queue_properties(&queue(0)).await.unwrap().approximate_count, 2);
        drop(reading);
        scene.recorder.leave_room(None);
        queues.delete(&queue(0), &leased, ExpiredReceipt::Refuse).await.unwrap();
        assert_eq!(queues.queue_properties(&queue(0)).await.unwrap().approximate_count, 1);
    });
}

/// Another program has taken the last byte of the volume, where there was plenty.
// F57
#[test]
fn message_is_settled_in_the_room_of_the_log_on_a_full_disk() {
    let scene = Scene::new(Synchronous::Full);
    let storage = scene.open().unwrap();
    let queues = storage.queues();
    scene.block_on(async {
        let mut leased = leased(&storage).await;
        scene.recorder.leave_room(Some(0));
        for _ in 0..20 {
            let updated = queues.update(&queue(0), &leased, UpdateMessage::new(LONGER)).await.unwrap();
            leased.receipt = updated.receipt;
        }
        queues.delete(&queue(0), &leased, ExpiredReceipt::Refuse).await.unwrap();
    });
}

// F57
#[test]
fn wal_checkpoint_on_a_full_disk_is_retried() {
    let mut random = random();
    let scene = Scene::new(Synchronous::Full);
    let storage = scene.open().unwrap();
    let tasks = scene.tasks(&storage, vec![None; 1], &mut random);
    let ended = scene.block_on(join_all(tasks.into_iter().map(|task| task.run(5))));
    // Enough for the log to become so long that it is copied into the file, which then cannot grow.
    scene.recorder.leave_room(Some(9 << 20));
    let task = scene.block_on(ended.into_iter().next().unwrap().fill(20));
    let error = &task.history.failure.as_ref().unwrap().error;
    assert!(error.kind() == StoreErrorKind::Full && !error.is_ambiguous(), "{error}");
    assert!(scene.recorder.struck() > 1, "both a checkpoint and a commit");
    go_on(&scene, &storage, &histories(vec![task]), &mut random);
}

// SQLite keeps the index of its log in a file of its own. It grows after the commit is in the log.
// F57
#[test]
fn no_room_for_the_wal_index_leaves_commit_ambiguous() {
    let mut random = random();
    let scene = Scene::new(Synchronous::Full);
    let storage = scene.open().unwrap();
    let tasks = scene.tasks(&storage, vec![None; 1], &mut random);
    let ended = scene.block_on(join_all(tasks.into_iter().map(|task| task.run(5))));
    // As long as somebody reads an old state, the log grows.
    let mut reader = Connection::open(scene.file()).unwrap();
    let reading = reader.transaction().unwrap();
    let _: i64 = reading.query_row("SELECT count(*) FROM jobqueue_message", [], |row| row.get(0)).unwrap();
    scene.recorder.leave_no_room_for_index(true);
    let task = scene.block_on(ended.into_iter().next().unwrap().fill(40));
    scene.recorder.leave_no_room_for_index(false);
    drop(reading);
    let error = &task.history.failure.as_ref().unwrap().error;
    assert!(error.kind() == StoreErrorKind::Full && error.is_ambiguous(), "{error}");
    assert!(task.history.states.len() > 10);
    go_on(&scene, &storage, &histories(vec![task]), &mut random);
}

// A part of the next test: fills the file system it is given.
#[tokio::test]
async fn part_fill() {
    let Some(folder) = part("full_disk::part_fill") else { return };
    let folder = std::path::Path::new(&folder);
    let ballast = folder.join("ballast");
    std::fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let storage = Storage::open(Options::new(folder.join("jobs.db"))).await.unwrap();
    let queues = storage.queues();
    queues.create_queue(&queue(0), &Metadata::new()).await.unwrap();
    let put = async || queues.put(&queue(0), PutMessage::new("x".repeat(30_000))).await;
    let mut acknowledged = 0;
    let error = loop {
        match put().await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    assert!(error.kind() == StoreErrorKind::Full && !error.is_ambiguous(), "{error:?}");
    assert!(acknowledged > 10);
    let count = async || queues.queue_properties(&queue(0)).await.unwrap().approximate_count;
    assert_eq!(count().await, acknowledged);
    std::fs::remove_file(&ballast).unwrap();
    put().await.unwrap();
    assert_eq!(count().await, acknowledged + 1);
    // Filled again, to the last byte: what is there can be opened, worked off, and makes room.
    while put().await.is_ok() {
        acknowledged += 1;
    }
    let mut rest = std::fs::File::create(folder.join("rest")).unwrap();
    while std::io::Write::write_all(&mut rest, &[1; 4096]).is_ok() {}
    // Afterwards: closing the file may remove its log, whose room opening it needs.
    drop(storage);
    let storage = Storage::open(Options::new(folder.join("jobs.db"))).await.unwrap();
    let found = storage.queues().queue_properties(&queue(0)).await.unwrap().approximate_count;
    assert_eq!(found, acknowledged + 1);
    std::fs::remove_file(folder.join("rest")).unwrap();
    let options = GetMessages::new(1, Duration::from_secs(30));
    let leased = storage.queues().get(&queue(0), options).await.unwrap().messages.remove(0).message;
    storage.queues().delete(&queue(0), &leased, ExpiredReceipt::Refuse).await.unwrap();
}

// F57
/// The part runs on a file system of 8 MiB: in memory, in a name space of its own, or in the given folder on
/// a small file system.
#[test]
fn store_recovers_from_a_full_file_system() {
    let name = "full_disk::part_fill";
    if let Ok(folder) = std::env::var("JOBQUEUE_SMALL_DISK") {
        let folder = tempfile::tempdir_in(folder).unwrap();
        Part::start(name, folder.path()).finish();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut space = Command::new("unshare");
    space.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
    space.arg("mount -t tmpfs -o size=8m,mode=700 none \"$0\" && exec \"$@\"").arg(folder.path());
    let tried = Command::new("unshare").args(["--user", "--map-root-user", "--mount", "true"]).status();
    assert!(
        tried.is_ok_and(|status| status.success()),
        "name spaces of one's own are not allowed here: set JOBQUEUE_SMALL_DISK to a folder on a file system of a few MiB"
    );
    Part::start_in(space, name, folder.path()).finish();
}
