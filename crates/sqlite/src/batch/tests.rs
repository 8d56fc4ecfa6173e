use std::time::Duration;

use super::*;
use crate::receipt::{Presented, Receipt};
use crate::row_id::{self, NUMBERS};
use crate::schema;
use crate::tests::{begin, file};
use jobqueue_storage::UpdateMessage;
use jobqueue_storage::clock::ManualClock;

/// One hour in milliseconds.
const HOUR: i64 = 3_600_000;

/// Returns the clock of a process that has accepted a leap of an hour and has not moved the leases.
fn clock_after_a_leap() -> StoreClock {
    let wall = Arc::new(ManualClock::new());
    StoreClock::after_a_leap(Runtime::new().with_clock(wall), HOUR)
}

#[test]
fn leases_last_as_long_when_time_leaps() {
    let connection = file(&[]);
    let clock = clock_after_a_leap();
    let before = clock.now(0) - HOUR;
    let ends = [before + 30_000, before - 1];
    for until in ends {
        let insert = "INSERT INTO jobqueue_lease (until, dequeue_count, receipt) VALUES (?1, 1, x'')";
        connection.execute(insert, [until]).unwrap();
    }
    let insert = "INSERT INTO jobqueue_message
        (queue, visible_at, inserted_at, dequeue_count, leased, waiting, receipt, text)
        VALUES (1, ?1, 0, 1, 2, 0, x'', '')";
    connection.execute(insert, [ends[0]]).unwrap();
    connection.execute_batch("BEGIN").unwrap();
    assert!(begin(&connection, &clock, Known::default()).finish().unwrap().changed);
    connection.execute_batch("ROLLBACK").unwrap();
    let of_application = Batch::within(&connection, &clock);
    assert!(!of_application.unwrap_or_else(|_| panic!("no transaction begins")).finish().unwrap().changed);
    let finished = begin(&connection, &clock, Known::default()).finish().unwrap();
    assert!(finished.changed, "the transaction before was rolled back");
    clock.leases_were_moved(finished.moved);
    let other = clock_after_a_leap();
    assert!(!begin(&connection, &other, Known::default()).finish().unwrap().changed, "they were moved");
    let times = "SELECT until FROM jobqueue_lease UNION ALL SELECT visible_at FROM jobqueue_message";
    let mut moved = connection.prepare(times).unwrap();
    let moved = moved.query_map([], |row| row.get(0)).unwrap().collect::<Result<Vec<i64>, _>>();
    assert_eq!(moved.unwrap(), [ends[0] + HOUR, ends[1], ends[0]], "delays follow the wall clock");
    assert!(!begin(&connection, &clock, Known::default()).finish().unwrap().changed);
}

// audit 33, sending C3: the leases were moved back.
#[test]
fn leap_that_another_handle_records_meanwhile_moves_no_lease_back() {
    let (connection, clock) = (file(&[]), clock_after_a_leap());
    let after = clock.now(0);
    let insert = "INSERT INTO jobqueue_lease (until, dequeue_count, receipt) VALUES (?1, 1, x'')";
    connection.execute(insert, [after + HOUR * 2]).unwrap();
    // The other handle has moved the leases in its transaction.
    connection.execute("UPDATE jobqueue_store SET now = ?1", [after]).unwrap();
    let mut batch = begin(&connection, &clock, Known::default());
    clock.leases_were_moved(HOUR);
    batch.refresh_time(&clock).unwrap();
    batch.finish().unwrap();
    let until: i64 = connection.query_row("SELECT until FROM jobqueue_lease", [], |row| row.get(0)).unwrap();
    assert_eq!(until, after + HOUR * 2);
}

// The application's transaction is the first after the leap.
#[test]
fn lease_is_held_in_a_transaction_of_the_application_although_time_has_leapt() {
    let (connection, name) = (file(&["mails"]), "mails".parse().unwrap());
    let clock = clock_after_a_leap();
    let (before, receipt, id) =
        (clock.now(0) - HOUR, Receipt::random(clock.runtime()), row_id::of_shown(1, 7));
    let message =
        "INSERT INTO jobqueue_message (id, queue, inserted_at, dequeue_count, leased, waiting, receipt, text)
        VALUES (?1, 1, 0, 0, 0, 0, x'', '')";
    connection.execute(message, [id]).unwrap();
    let lease = "INSERT INTO jobqueue_lease (id, until, dequeue_count, receipt) VALUES (?1, ?2, 1, ?3)";
    connection.execute(lease, params![id, before + 10_000, receipt]).unwrap();
    let mut batch = Batch::within(&connection, &clock).unwrap_or_else(|_| panic!("no transaction begins"));
    let presented = Presented { id: Some(7), receipt: Some(receipt) };
    let change = UpdateMessage::new(Duration::from_secs(30));
    assert!(crate::queue::update(&mut batch, &name, presented, &change).is_ok(), "its owner counts the time");
    batch.finish().unwrap();
    assert_eq!(begin(&connection, &clock, Known::default()).finish().unwrap().moved, HOUR);
    let until: i64 = connection.query_row("SELECT until FROM jobqueue_lease", [], |row| row.get(0)).unwrap();
    assert_eq!(until, before + HOUR + 30_000);
}

/// The clock of the other process was ahead by two seconds, and has not accepted the leap yet.
#[test]
fn time_of_a_process_that_is_a_little_ahead_hides_no_leap() {
    let connection = file(&[]);
    let clock = clock_after_a_leap();
    let before = clock.now(0) - HOUR;
    connection.execute("UPDATE jobqueue_store SET now = ?1", [before + 2_000]).unwrap();
    let insert = "INSERT INTO jobqueue_lease (until, dequeue_count, receipt) VALUES (?1, 1, x'')";
    connection.execute(insert, [before + 30_000]).unwrap();
    assert_eq!(begin(&connection, &clock, Known::default()).finish().unwrap().moved, HOUR);
    let until: i64 = connection.query_row("SELECT until FROM jobqueue_lease", [], |row| row.get(0)).unwrap();
    assert_eq!(until, before + HOUR + 30_000);
}

#[test]
fn numbers_grow_and_the_last_one_is_the_last() {
    let connection = file(&[]);
    let clock = StoreClock::new(Runtime::new());
    let draw = |known: Known, count: i64| {
        let mut batch = begin(&connection, &clock, known);
        let drawn: Vec<i64> = (0..count).map_while(|_| batch.next().ok()).collect();
        (drawn, batch.finish().unwrap().known)
    };
    let (first, known) = draw(Known::default(), 2_000);
    let (second, known) = draw(known, 1);
    assert_eq!(second, [first[1_999] + 1]);
    assert!(known.sequence - second[0] <= 1_024, "few numbers are reserved in vain");
    let (alone, none) = draw(Known::default(), 1);
    assert_eq!(alone[0], known.sequence);
    assert!(none.numbers.is_empty());
    connection.execute("UPDATE jobqueue_store SET sequence = ?1", [NUMBERS - 3]).unwrap();
    assert_eq!(draw(Known::default(), 5).0, [NUMBERS - 3, NUMBERS - 2, NUMBERS - 1]);
}

/// Two connections put in turn. The first drops its reserved numbers, which are lower than the numbers of the
/// second.
#[test]
fn numbers_grow_from_commit_to_commit_of_all_connections() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Connection::open(folder.path().join("jobs.db")).unwrap();
    let mut connections = [open(), open()];
    connections[0].pragma_update(None, "journal_mode", "wal").unwrap();
    schema::prepare(&mut connections[0]).unwrap();
    let clock = StoreClock::new(Runtime::new());
    let mut known = [Known::default(), Known::default()];
    let mut last = 0;
    for turn in [0, 0, 1, 0, 1, 1, 1, 0, 0, 1] {
        let connection = &connections[turn];
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut batch = begin(connection, &clock, std::mem::take(&mut known[turn]));
        for _ in 0..100 {
            let number = batch.next().unwrap_or_else(|_| panic!("no number is left"));
            assert!(number > last, "{number} after {last}");
            last = number;
        }
        known[turn] = batch.finish().unwrap().known;
        connection.execute_batch("COMMIT").unwrap();
    }
    assert!(last < 2_500, "{last} numbers for 1,000");
}
