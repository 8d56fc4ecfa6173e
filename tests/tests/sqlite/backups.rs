//! Copies of a file that is in use.

use std::fs;

use jobqueue::sqlite::{Options, backup};
use jobqueue::storage::{Storage, StoreErrorKind};
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::refusals::{fill, filled, folder, refused};

// F68: copies are made by SQLite.
#[tokio::test]
async fn a_backup_of_a_store_in_use_is_a_store() {
    let folder = folder();
    let (path, copy) = (folder.path().join("jobs.db"), folder.path().join("copy.db"));
    let storage = Storage::open(Options::new(&path)).await.unwrap();
    fill(&storage, 20).await;
    backup(&path, &copy).await.unwrap();
    assert!(backup(&path, &copy).await.is_err());
    let restored = Storage::open(Options::new(&copy)).await.unwrap();
    let peeked = restored.queues().peek(&"queue".parse().unwrap(), 32).await.unwrap();
    assert_eq!(peeked.len(), 20);
}

/// A newer release has migrated the file and was killed, and the copy is put back beside its log: SQLite
/// takes the log for that of the copy.
#[tokio::test]
async fn copy_that_is_put_back_beside_a_log_stays_as_it_is() {
    let folder = folder();
    let path = |name| folder.path().join(name);
    filled(&path("jobs.db"), 3).await;
    backup(path("jobs.db"), path("copy.db")).await.unwrap();
    let newer = Connection::open(path("jobs.db")).unwrap();
    newer.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
    newer.pragma_update(None, "user_version", 1_000).unwrap();
    newer.close().unwrap();
    let log = fs::read(path("jobs.db-wal")).unwrap();
    fs::copy(path("copy.db"), path("jobs.db")).unwrap();
    fs::remove_file(path("jobs.db-shm")).unwrap();

    assert_eq!(refused(&path("jobs.db")).await.kind(), StoreErrorKind::InvalidInput);
    backup(path("jobs.db"), path("other.db")).await.unwrap_err();
    let is_as_before = |name, content| fs::read(path(name)).unwrap() == content;
    assert!(is_as_before("jobs.db", fs::read(path("copy.db")).unwrap()), "the copy was changed");
    assert!(is_as_before("jobs.db-wal", log), "the log was changed");
    // What the guide says.
    fs::remove_file(path("jobs.db-wal")).unwrap();
    Storage::open(Options::new(path("jobs.db"))).await.unwrap();
}

#[tokio::test]
async fn a_backup_goes_to_a_private_file_or_is_refused() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    filled(&path, 1).await;
    for target in ["", ":memory:", "file:copy.db?mode=memory", "file::memory:"] {
        let error = backup(&path, target).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidInput, "{target:?}: {error}");
    }
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt as _;
        let target = folder.path().join(std::ffi::OsStr::from_bytes(b"copy-\xff.db"));
        let error = backup(&path, &target).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidInput, "{error}");
        assert!(!target.exists());
    }
    let copy = folder.path().join("copy.db");
    backup(&path, &copy).await.unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    }
    Storage::open(Options::new(&copy)).await.unwrap();
}

/// In containers the processes of two backups to one name have one id, that of the first process.
#[tokio::test]
async fn backup_leaves_the_part_of_another_alone() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    filled(&path("jobs.db"), 1).await;
    let parts = [0, 1].map(|number| path(&format!("copy.db.{}-{number}.part", std::process::id())));
    for part in &parts {
        fs::write(part, "another").unwrap();
    }
    backup(path("jobs.db"), path("copy.db")).await.unwrap();
    for part in &parts {
        assert_eq!(fs::read_to_string(part).unwrap(), "another");
    }
    Storage::open(Options::new(path("copy.db"))).await.unwrap();
}
