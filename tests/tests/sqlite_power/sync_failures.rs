//! Syncs that fail once (F56): the operation fails, the store stops, and no sync is repeated as if it had not
//! failed. Every acknowledged message exists when the store is opened again, also after a power cut.

use futures_util::future::join_all;
use jobqueue::sqlite::Synchronous;
use jobqueue::storage::{PutMessage, Storage, StoreError, StoreErrorKind};
use jobqueue_tests::power::Event;
use rand::RngExt;
use rand::rngs::StdRng;

use crate::cuts::{cut, cuts, random, rounds};
use crate::oracle::check_after_failure;
use crate::scene::Scene;
use crate::workload::{History, Task, queue};

const TASKS: usize = 3;

fn is_disk_failure(error: &StoreError) -> bool {
    error.kind() == StoreErrorKind::Stopped
        && !error.is_retryable()
        && error.to_string().contains("open the storage again")
}

/// The store refuses everything, and says what to do.
fn assert_stopped(scene: &Scene, storage: &Storage) {
    scene.block_on(async {
        let error = storage.queues().put(&queue(0), PutMessage::new("x")).await.unwrap_err();
        assert!(is_disk_failure(&error) && !error.is_ambiguous(), "{error}");
        let error = storage.queues().peek(&queue(0), 1).await.unwrap_err();
        assert!(is_disk_failure(&error), "{error}");
    });
}

/// Nothing was written to the files since a sync failed.
fn assert_left_alone(events: &[Event]) {
    let failed = events.iter().position(|event| matches!(event, Event::SyncFailed(_))).unwrap();
    let touched = events[failed + 1..].iter().find(|event| !matches!(event, Event::Note(_)));
    assert!(touched.is_none(), "{touched:?}");
}

/// Opens the store again, checks its content, continues, and cuts the power.
fn reopen(scene: &Scene, histories: &[History], random: &mut StdRng) {
    let storage = scene.open().unwrap();
    let found = scene.look(histories.len());
    for (history, found) in histories.iter().zip(&found) {
        check_after_failure(history, found.as_ref()).unwrap();
    }
    let from = scene.recorder.log().1.len();
    let tasks = scene.tasks(&storage, found, random);
    let ended = scene.block_on(join_all(tasks.into_iter().map(|task| task.run(10))));
    let mut recording = scene.recording(ended, from);
    assert!(recording.histories.iter().all(|history| history.failure.is_none()));
    recording.before.seed(random.random());
    let wrong = cut(&recording, cuts(5), scene.synchronous, false, random);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn histories(ended: Vec<Task>) -> Vec<History> {
    ended.into_iter().map(|task| task.history).collect()
}

// I1, F56
#[test]
fn failed_sync_of_a_commit_is_ambiguous_and_stops_store() {
    let mut random = random();
    for _ in 0..rounds(15) {
        let scene = Scene::new(Synchronous::Full);
        let storage = scene.open().unwrap();
        let mut tasks = scene.tasks(&storage, vec![None; TASKS], &mut random);
        tasks.iter_mut().for_each(|task| task.restarts_log = false);
        scene.recorder.fail_sync("-wal", random.random_range(0..60));
        let ended = histories(scene.block_on(join_all(tasks.into_iter().map(|task| task.run(1000)))));
        assert_eq!(scene.recorder.struck(), 1);
        let failures: Vec<_> = ended.iter().map(|history| history.failure.as_ref().unwrap()).collect();
        for failure in &failures {
            assert!(is_disk_failure(&failure.error), "{}", failure.error);
        }
        assert!(failures.iter().any(|failure| failure.error.is_ambiguous()), "nobody was told of the doubt");
        assert_stopped(&scene, &storage);
        drop(storage);
        assert_left_alone(&scene.recorder.log().1);
        reopen(&scene, &ended, &mut random);
    }
}

// F56
#[test]
fn failed_sync_of_a_wal_checkpoint_stops_the_store() {
    let mut random = random();
    for synchronous in [Synchronous::Full, Synchronous::Normal] {
        // Of the log, only in a checkpoint with NORMAL: otherwise it is synced with every commit.
        let files: &[&str] =
            if synchronous == Synchronous::Normal { &["jobs.db", "-wal"] } else { &["jobs.db"] };
        for file in files {
            let scene = Scene::new(synchronous);
            let storage = scene.open().unwrap();
            let tasks = scene.tasks(&storage, vec![None; TASKS], &mut random);
            let ended = scene.block_on(join_all(tasks.into_iter().map(|task| task.run(5))));
            let task = ended.into_iter().next().unwrap();
            scene.recorder.fail_sync(file, 0);
            let task = scene.block_on(task.fill(40));
            assert_eq!(scene.recorder.struck(), 1);
            // The checkpoint comes after the answer, so it is the next operation that hears of it.
            let failure = task.history.failure.as_ref().unwrap();
            assert!(is_disk_failure(&failure.error), "{}", failure.error);
            // Unless the log was restarted, which its first commit syncs.
            assert!(!failure.error.is_ambiguous() || *file == "-wal", "{}", failure.error);
            assert_stopped(&scene, &storage);
            let ended = histories(vec![task]);
            drop(storage);
            assert_left_alone(&scene.recorder.log().1);
            reopen(&scene, &ended, &mut random);
        }
    }
}

/// The number of times that a scene is repeated which a slow machine has spoilt.
const TRIES: usize = 10;

// F56
#[test]
fn failed_sync_at_close_loses_nothing() {
    let mut random = random();
    let mut kinds = vec![Synchronous::Full, Synchronous::Normal];
    let mut tries = 0;
    while let Some(synchronous) = kinds.pop() {
        let scene = Scene::new(synchronous);
        let storage = scene.open().unwrap();
        let tasks = scene.tasks(&storage, vec![None; TASKS], &mut random);
        let ended = histories(scene.block_on(join_all(tasks.into_iter().map(|task| task.run(5)))));
        scene.recorder.fail_sync("jobs.db", 0);
        drop(storage);
        tries += 1;
        if scene.recorder.struck() == 0 && tries < TRIES {
            // So slow a machine that the store was idle for two seconds, and had nothing left to do.
            kinds.push(synchronous);
            continue;
        }
        assert_eq!(scene.recorder.struck(), 1);
        assert_left_alone(&scene.recorder.log().1);
        reopen(&scene, &ended, &mut random);
    }
}

// F56
#[test]
fn failed_sync_at_open_refuses_the_store() {
    let mut random = random();
    let mut files = vec!["jobs.db", "-wal"];
    let mut tries = 0;
    while let Some(file) = files.pop() {
        let scene = Scene::new(Synchronous::Full);
        let storage = scene.open().unwrap();
        let tasks = scene.tasks(&storage, vec![None; TASKS], &mut random);
        let ended = histories(scene.block_on(join_all(tasks.into_iter().map(|task| task.run(20)))));
        // The process is killed, so that the next opening finds a log.
        let (mut disk, events) = scene.recorder.log();
        events.iter().for_each(|event| disk.apply(event));
        let scene = Scene::after_kill(disk, Synchronous::Full);
        scene.recorder.fail_sync(file, 0);
        tries += 1;
        let error = match scene.block_on(Storage::open(scene.options())) {
            Err(error) => error,
            Ok(_) if tries < TRIES => {
                // As above: there was no log any more when the process was killed.
                files.push(file);
                continue;
            }
            Ok(_) => panic!("the store was opened although `{file}` could not be synced"),
        };
        assert!(StoreError::in_chain(&error).is_some_and(is_disk_failure), "{error:?}");
        assert_left_alone(&scene.recorder.log().1);
        reopen(&scene, &ended, &mut random);
        drop(storage);
    }
}
