use super::*;
use crate::clock::StoreClock;
use crate::known::Known;
use crate::options::Options;
use crate::store::Store;
use jobqueue_storage::clock::ManualClock;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{
    ExpiredReceipt, GetMessages, MessageId, MessageIndex, MessageRef, MessageState, PopReceipt, QueueName,
    QueueStore, StateCounter, StateCounts, UpdateMessage,
};
use std::time::{Duration, UNIX_EPOCH};

#[test]
fn older_file_is_migrated_and_keeps_its_messages() {
    let mut connection = Connection::open_in_memory().unwrap();
    connection.execute_batch(MIGRATIONS[0]).unwrap();
    connection.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
    connection.pragma_update(None, "user_version", 1).unwrap();
    connection
        .execute_batch(
            "INSERT INTO jobqueue_queue (id, name, metadata, delayed) VALUES (1, 'mails', '{}', 0), (2, 'mails-poison', '{}', 0);
             INSERT INTO jobqueue_message VALUES (7, 1, 0, NULL, 0, 3, 0, x'00', 'text');
             INSERT INTO jobqueue_message SELECT id, 1, 0, NULL, 0, 0, 0, x'00', json_object('key', key, 'inorder', 'true')
                 FROM (SELECT 11 AS id, 'a' AS key UNION SELECT 12, 'a' UNION SELECT 13, 'b' UNION SELECT 14, 'a');
             INSERT INTO jobqueue_message VALUES (15, 1, 0, NULL, 0, 0, 0, x'00', 'eyJrZXkiOiJhIiwiaW5vcmRlciI6InRydWUifQ==');
             INSERT INTO jobqueue_message VALUES (20, 2, 0, NULL, 0, 3, 0, x'00', '{\"key\":\"a\",\"inorder\":\"true\"}');
             INSERT INTO jobqueue_container (id, name) VALUES (4, 'payloads'), (5, 'jobqueue-history'), (6, 'jobqueue-fifo');",
        )
        .unwrap();
    assert!(prepare(&mut connection).unwrap());
    assert_eq!(version(&connection).unwrap(), MIGRATIONS.len());
    let text = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(
        text("SELECT text FROM jobqueue_message WHERE id = (1 << 42) + 7 AND dequeue_count = 3"),
        "text"
    );
    assert_eq!(text("SELECT group_concat(name) FROM jobqueue_container"), "payloads");
    assert_eq!(
        text("SELECT group_concat(kind || owner) FROM jobqueue_garbage"),
        "container5,container6",
        "the former journal and logs of order"
    );
    assert_eq!(
        text("SELECT group_concat((id & 255) || group_name || waiting, ' ') FROM jobqueue_message"),
        "11a0 12a1 13b0 14a1 15a1",
        "what was sent in order keeps it, but not among dead letters"
    );
    assert_eq!(text("SELECT '' || count(*) FROM jobqueue_journal"), "0");
}

/// `ANALYZE` of a file with an empty table makes SQLite read the whole table from then on. A purge step of a
/// running store repairs the plans of all its connections.
#[test]
fn statistics_of_a_quiet_moment_change_no_plan() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Connection::open(folder.path().join("jobs.db")).unwrap();
    let (mut writer, reader, application) = (open(), open(), open());
    writer.pragma_update(None, "journal_mode", "wal").unwrap();
    prepare(&mut writer).unwrap();
    let plan = |connection: &Connection| {
        let search = "EXPLAIN QUERY PLAN SELECT count(*) FROM jobqueue_lease WHERE id >= ?1 AND id < ?2";
        // A connection notices a change of the schema when it runs a statement.
        let _: i64 =
            connection.query_row("SELECT count(*) FROM jobqueue_queue", [], |row| row.get(0)).unwrap();
        connection.query_row(search, [1, 2], |row| row.get::<_, String>(3)).unwrap()
    };
    let searched = plan(&writer);
    assert!(searched.starts_with("SEARCH"), "{searched}");
    writer.execute("INSERT INTO jobqueue_lease VALUES (1, 1, 1, x'')", []).unwrap();
    let analyze = "CREATE TABLE own (a); CREATE INDEX own_a ON own (a); INSERT INTO own VALUES (1); ANALYZE";
    application.execute_batch(analyze).unwrap();
    assert!([&writer, &reader].iter().all(|running| plan(running).starts_with("SCAN")));
    crate::purge::step(&writer, &StoreClock::new(Runtime::new()), &mut Known::default()).unwrap();
    assert_eq!([plan(&writer), plan(&reader), plan(&open())], [&*searched; 3]);
    let tables = "SELECT group_concat(tbl) FROM sqlite_stat1";
    let left: String = writer.query_row(tables, [], |row| row.get(0)).unwrap();
    assert!(left.contains("own") && !left.contains("jobqueue_message"), "{left}");
}

/// Several processes that open a new file at once see it empty or complete.
#[test]
fn file_in_creation_is_not_another_programs_file() {
    for _ in 0..50 {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("jobs.db");
        let open = || {
            let connection = Connection::open(&file).unwrap();
            connection.busy_timeout(Duration::from_secs(10)).unwrap();
            connection
        };
        let mut first = open();
        first.pragma_update(None, "journal_mode", "wal").unwrap();
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                let connection = open();
                while version(&connection).unwrap() == 0 {}
            });
            assert!(prepare(&mut first).unwrap());
            looks.join().unwrap();
        });
    }
}

/// A worker that frees space must be able to start.
#[test]
fn statistics_of_a_full_or_locked_file_stay() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Connection::open(folder.path().join("jobs.db")).unwrap();
    let (mut connection, other) = (open(), open());
    connection.pragma_update(None, "journal_mode", "wal").unwrap();
    prepare(&mut connection).unwrap();
    connection.execute_batch("INSERT INTO jobqueue_garbage VALUES ('queue', 3); ANALYZE").unwrap();
    connection.busy_timeout(Duration::ZERO).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(!forget_statistics(&connection).unwrap(), "locked");
    other.execute_batch("ROLLBACK").unwrap();
    let pages: i64 = connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    connection.pragma_update(None, "max_page_count", pages).unwrap();
    assert!(!forget_statistics(&connection).unwrap(), "full");
    connection.pragma_update(None, "max_page_count", pages + 9).unwrap();
    assert!(forget_statistics(&connection).unwrap());
}

/// With the number that it was set back to, all programs of this version would use the newer tables.
#[test]
fn only_a_number_that_was_set_by_others_is_to_be_set_back() {
    let connection = crate::tests::file(&[]);
    connection.pragma_update(None, "user_version", 99).unwrap();
    let advice = || require_unchanged(&connection).unwrap_err().error("peek", "mails").to_string();
    let (of_number, number) = (advice(), format!("set it back to {}", MIGRATIONS.len()));
    assert!(of_number.contains(&number) && !of_number.contains("newer version"), "{of_number}");
    connection.execute_batch("CREATE TABLE jobqueue_newer (a INTEGER) STRICT").unwrap();
    let of_tables = advice();
    assert!(of_tables.contains("use a newer version") && !of_tables.contains(&number), "{of_tables}");
}

/// The time at which the next test opens the file, in milliseconds.
const NOW: i64 = 1_000_000;

/// A file of version 3 or later with a message in every state, and some that differ in their optional
/// columns.
fn file_of_version(path: &std::path::Path, version: usize) {
    let connection = Connection::open(path).unwrap();
    connection.execute_batch(&MIGRATIONS[..3].concat()).unwrap();
    connection.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
    connection.pragma_update(None, "user_version", version as i64).unwrap();
    let queues = "INSERT INTO jobqueue_queue (id, name, metadata, delayed, has_groups)
         VALUES (1, 'mails', '{}', 0, 1), (2, 'mails-poison', '{}', 0, 0), (4, 'empty', '{}', 0, 0);
        INSERT INTO jobqueue_garbage (kind, owner) VALUES ('queue', 3);
        UPDATE jobqueue_store SET now = 900000, sequence = 2049";
    connection.execute_batch(queues).unwrap();
    // Id, queue, visible, expires, count, leased, waiting, group, turn.
    for row in [
        "1, 1, 500000, NULL, 0, 0, 0, NULL, NULL",    // ready
        "2, 1, 600000, 2000000, 0, 0, 0, NULL, NULL", // ready, with a time to live
        "3, 1, 1500000, NULL, 0, 0, 0, NULL, NULL",   // delayed
        "4, 1, 1060000, NULL, 2, 1, 0, NULL, NULL",   // leased
        "5, 1, 999000, NULL, 3, 1, 0, NULL, NULL",    // its lease has ended
        "6, 1, 1700000, NULL, 4, 2, 0, NULL, NULL",   // put back
        "7, 1, 400000, NULL, 5, 2, 0, NULL, NULL",    // put back and visible
        "8, 1, 400000, 999999, 0, 0, 0, NULL, NULL",  // expired
        "9, 1, 1050000, NULL, 1, 1, 0, 'a', 0",       // the first of a group, leased
        "10, 1, 500000, NULL, 0, 0, 1, 'a', 1",       // waits
        "11, 1, 1800000, NULL, 0, 1, 1, 'a', 2",      // waits, and was hidden by its sender
        "12, 1, 700000, NULL, 0, 0, 0, 'b', 7",       // the first of a group, ready
        "13, 2, 300000, NULL, 9, 0, 0, NULL, NULL",   // a dead letter
        "14, 3, 300000, NULL, 0, 0, 0, NULL, NULL",   // of a queue that is gone
    ] {
        let id: i64 = row.split(',').next().unwrap().parse().unwrap();
        let columns = "id, queue, visible_at, expires_at, dequeue_count, leased, waiting, group_name, turn";
        let insert = format!(
            "INSERT INTO jobqueue_message ({columns}, inserted_at, receipt, text) VALUES ({row}, {id}, ?1, ?2)"
        );
        connection.execute(&insert, rusqlite::params![[id as u8; 16], format!("text {id}")]).unwrap();
    }
    connection.execute_batch(&MIGRATIONS[3..version].concat()).unwrap();
    connection.close().unwrap();
}

/// No message is lost or changes its state, and everything that callers hold stays valid: ids, receipts and
/// leases.
#[tokio::test]
async fn messages_of_the_third_version_keep_their_states_ids_and_receipts() {
    messages_stay_as_they_were(3).await;
}

#[tokio::test]
async fn messages_of_the_fourth_version_keep_their_states_ids_and_receipts() {
    messages_stay_as_they_were(4).await;
}

/// A page of one state need not read the messages of other states, even in a file that an older version
/// created.
#[test]
fn migrated_file_has_the_indexes_of_a_new_one() {
    let indexes = |connection: &Connection| {
        let sql = "SELECT group_concat(sql ORDER BY name) FROM sqlite_schema WHERE type = 'index'";
        connection.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    file_of_version(&path, 4);
    let mut connection = Connection::open(&path).unwrap();
    assert!(prepare(&mut connection).unwrap());
    assert!(indexes(&connection).contains("id & 2199023255551, leased)"));
    assert_eq!(indexes(&connection), indexes(&crate::tests::file(&[])));
}

/// Returns the messages of each state: id, time at which they are visible, and deliveries.
async fn messages_of(store: &Store, queue: &QueueName) -> String {
    let mut shown = Vec::new();
    for state in
        [MessageState::Waiting, MessageState::Delayed, MessageState::Running, MessageState::BackingOff]
    {
        let page = store.messages(queue, state, None, 100).await.unwrap();
        for (message, visible) in page.messages {
            let visible = visible.duration_since(UNIX_EPOCH).unwrap().as_millis();
            shown.push(format!("{}:{visible}:{}", message.id.as_str(), message.dequeue_count));
        }
    }
    shown.join(" ")
}

async fn messages_stay_as_they_were(version: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    file_of_version(&path, version);
    let clock = ManualClock::at(UNIX_EPOCH + Duration::from_millis(NOW as u64));
    let options = Options::new(&path).runtime(Runtime::new().with_clock(Arc::new(clock)));
    let store = Store::open(options.clone()).await.unwrap();
    let [mails, poison]: [QueueName; 2] = ["mails".parse().unwrap(), "mails-poison".parse().unwrap()];
    let oldest_backing_off = Some(UNIX_EPOCH + Duration::from_millis(6));
    let oldest_held_up = Some(UNIX_EPOCH + Duration::from_millis(10));
    let counts = StateCounts { waiting: 7, delayed: 1, backing_off: 1, running: 2, ..StateCounts::default() };
    let now = Some(UNIX_EPOCH + Duration::from_millis(NOW as u64));
    let expected = StateCounts { oldest_backing_off, oldest_held_up, now, ..counts };
    assert_eq!(store.counts_by_state(&mails).await.unwrap(), expected);
    assert_eq!(
        messages_of(&store, &mails).await,
        "7:400000:5 1:500000:0 2:600000:0 12:700000:0 5:999000:3 10:500000:0 11:1800000:0 3:1500000:0 9:1050000:1 \
         4:1060000:2 6:1700000:4"
    );
    let held = |id: u8| MessageRef {
        id: MessageId::new(id.to_string()),
        receipt: PopReceipt::new(format!("{id:02x}").repeat(16)),
    };
    let refuse = ExpiredReceipt::Refuse;
    let renewed = store.update(&mails, &held(4), UpdateMessage::new(Duration::from_secs(90))).await.unwrap();
    assert!(store.delete(&mails, &held(5), refuse).await.unwrap_err().is_lease_lost(), "its lease has ended");
    store.delete(&mails, &held(3), refuse).await.unwrap();
    store.delete(&mails, &held(9), refuse).await.unwrap();
    drop(store);
    let store = Store::open(options).await.unwrap();
    let got = store.get(&mails, GetMessages::new(32, Duration::from_secs(60))).await.unwrap();
    let got: Vec<_> = got.messages.iter().map(|got| (got.message.id.as_str(), got.dequeue_count)).collect();
    assert_eq!(
        got,
        [("7", 6), ("1", 1), ("10", 1), ("2", 1), ("12", 1), ("5", 4)],
        "the next of the group too"
    );
    let renewed = MessageRef { receipt: renewed.receipt, ..held(4) };
    store.delete(&mails, &renewed, refuse).await.unwrap();
    let letter = store.peek(&poison, 32).await.unwrap();
    assert_eq!(letter.iter().map(|letter| letter.text.as_deref()).collect::<Vec<_>>(), [Ok("text 13")]);
    let put = store.put(&mails, jobqueue_storage::PutMessage::new("new")).await.unwrap();
    assert!(put.message.id.as_str().parse::<i64>().unwrap() & 0xffff >= 2_049, "a number that was not used");
}
