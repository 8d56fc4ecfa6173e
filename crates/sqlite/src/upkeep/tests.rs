use std::path::Path;
use std::sync::mpsc;

use jobqueue_storage::runtime::Runtime;

use super::*;
use crate::error::Cause;
use crate::schema::MIGRATIONS;
use jobqueue_storage::StoreErrorKind;

/// A file with small pages that another writer uses too.
struct SharedFile {
    folder: tempfile::TempDir,
    connection: Connection,
    upkeep: Upkeep,
}

fn open(folder: &Path) -> Connection {
    let connection = Connection::open(folder.join("jobs.db")).unwrap();
    connection.busy_timeout(Duration::from_secs(10)).unwrap();
    connection.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
    connection
}

fn insert(connection: &Connection, rows: u32) {
    let rows = format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
         INSERT INTO own SELECT zeroblob(400) FROM n"
    );
    connection.execute_batch(&rows).unwrap();
}

fn log(connection: &Connection) -> Progress {
    connection.query_row("PRAGMA wal_checkpoint(NOOP)", [], progress).unwrap()
}

impl SharedFile {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let connection = open(folder.path());
        connection.execute_batch("PRAGMA page_size = 512; PRAGMA journal_mode = wal").unwrap();
        connection.execute_batch(&MIGRATIONS.concat()).unwrap();
        connection.pragma_update(None, "user_version", MIGRATIONS.len() as i64).unwrap();
        connection.execute_batch("CREATE TABLE own (x)").unwrap();
        connection.busy_timeout(Duration::ZERO).unwrap();
        let space = Space::new(&connection, folder.path().to_owned(), None).unwrap();
        let upkeep = Upkeep::new(&connection, Arc::new(Health::new()), Arc::default(), space).unwrap();
        Self { folder, connection, upkeep }
    }

    fn commit(&mut self, rows: u32) {
        insert(&self.connection, rows);
        self.upkeep.run(false, &mut self.connection, &StoreClock::new(Runtime::new()), &mut Known::default());
    }

    /// Commits while another connection keeps a transaction open until all pages of the log are copied.
    fn commit_beside_another(&mut self, rows: u32) {
        insert(&self.connection, rows);
        let (other, third) = (open(self.folder.path()), open(self.folder.path()));
        let (began, beginning) = mpsc::channel();
        let other = std::thread::spawn(move || {
            other.execute_batch("BEGIN IMMEDIATE").unwrap();
            insert(&other, 1);
            began.send(()).unwrap();
            while log(&third).copied < log(&third).pages {
                std::thread::yield_now();
            }
            other.execute_batch("COMMIT").unwrap();
        });
        beginning.recv().unwrap();
        self.upkeep.run(false, &mut self.connection, &StoreClock::new(Runtime::new()), &mut Known::default());
        other.join().unwrap();
    }
}

/// Times to live bound a queue: expired messages are removed faster than they can arrive.
#[test]
fn expired_messages_are_removed_without_a_pause_between() {
    let mut shared = SharedFile::new();
    let rows = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1200) INSERT INTO jobqueue_message
        (queue, visible_at, expires_at, inserted_at, dequeue_count, leased, waiting, receipt, text)
        SELECT 1, 0, 1, 0, 0, 0, 0, x'', '' FROM n";
    shared.connection.execute_batch(rows).unwrap();
    let clock = StoreClock::new(Runtime::new());
    let mut left = Vec::new();
    for _ in 0..3 {
        let begun = Instant::now();
        shared.upkeep.next_purge = begun;
        shared.upkeep.run(true, &mut shared.connection, &clock, &mut Known::default());
        assert!(!shared.upkeep.has_more || shared.upkeep.pause() <= begun.elapsed() * PURGE_SHARE);
        let count = "SELECT count(*) FROM jobqueue_message";
        left.push(shared.connection.query_row(count, [], |row| row.get::<_, i64>(0)).unwrap());
        assert_eq!(shared.upkeep.has_more, left.len() < 3, "{left:?}");
    }
    assert_eq!(left, [700, 200, 0]);
    assert!(shared.upkeep.pause() >= EMPTY_LOG_AFTER);
}

/// Another writer is in a transaction whenever a checkpoint ends, so SQLite never restarts the log on its
/// own.
#[test]
fn log_of_two_writers_is_restarted() {
    let mut shared = SharedFile::new();
    let mut longest = 0;
    for _ in 0..8 {
        shared.commit_beside_another(1_100);
        longest = longest.max(log(&shared.connection).pages);
    }
    assert!(longest < 3_600, "{longest} pages");
}

/// At any time some reader has a recent snapshot of the file, each for a moment.
#[test]
fn log_is_restarted_when_those_who_read_a_recent_state_are_done() {
    let mut shared = SharedFile::new();
    shared.commit_beside_another(1_100);
    insert(&shared.connection, 1_100);
    let (reader, third) = (open(shared.folder.path()), open(shared.folder.path()));
    reader.execute_batch("BEGIN").unwrap();
    let _: i64 = reader.query_row("SELECT count(*) FROM own", [], |row| row.get(0)).unwrap();
    let seen = log(&third).pages;
    let reader = std::thread::spawn(move || {
        while log(&third).copied < seen {
            std::thread::yield_now();
        }
        reader.execute_batch("COMMIT").unwrap();
    });
    shared.commit(10);
    reader.join().unwrap();
    shared.commit(10);
    assert!(log(&shared.connection).pages < 1_000, "{} pages", log(&shared.connection).pages);
}

fn log_bytes(shared: &SharedFile) -> u64 {
    shared.folder.path().join("jobs.db-wal").metadata().unwrap().len()
}

#[test]
fn long_log_is_cut_when_its_reader_has_ended() {
    let mut shared = SharedFile::new();
    let reader = open(shared.folder.path());
    reader.execute_batch("BEGIN").unwrap();
    let _: i64 = reader.query_row("SELECT count(*) FROM own", [], |row| row.get(0)).unwrap();
    for _ in 0..5 {
        shared.commit(1_100);
    }
    let long = log_bytes(&shared);
    reader.execute_batch("COMMIT").unwrap();
    for _ in 0..3 {
        shared.commit(1_100);
    }
    assert!(log_bytes(&shared) < long / 2, "{} of {long} bytes", log_bytes(&shared));
}

#[test]
fn copied_log_is_emptied_when_no_operation_comes() {
    let mut shared = SharedFile::new();
    shared.commit(1_100);
    assert!(log_bytes(&shared) > 500_000);
    shared.upkeep.run(true, &mut shared.connection, &StoreClock::new(Runtime::new()), &mut Known::default());
    assert_eq!(log_bytes(&shared), 0);
}

#[test]
fn failed_checkpoint_is_not_tried_again_at_each_commit() {
    let mut shared = SharedFile::new();
    insert(&shared.connection, 1_100);
    let due = shared.upkeep.count_uncopied(&shared.connection);
    // SQLite refuses a checkpoint within a transaction.
    shared.connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    shared.upkeep.checkpoint(&mut shared.connection, due);
    assert!(shared.upkeep.next_checkpoint > due);
}

#[test]
fn stopped_store_sleeps_although_there_is_more_to_remove() {
    let mut shared = SharedFile::new();
    (shared.upkeep.has_more, shared.upkeep.next_purge) = (true, Instant::now());
    assert!(shared.upkeep.pause().is_zero());
    shared.upkeep.health.note(&Cause::new(StoreErrorKind::Corrupt, "damaged"));
    assert!(shared.upkeep.pause() >= EMPTY_LOG_AFTER);
}

#[test]
fn few_pages_behind_a_long_log_cost_no_checkpoint() {
    let mut shared = SharedFile::new();
    shared.commit_beside_another(1_100);
    shared.commit(1);
    let Progress { pages, copied, .. } = log(&shared.connection);
    assert!(pages > copied && copied > 1_000, "{copied} of {pages} pages");
}
