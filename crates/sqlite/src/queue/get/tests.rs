use super::*;
use crate::clock::StoreClock;
use crate::known::Known;
use crate::tests::{begin, file};
use jobqueue_storage::PutMessage;
use jobqueue_storage::clock::ManualClock;
use jobqueue_storage::runtime::Runtime;
use rusqlite::{Connection, StatementStatus};
use std::sync::Arc;

const NOW: i64 = 1_500_000;

/// Returns a queue with this number of messages, between the messages of other queues. The first eighth is
/// leased, and the head is behind it. Of each eight others one is delayed, one is visible by its time, and
/// six are received by their numbers.
fn filled(messages: u32) -> Connection {
    let connection = file(&[]);
    let rows = |queue| {
        format!(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {messages})
             INSERT INTO jobqueue_message
             SELECT ({queue} << 42) + ((n % 8 > 1) << 41) + n, {queue}, n, CASE n % 8 WHEN 0 THEN 2000000 + n WHEN 1 THEN iif(n < {messages} / 8, 2000000 + n, n) END,
                 NULL, 0, 0, 0, NULL, NULL, randomblob(16), 'text'
             FROM numbers;"
        )
    };
    for queue in 1..4 {
        connection.execute_batch(&rows(queue)).unwrap();
    }
    let leases = format!(
        "INSERT INTO jobqueue_lease SELECT id, 3000000, 1, randomblob(16) FROM jobqueue_message
        WHERE visible_at IS NULL AND id & 2199023255551 < {}",
        messages / 8
    );
    connection.execute_batch(&leases).unwrap();
    connection
        .execute(
            "INSERT INTO jobqueue_queue (id, name, metadata, delayed, head) VALUES (2, 'queue', '', 0, ?1)",
            [row_id::of(2, i64::from(messages) / 8, true)],
        )
        .unwrap();
    connection
}

/// Returns the cost of a claim of 32 messages, in steps of SQLite's virtual machine.
fn steps_of_a_claim(connection: &Connection) -> i32 {
    let now = std::time::UNIX_EPOCH + Duration::from_millis(NOW as u64);
    let clock = StoreClock::new(Runtime::new().with_clock(Arc::new(ManualClock::at(now))));
    let mut batch = begin(connection, &clock, Known::default());
    let name: QueueName = "queue".parse().unwrap();
    batch.set_due(&name, i64::MAX).unwrap();
    let leased = get(&mut batch, &name, GetMessages::new(32, Duration::from_secs(60)));
    assert_eq!(leased.unwrap_or_else(|_| panic!("it is refused")).rows.len(), 32);
    let mut steps = 0;
    for sql in [VISIBLE, BY_NUMBER, LEASED, TAKE] {
        let statement = batch.statement(sql).unwrap();
        let own = statement.get_status(StatementStatus::VmStep);
        assert!(own > 0, "{sql}: it was not used");
        steps += own;
        assert_eq!(statement.get_status(StatementStatus::FullscanStep), 0, "{sql}");
        assert_eq!(statement.get_status(StatementStatus::Sort), 0, "{sql}");
    }
    steps
}

#[test]
fn claim_cost_is_independent_of_queue_length() {
    let rows = std::env::var("JOBQUEUE_ROWS").ok().and_then(|rows| rows.parse().ok()).unwrap_or(50_000);
    let (short, long) = (steps_of_a_claim(&filled(500)), steps_of_a_claim(&filled(rows)));
    println!("{short} steps with 500 messages, {long} with {rows}");
    assert!(long <= short + short / 10, "{short} steps with 500 messages, {long} with {rows}");
}

#[test]
fn claims_use_the_index_and_sort_nothing() {
    for sql in [
        VISIBLE,
        NEXT_VISIBLE,
        TAKE,
        DELETE_LEASE,
        ENDED_LEASES,
        MESSAGE_OF_ENDED_LEASE,
        FIRST_LEASE_END,
        BY_NUMBER,
        LEASED,
    ] {
        let text = crate::plan_tests::of(sql);
        assert!(text.starts_with("SEARCH "), "{sql}: {text}");
        assert!(!text.contains("TEMP B-TREE") && !text.contains("SCAN"), "{sql}: {text}");
    }
}

/// A get reads the leases of its queue only if a lease may have ended.
#[test]
fn leases_are_read_when_one_is_due() {
    let connection = file(&["queue"]);
    let clock = Arc::new(ManualClock::new());
    let store = StoreClock::new(Runtime::new().with_clock(Arc::<ManualClock>::clone(&clock)));
    let name: QueueName = "queue".parse().unwrap();
    let mut known = Known::default();
    let mut transact = |work: &mut dyn FnMut(&mut Batch<'_>) -> usize| {
        let mut batch = begin(&connection, &store, std::mem::take(&mut known));
        let done = work(&mut batch);
        known = batch.finish().unwrap().known;
        done
    };
    let get = |batch: &mut Batch<'_>| {
        let options = GetMessages::new(1, Duration::from_secs(60));
        super::get(batch, &"queue".parse().unwrap(), options).unwrap_or_else(|_| panic!("refused")).rows.len()
    };
    transact(&mut |batch| {
        for _ in 0..2 {
            let message = Arc::new(PutMessage::new("x"));
            crate::queue::put(batch, &name, &message).unwrap_or_else(|_| panic!("refused"));
        }
        batch.insert_pending().unwrap();
        get(batch)
    });
    clock.advance(Duration::from_secs(30));
    assert_eq!(transact(&mut |batch| get(batch)), 1, "the second");
    assert_eq!(transact(&mut |batch| get(batch)), 0);
    clock.advance(Duration::from_secs(30));
    assert_eq!(transact(&mut |batch| get(batch)), 1, "the first again");
    assert_eq!(transact(&mut |batch| get(batch)), 0, "the second lease lasts for thirty seconds more");
}

/// Puts messages into a queue, then fills the file. Long texts have separate pages, of which a longer or
/// shorter row would need twice as many.
fn messages_of_a_full_file_are_leased_twice(message: &dyn Fn(PutMessage, usize) -> PutMessage) {
    let connection = file(&["queue"]);
    let clock = Arc::new(ManualClock::new());
    let store = StoreClock::new(Runtime::new().with_clock(Arc::<ManualClock>::clone(&clock)));
    let name: QueueName = "queue".parse().unwrap();
    let lease = |batch: &mut Batch<'_>| {
        let leased = get(batch, &name, GetMessages::new(4, Duration::from_secs(1)));
        leased.unwrap_or_else(|_| panic!("refused")).rows
    };
    let mut batch = begin(&connection, &store, Known::default());
    for number in 0..4 {
        let message = Arc::new(message(PutMessage::new("x".repeat(20_000)), number));
        crate::queue::put(&mut batch, &name, &message).unwrap_or_else(|_| panic!("refused"));
    }
    batch.insert_pending().unwrap();
    let known = batch.finish().unwrap().known;
    let pages: i64 = connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    connection.pragma_update(None, "max_page_count", pages).unwrap();
    clock.advance(Duration::from_secs(2));
    let mut batch = begin(&connection, &store, known);
    assert_eq!(lease(&mut batch).len(), 4);
    assert!(lease(&mut batch).is_empty());
    let known = batch.finish().unwrap().known;
    clock.advance(Duration::from_secs(2));
    let mut batch = begin(&connection, &store, known);
    let again = lease(&mut batch);
    assert_eq!(again.iter().map(|one| one.dequeue_count).collect::<Vec<_>>(), [2; 4]);
    assert!(lease(&mut batch).is_empty());
}

#[test]
fn messages_are_given_again_although_the_file_is_full() {
    messages_of_a_full_file_are_leased_twice(&|message, _| message);
}

#[test]
fn messages_of_groups_are_given_although_the_file_is_full() {
    messages_of_a_full_file_are_leased_twice(&|message, number| message.with_group(number.to_string()));
}

#[test]
fn delayed_messages_are_given_although_the_file_is_full() {
    let second = Duration::from_secs(1);
    messages_of_a_full_file_are_leased_twice(&|message, _| message.with_visibility_delay(second));
}

/// The time of a clock that is wrong ends at the last instant, and leased messages sort after it.
#[test]
fn leased_messages_are_not_found_at_the_end_of_time() {
    let connection = file(&["queue"]);
    let end = std::time::UNIX_EPOCH + Duration::from_millis(1 << 48);
    let clock = StoreClock::new(Runtime::new().with_clock(Arc::new(ManualClock::at(end))));
    let name: QueueName = "queue".parse().unwrap();
    let mut batch = begin(&connection, &clock, Known::default());
    let message = Arc::new(PutMessage::new("x").with_group("a".to_owned()));
    crate::queue::put(&mut batch, &name, &message).unwrap_or_else(|_| panic!("refused"));
    batch.insert_pending().unwrap();
    for count in [1, 2] {
        let leased = get(&mut batch, &name, GetMessages::new(1, Duration::from_secs(60)));
        assert_eq!(leased.unwrap_or_else(|_| panic!("refused")).rows[0].dequeue_count, count);
    }
}

/// Returns a queue in which all messages but one are leased, until one of a thousand different times.
fn leased(messages: u32) -> Connection {
    let connection = file(&["queue"]);
    let rows = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
        INSERT INTO jobqueue_message (id, queue, inserted_at, expires_at, dequeue_count, leased, waiting, receipt, text)
        SELECT (1 << 42) + (1 << 41) + i, 1, 0, iif(i % 2, 1600000, NULL), 0, 0, 0, x'', '' FROM n";
    connection.execute(rows, [messages]).unwrap();
    let rows = "INSERT INTO jobqueue_lease SELECT id, ?1 + id % 1000, 1, x'' FROM jobqueue_message WHERE id <> (1 << 42) + (1 << 41)";
    connection.execute(rows, [NOW - 500]).unwrap();
    connection
}

/// Returns the steps that the reading of leases takes in `gets` gets of `count` messages.
fn steps_of_gets(connection: &Connection, clock: &StoreClock, gets: usize, count: u32) -> i32 {
    let mut batch = begin(connection, clock, Known::default());
    let name: QueueName = "queue".parse().unwrap();
    for _ in 0..gets {
        let options = GetMessages::new(count, Duration::from_secs(60));
        get(&mut batch, &name, options).unwrap_or_else(|_| panic!("refused"));
    }
    let steps = |sql| batch.statement(sql).unwrap().get_status(StatementStatus::VmStep);
    [ENDED_LEASES, FIRST_LEASE_END].map(steps).iter().sum()
}

fn clock() -> StoreClock {
    let now = std::time::UNIX_EPOCH + Duration::from_millis(NOW as u64);
    StoreClock::new(Runtime::new().with_clock(Arc::new(ManualClock::at(now))))
}

/// Other leases have ended and are not taken: a get of a few messages does not read all of them again.
#[test]
fn leases_are_read_once_for_many_gets() {
    let steps = |gets| steps_of_gets(&leased(10_000), &clock(), gets, 1);
    let (one, many) = (steps(1), steps(100));
    assert!(many < one + one / 10, "{one} and {many} steps");
}

/// A worker was killed while thousands of jobs run, and the waiting messages were put before its lease ended.
#[test]
fn ended_lease_behind_a_backlog_costs_no_read_of_all_leases_at_each_get() {
    let steps = |gets| {
        let connection = leased(10_000);
        connection.execute("UPDATE jobqueue_lease SET until = ?1", [NOW + 60_000]).unwrap();
        let first = "UPDATE jobqueue_lease SET until = ?1 WHERE id = (SELECT min(id) FROM jobqueue_lease)";
        connection.execute(first, [NOW - 1]).unwrap();
        let waiting = "DELETE FROM jobqueue_lease WHERE id IN (SELECT id FROM jobqueue_lease ORDER BY id DESC LIMIT 500)";
        connection.execute(waiting, []).unwrap();
        steps_of_gets(&connection, &clock(), gets, 10)
    };
    let (one, many) = (steps(1), steps(10));
    assert!(many < one + one / 10, "{one} and {many} steps");
}

#[test]
fn gets_that_find_too_few_messages_do_not_read_all_leases_each_time() {
    let steps = |gets| steps_of_gets(&leased(1_000), &clock(), gets, 2_000);
    let (two, many) = (steps(2), steps(100));
    assert!(many < two + two / 10, "{two} and {many} steps");
}

/// Jobs that kill their workers again and again do not hide the messages of higher rows.
#[test]
fn leases_that_ended_first_are_taken_first_whatever_their_rows() {
    let connection = leased(5_000);
    connection.execute("UPDATE jobqueue_lease SET until = ?1 - id % (1 << 41)", [NOW]).unwrap();
    let mut batch = begin(&connection, &clock(), Known::default());
    let options = GetMessages::new(3, Duration::from_secs(60));
    let leased = get(&mut batch, &"queue".parse().unwrap(), options).unwrap_or_else(|_| panic!("refused"));
    let numbers: Vec<i64> = leased.rows.iter().map(|one| row_id::number(one.row.id)).collect();
    assert_eq!(numbers, [0, 5_000, 4_999], "the one without a lease, and the two that ended first");
}
