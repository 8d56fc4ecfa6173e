//! Tables of the application in the file of a store, which need functions and collations of its program.

use std::path::Path;

use jobqueue::sqlite::{Options, backup};
use jobqueue::storage::{Storage, StoreErrorKind};
use rusqlite::Connection;

use crate::damage::free_a_used_page;
use crate::refusals::{filled, folder, refused};

/// Creates a table, and replaces its text by one that SQLite accepts only where a function or a collation is
/// registered.
fn create_own(path: &Path, table: &str, own: &str) {
    let connection = Connection::open(path).unwrap();
    connection.execute_batch(&format!("{table}; PRAGMA writable_schema = ON")).unwrap();
    connection.execute("UPDATE sqlite_schema SET sql = ?1 WHERE name = 'own'", [own]).unwrap();
    connection.execute_batch("PRAGMA writable_schema = RESET").unwrap();
}

// round 34, databases B1
#[tokio::test]
async fn tables_of_the_application_are_not_checked() {
    let folder = folder();
    for (number, (table, own)) in [
        (
            "CREATE TABLE own (a TEXT); INSERT INTO own VALUES ('a')",
            "CREATE TABLE own (a TEXT CHECK (a REGEXP '@'))",
        ),
        (
            "CREATE TABLE own (a TEXT); INSERT INTO own VALUES ('a')",
            "CREATE TABLE own (a TEXT, b AS (a REGEXP '@'))",
        ),
        (
            "CREATE TABLE own (a TEXT UNIQUE); INSERT INTO own VALUES ('a'), ('b')",
            "CREATE TABLE own (a TEXT COLLATE app UNIQUE)",
        ),
        (
            "CREATE TABLE own (a INTEGER); INSERT INTO own VALUES (-1)",
            "CREATE TABLE own (a INTEGER CHECK (a > 0))",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let path = folder.path().join(format!("{number}.db"));
        filled(&path, 1).await;
        create_own(&path, table, own);
        let storage = Storage::open(Options::new(&path)).await.unwrap();
        let peeked = storage.queues().peek(&"queue".parse().unwrap(), 32).await.unwrap();
        assert_eq!(peeked.len(), 1, "{own}");
    }
}

#[tokio::test]
async fn constraint_of_the_application_hides_no_page_that_is_used_twice() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    filled(&path, 100).await;
    create_own(&path, "CREATE TABLE own (a TEXT)", "CREATE TABLE own (a TEXT CHECK (a REGEXP '@'))");
    free_a_used_page(&path);
    assert_eq!(refused(&path).await.kind(), StoreErrorKind::Corrupt);
}

// round 34, databases B1
#[tokio::test]
async fn backup_of_a_table_that_needs_a_function_says_so() {
    let folder = folder();
    for (name, table, own) in [
        ("function", "CREATE TABLE own (a TEXT)", "CREATE TABLE own (a TEXT CHECK (a REGEXP '@'))"),
        ("collation", "CREATE TABLE own (a TEXT UNIQUE)", "CREATE TABLE own (a TEXT COLLATE app UNIQUE)"),
    ] {
        let (path, copy) = (folder.path().join(name), folder.path().join(format!("{name}.copy")));
        filled(&path, 1).await;
        create_own(&path, table, own);
        let error = backup(&path, &copy).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("VACUUM INTO"), "{error}");
        assert!(format!("{error:?}").contains(&format!("no such {name}")), "{error:?}");
        assert!(!copy.exists());
    }
}
