//! Damage in the file and in the log of a store.

use std::fs;
use std::path::Path;
use std::process::Command;

use jobqueue::sqlite::Options;
use jobqueue::storage::{PutMessage, Storage, StoreErrorKind};
use rusqlite::Connection;

use crate::refusals::{fill, filled, folder, refused};

// I19, F58
#[tokio::test]
async fn damage_in_the_file_is_never_an_empty_queue() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    filled(&path, 1_000).await;
    let sound = fs::read(&path).unwrap();
    let page_size = usize::from(u16::from_be_bytes([sound[16], sound[17]]));
    assert!(sound.len() > 20 * page_size);

    let mut cases =
        vec![("cut in half".to_owned(), sound[..sound.len() / 2 / page_size * page_size].to_vec())];
    let mut header = sound.clone();
    header[..16].fill(0);
    cases.push(("header".to_owned(), header));
    for page in [0, 3, 15, 18] {
        let mut zeroed = sound.clone();
        let from = page * page_size + if page == 0 { 100 } else { 0 };
        zeroed[from..from + 64].iter_mut().for_each(|byte| *byte ^= 0x55);
        cases.push((format!("page {page}"), zeroed));
    }
    for (name, content) in cases {
        fs::write(&path, content).unwrap();
        let error = refused(&path).await;
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{name}: {error}");
    }
    fs::write(&path, &sound).unwrap();
    Storage::open(Options::new(&path)).await.unwrap();
}

/// The check of one table does not see that another uses a page of it, or that the page counts as free: the
/// next message would be written over the others.
// I19, F58
#[tokio::test]
async fn page_that_is_used_twice_is_damage() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    filled(&path, 100).await;
    free_a_used_page(&path);
    assert_eq!(refused(&path).await.kind(), StoreErrorKind::Corrupt);
}

/// Writes a page of the messages into the list of free pages.
pub(crate) fn free_a_used_page(path: &Path) {
    let connection = Connection::open(path).unwrap();
    let free_some = "CREATE TABLE freed (a BLOB); INSERT INTO freed VALUES (zeroblob(200000));
        DROP TABLE freed; PRAGMA wal_checkpoint(TRUNCATE)";
    connection.execute_batch(free_some).unwrap();
    let find = "SELECT rootpage FROM sqlite_schema WHERE name = 'jobqueue_message'";
    let used: u32 = connection.query_row(find, [], |row| row.get(0)).unwrap();
    connection.close().unwrap();
    let mut content = fs::read(path).unwrap();
    let number = |at: usize| u32::from_be_bytes(content[at..at + 4].try_into().unwrap()) as usize;
    let (page_size, trunk) = (usize::from(u16::from_be_bytes([content[16], content[17]])), number(32));
    let leaves = (trunk - 1) * page_size + 8;
    assert!(trunk > 0 && number(leaves - 4) > 1, "the file has free pages");
    content[leaves..leaves + 4].copy_from_slice(&used.to_be_bytes());
    fs::write(path, content).unwrap();
}

// F58: a bit that flips in the log takes all later commits with it, unless somebody looks.
#[tokio::test]
async fn damage_in_the_log_is_told_and_a_crash_is_not_damage() {
    let original = folder();
    let path = original.path().join("jobs.db");
    let storage = Storage::open(Options::new(&path)).await.unwrap();
    fill(&storage, 1).await;
    for n in 0..20 {
        storage.queues().put(&"queue".parse().unwrap(), PutMessage::new(n.to_string())).await.unwrap();
    }
    let log = original.path().join("jobs.db-wal");
    // What a crash leaves behind: the file and the log as they are now. By another process, for SQLite's locks.
    let copies = folder();
    let copy = |name: &str| {
        let copy = copies.path().join(name);
        let suffixed = format!("{}-wal", copy.display());
        for (from, to) in [(&path, copy.as_os_str()), (&log, suffixed.as_ref())] {
            assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
        }
        (copy, std::path::PathBuf::from(suffixed))
    };
    let (crashed, _) = copy("crashed.db");
    let restored = Storage::open(Options::new(&crashed)).await.unwrap();
    let count = async |storage: &Storage| {
        storage.queues().queue_properties(&"queue".parse().unwrap()).await.unwrap().approximate_count
    };
    assert_eq!(count(&restored).await, 21);

    let (torn, torn_log) = copy("torn.db");
    let content = fs::read(&torn_log).unwrap();
    fs::write(&torn_log, &content[..content.len() - 1000]).unwrap();
    Storage::open(Options::new(&torn)).await.unwrap();

    for at in [20, 40, 32 + 5 * 4120 + 500, 32 + 12 * 4120 + 20] {
        let (damaged, damaged_log) = copy(&format!("damaged{at}.db"));
        let mut content = content.clone();
        content[at] ^= 1;
        fs::write(&damaged_log, content).unwrap();
        let error = refused(&damaged).await;
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "byte {at}: {error}");
        // Also while another process is about to write over the rest of the log.
        let writing = Connection::open(&damaged).unwrap();
        writing.execute_batch("BEGIN IMMEDIATE").unwrap();
        let error = refused(&damaged).await;
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "byte {at}, locked: {error}");
    }
}
