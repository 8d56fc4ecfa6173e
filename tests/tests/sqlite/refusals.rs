//! The files that the SQLite storage refuses to open, and its reasons.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use jobqueue::settings::Metadata;
use jobqueue::sqlite::{Options, backup};
use jobqueue::storage::{PutMessage, Storage, StoreError, StoreErrorKind};
use jobqueue_tests::children::{Part, part};
use rusqlite::Connection;
use tempfile::TempDir;

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

pub(crate) async fn refused(path: &Path) -> &'static StoreError {
    let error = Box::leak(Box::new(Storage::open(Options::new(path)).await.unwrap_err()));
    StoreError::in_chain(error).unwrap()
}

/// Returns a store with some messages that was closed properly.
pub(crate) async fn filled(path: &Path, messages: usize) {
    let storage = Storage::open(Options::new(path)).await.unwrap();
    fill(&storage, messages).await;
    close(storage);
}

pub(crate) async fn fill(storage: &Storage, messages: usize) {
    let queue = "queue".parse().unwrap();
    storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
    let all = (0..messages).map(|n| PutMessage::new(format!("{n:0>200}"))).collect();
    storage.queues().put_all(&queue, all).await.into_iter().for_each(|put| drop(put.unwrap()));
}

/// Outside of a runtime the last handle waits until the file is closed.
fn close(storage: Storage) {
    std::thread::spawn(move || drop(storage)).join().unwrap();
}

// I19, F60
#[tokio::test]
async fn only_plain_files_are_opened() {
    let folder = folder();
    let (file, link) = (folder.path().join("jobs.db"), folder.path().join("link.db"));
    filled(&file, 1).await;

    symlink(&file, &link).unwrap();
    let error = refused(&link).await;
    assert_eq!(error.kind(), StoreErrorKind::InvalidInput);
    assert!(error.to_string().contains("symbolic link"), "{error}");

    assert!(refused(folder.path()).await.to_string().contains("folder"));

    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(refused(&pipe).await.to_string().contains("regular file"));

    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    assert!(refused(&file).await.to_string().contains("read-only"));

    // newcomers 28, A17, and newcomers 30, B16
    let error = refused(&folder.path().join("none/jobs.db")).await.to_string();
    assert!(error.contains("not allowed (the folder `"), "{error}");
    assert!(error.contains("/none` of the file does not exist; create it"), "{error}");
    assert!(refused(Path::new(":memory:")).await.to_string().contains("memory"));
}

// F60
#[tokio::test]
async fn file_with_a_second_hard_link_is_not_opened_under_any_name() {
    let folder = folder();
    let path = |name| folder.path().join(name);
    let (file, link) = (path("jobs.db"), path("link.db"));
    let storage = Storage::open(Options::new(&file)).await.unwrap();
    fs::hard_link(&file, &link).unwrap();
    for name in [&file, &link] {
        for options in [Options::new(name), Options::new(name).migrate(false)] {
            let error = Storage::open(options).await.unwrap_err();
            let error = StoreError::in_chain(&error).unwrap();
            assert_eq!(error.kind(), StoreErrorKind::InvalidInput, "{error}");
            assert!(error.to_string().contains("2 names (hard links)"), "{error}");
        }
        let error = backup(name, path("copy.db")).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidInput, "{error}");
    }
    assert!(!path("link.db-wal").exists());
    // A tool that copies by links does not stop a program that has the file open.
    fill(&storage, 1).await;
    close(storage);
    fs::remove_file(&link).unwrap();
    Storage::open(Options::new(&file)).await.unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn part_opens_a_mounted_file() {
    let Some(folder) = part("refusals::part_opens_a_mounted_file") else { return };
    let path = |name| Path::new(&folder).join(name);
    for error in [
        refused(&path("mounted/jobs.db")).await,
        &backup(path("mounted/jobs.db"), path("copy.db")).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains("mount the folder"), "{error}");
    }
    assert!(!path("mounted/jobs.db-wal").exists());
    // A mounted folder is what the error recommends.
    Storage::open(Options::new(path("folder/jobs.db"))).await.unwrap();
}

// F60
#[cfg(target_os = "linux")]
#[tokio::test]
async fn file_that_is_mounted_without_its_folder_is_refused() {
    let folder = folder();
    let path = |name| folder.path().join(name);
    for name in ["host", "mounted", "folder"] {
        fs::create_dir(path(name)).unwrap();
    }
    filled(&path("host/jobs.db"), 1).await;
    fs::write(path("mounted/jobs.db"), "").unwrap();
    let own_mounts = ["--user", "--map-root-user", "--mount"];
    let tried = Command::new("unshare").args(own_mounts).arg("true").status();
    if !tried.is_ok_and(|status| status.success()) {
        eprintln!("not tested: name spaces of one's own, in which a test can mount, are not allowed here");
        return;
    }
    let mut space = Command::new("unshare");
    space.args(own_mounts).args(["sh", "-c"]);
    let mounts =
        "mount --bind \"$0/host/jobs.db\" \"$0/mounted/jobs.db\" && mount --bind \"$0/host\" \"$0/folder\"";
    space.arg(format!("{mounts} && exec \"$@\"")).arg(folder.path());
    Part::start_in(space, "refusals::part_opens_a_mounted_file", folder.path()).finish();
}

#[tokio::test]
async fn a_folder_that_everybody_may_write_is_refused() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    // With and without the bit that keeps users from removing files of others.
    for mode in [0o777, 0o1777] {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        assert!(refused(&path).await.to_string().contains("other users may create"), "{mode:o}");
        assert!(!path.exists());
    }
    let own = folder.path().join("own");
    fs::create_dir(&own).unwrap();
    filled(&own.join("jobs.db"), 1).await;
    // A copy reads the file as an opening does.
    fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).unwrap();
    let error = backup(own.join("jobs.db"), folder.path().join("copy.db")).await.unwrap_err();
    assert!(error.to_string().contains("other users may create"), "{error}");
}

#[tokio::test]
async fn a_new_file_is_its_owners_alone() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    let _storage = Storage::open(Options::new(&path)).await.unwrap();
    for name in ["jobs.db", "jobs.db-wal", "jobs.db-shm"] {
        let mode = fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[tokio::test]
async fn databases_of_other_programs_are_left_alone() {
    let folder = folder();
    let path = folder.path().join("other.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let before = fs::read(&path).unwrap();
    let error = refused(&path).await;
    assert_eq!(error.kind(), StoreErrorKind::InvalidInput);
    assert!(error.to_string().contains("another program"), "{error}");
    let section = "A database that exists already";
    assert!(error.to_string().contains(section), "{error}");
    assert!(include_str!("../../../jobqueue/src/docs/storages.md").contains(&format!("## {section}\n")));
    assert_eq!(fs::read(&path).unwrap(), before);
}

// I19, F66
#[tokio::test]
async fn a_newer_schema_is_refused() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    filled(&path, 1).await;
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let error = refused(&path).await;
    assert!(error.to_string().contains("set it back to 5"), "another program has set it: {error}");
    let newer = "CREATE TABLE jobqueue_newer (a INTEGER) STRICT";
    Connection::open(&path).unwrap().execute_batch(newer).unwrap();
    let error = refused(&path).await;
    assert!(error.to_string().contains("newer version"), "{error}");
    assert!(error.to_string().contains("user_version"), "another program may have set it: {error}");
}

// audit 27, databases C5; newcomers 28, A12
#[tokio::test]
async fn a_version_that_the_tables_do_not_have_is_refused() {
    for version in 0..=4 {
        let folder = folder();
        let path = folder.path().join("jobs.db");
        filled(&path, 1).await;
        Connection::open(&path).unwrap().pragma_update(None, "user_version", version).unwrap();
        let error = refused(&path).await;
        assert_eq!(error.kind(), StoreErrorKind::InvalidInput, "{error}");
        assert!(!error.is_retryable(), "{error}");
        assert!(error.to_string().contains("set it back to 5"), "{error}");
    }
}

// newcomers 28, A12
#[tokio::test]
async fn version_that_is_set_while_the_file_is_open_is_named_with_the_right_one() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    let storage = Storage::open(Options::new(&path)).await.unwrap();
    fill(&storage, 1).await;
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 1).unwrap();
    let error = storage.queues().peek(&"queue".parse().unwrap(), 1).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Stopped, "{error}");
    assert!(error.to_string().contains("schema version 1 and the tables of version 5"), "{error}");
    assert!(error.to_string().contains("set it back to 5"), "{error}");
}

// newcomers 28, A12
#[tokio::test]
async fn tables_that_are_there_already_are_refused_without_the_statements() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    filled(&path, 1).await;
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("CREATE INDEX jobqueue_own ON jobqueue_queue (name)").unwrap();
    connection.pragma_update(None, "user_version", 1).unwrap();
    connection.close().unwrap();
    let error = refused(&path).await;
    let text = format!("{error:?}");
    assert!(text.contains("set it back to what it was"), "{text}");
    assert!(text.contains("already exists") && !text.contains("CREATE"), "{text}");
}

// F66
#[tokio::test(flavor = "multi_thread")]
async fn many_may_open_a_new_file_at_once() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    let opens: Vec<_> = (0..8).map(|_| tokio::spawn(Storage::open(Options::new(&path)))).collect();
    let mut open = Vec::new();
    for opening in opens {
        open.push(opening.await.unwrap().unwrap());
    }
    fill(&open[0], 3).await;
    let count = open[7].queues().queue_properties(&"queue".parse().unwrap()).await.unwrap().approximate_count;
    assert_eq!(count, 3);
}

// F59
#[tokio::test]
async fn a_stale_index_of_the_log_is_rebuilt() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    filled(&path, 10).await;
    fs::write(folder.path().join("jobs.db-shm"), [0xa5; 32 * 1024]).unwrap();
    let storage = Storage::open(Options::new(&path)).await.unwrap();
    let count = storage.queues().queue_properties(&"queue".parse().unwrap()).await.unwrap().approximate_count;
    assert_eq!(count, 10);
}

// F70: with a warning; tests/tests/logs/library.rs reads it.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_file_system_in_memory_is_allowed() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("Linux has a file system in memory there");
    filled(&folder.path().join("jobs.db"), 1).await;
}

#[tokio::test]
async fn triggers_and_views_in_the_way_of_the_tables_are_refused() {
    let folder = folder();
    for (name, statement) in [
        (
            "trigger",
            "CREATE TRIGGER eats AFTER INSERT ON jobqueue_message BEGIN DELETE FROM jobqueue_message; END",
        ),
        (
            "view",
            "DROP TABLE jobqueue_garbage; CREATE VIEW jobqueue_garbage AS SELECT 'queue' AS kind, 1 AS owner",
        ),
    ] {
        let path = folder.path().join(name);
        filled(&path, 1).await;
        Connection::open(&path).unwrap().execute_batch(statement).unwrap();
        let error = refused(&path).await;
        assert_eq!(error.kind(), StoreErrorKind::InvalidInput);
        assert!(error.to_string().contains(name), "{error}");
    }
    let path = folder.path().join("own");
    filled(&path, 1).await;
    let own = "CREATE TABLE users (id); CREATE TRIGGER own AFTER INSERT ON users BEGIN SELECT 1; END";
    Connection::open(&path).unwrap().execute_batch(own).unwrap();
    Storage::open(Options::new(&path)).await.unwrap();
}

#[tokio::test]
async fn storage_strings_of_other_libraries_are_refused_with_advice() {
    for (string, advice) in [
        ("sqlite:y.db?mode=rwc", "`?`"),
        ("sqlite://x.db", "without `//`"),
        ("sqlite:", "sqlite:jobs.db"),
        ("redis", "expected `sqlite:PATH`"),
        ("host=localhost user=app", "`postgres://…`"),
        ("mysql://root@localhost/d?ssl=1", "expected `sqlite:PATH`"),
        ("file:jobs.db?mode=rwc", "expected `sqlite:PATH`"),
    ] {
        let error = jobqueue::Storage::connect(string).await.unwrap_err();
        assert!(error.to_string().contains(advice), "{string}: {error}");
    }
}
