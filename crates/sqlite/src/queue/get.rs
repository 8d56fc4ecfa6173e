//! Leases messages.

use std::cmp::Reverse;
use std::sync::LazyLock;
use std::time::Duration;

use rusqlite::{OptionalExtension, ToSql, params};

use super::ready::{BY_NUMBER, Found, LEASED, Source, merge};
use crate::batch::Batch;
use crate::clock::{LEASED_TIME, after, to_duration, to_instant};
use crate::error::Applied;
use crate::groups::Removed;
use crate::receipt::{Receipt, message_ref};
use crate::row_id;
use crate::statements::Insert;
use jobqueue_storage::{GetMessages, LeasedMessage, Operation, QueueName, Received};

/// The number of expired messages that one get may meet and remove before it returns with the messages it has.
const MAX_EXPIRED: usize = 1_000;

const VISIBLE: &str =
    "SELECT id, text, dequeue_count, inserted_at, expires_at, visible_at FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 0 AND visible_at <= ?2 ORDER BY visible_at, id & 2199023255551 LIMIT ?3";

static LEASE: LazyLock<Insert> =
    LazyLock::new(|| Insert::new("jobqueue_lease (until, id, dequeue_count, receipt)", "(?1, {})", 1, 3));

/// Takes a message of the index of times: puts it behind all times. The row stays as long as it was, so that SQLite writes it where it is.
/// A shorter one with a long text would need pages before it frees others, which a full file does not have.
const TAKE: &str = "UPDATE jobqueue_message SET visible_at = ?2 WHERE id = ?1";

/// The leases that have ended.
const ENDED: &str = "SELECT until, id FROM jobqueue_lease WHERE id >= ?1 AND id < ?2 AND until <= ?3";

/// The message of a lease that has ended. Its row is not written, so that it can be leased again although the file is full.
const OF_ENDED: &str = "SELECT m.id, m.text, l.dequeue_count, m.inserted_at, m.expires_at, l.until
    FROM jobqueue_lease l CROSS JOIN jobqueue_message m ON m.id = l.id WHERE l.id = ?1 AND l.until <= ?2";

const END: &str = "DELETE FROM jobqueue_lease WHERE id = ?1";

/// The end of the first lease that is in force.
const FIRST_END: &str = "SELECT min(until) FROM jobqueue_lease WHERE id >= ?1 AND id < ?2 AND until > ?3";

const NEXT: &str = "SELECT visible_at FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 0 AND visible_at > ?2 AND visible_at < ?3
        AND (expires_at IS NULL OR expires_at > visible_at)
    ORDER BY visible_at LIMIT 1";

/// The messages that a get leased. The caller makes the answer from them, so that the single writing thread need not.
pub(super) struct Leased {
    rows: Vec<LeasedRow>,
    visible_at: i64,
    next_visible_in: Option<Duration>,
}

impl Leased {
    pub(super) fn received(self) -> Received {
        let next_visible = to_instant(self.visible_at);
        let message = |LeasedRow { row, dequeue_count, receipt }: LeasedRow| {
            let message = message_ref(row.id, &receipt);
            LeasedMessage::new(message, row.text, dequeue_count, to_instant(row.inserted_at), next_visible)
                .with_expires(row.expires_at.map(to_instant))
        };
        let messages = self.rows.into_iter().map(message).collect();
        Received::new(messages).with_next_visible_in(self.next_visible_in)
    }
}

struct LeasedRow {
    row: Found,
    dequeue_count: u32,
    receipt: Receipt,
}

/// Leases up to `count` messages in the order in which they became visible.
pub(super) fn get(batch: &mut Batch<'_>, name: &QueueName, options: GetMessages) -> Applied<Leased> {
    let queue = batch.queue(Operation::Get, name)?;
    let wanted = options.count as usize;
    let visible_at = after(batch.now(), options.visibility);
    let mut rows = Vec::with_capacity(wanted.min(8));
    let mut expired = 0;
    loop {
        let found = candidates(batch, name, queue, wanted - rows.len())?;
        let mut exhausted = found.len() < wanted - rows.len();
        let before = rows.len();
        for row in found {
            match row.source {
                Source::Number => {}
                Source::Time => {
                    batch.statement(TAKE)?.execute([row.id, LEASED_TIME])?;
                }
                Source::Lease => {
                    batch.statement(END)?.execute([row.id])?;
                    batch.end_lease(name, row.id)?;
                }
            }
            if row.is_expired(batch.now()) {
                exhausted &= Removed::remove(batch, Some(row.id))?.advance(batch, queue)?.is_none();
                expired += 1;
                continue;
            }
            let (dequeue_count, receipt) =
                (row.dequeue_count.saturating_add(1), Receipt::random(batch.runtime()));
            rows.push(LeasedRow { row, dequeue_count, receipt });
        }
        // Before the next round, which would find them by their numbers.
        batch.statements().insert(&LEASE, &[&visible_at], &rows[before..], |one, values| {
            values.extend([&one.row.id as &dyn ToSql, &one.dequeue_count, &one.receipt]);
        })?;
        if exhausted || rows.len() == wanted || expired >= MAX_EXPIRED {
            break;
        }
    }
    if rows.is_empty() {
        batch.note_unmet();
    } else {
        batch.note_lease(name, visible_at)?;
    }
    let next_visible_in = match rows.len() {
        _ if expired >= MAX_EXPIRED && rows.len() < wanted => Some(Duration::ZERO),
        leased if leased < wanted => next_visible_in(batch, name, queue)?,
        _ => None,
    };
    Ok(Leased { rows, visible_at, next_visible_in })
}

/// Returns the first messages that can be received, some of them perhaps expired.
fn candidates(
    batch: &mut Batch<'_>,
    name: &QueueName,
    queue: i64,
    limit: usize,
) -> rusqlite::Result<Vec<Found>> {
    let (now, most) = (batch.now(), i64::try_from(limit).unwrap_or(i64::MAX));
    let due = batch.statement(VISIBLE)?.query_map(params![queue, now, most], Found::by_time)?;
    let mut due = due.collect::<rusqlite::Result<Vec<_>>>()?;
    if batch.due(name)? <= now {
        due.extend(ended(batch, name, queue, limit)?);
        due.sort_unstable_by_key(Found::place);
    }
    let rows = row_id::from_head(queue, batch.head(name)?);
    let leased = batch.statement(LEASED)?.query_map([rows.start, rows.end], |row| row.get(0))?;
    let leased = leased.collect::<rusqlite::Result<Vec<i64>>>()?;
    let by_number = batch.statement(BY_NUMBER)?.query([rows.start, rows.end])?;
    let (found, head) = merge(due, by_number, &leased, limit, |_| true)?;
    if let Some(head) = head {
        batch.set_head(name, head)?;
    }
    Ok(found)
}

/// Returns the first messages whose leases have ended. If there is none, notes when the first lease ends.
///
/// All leases of the queue are read only when those that were found before are not enough.
fn ended(batch: &mut Batch<'_>, name: &QueueName, queue: i64, most: usize) -> rusqlite::Result<Vec<Found>> {
    let (now, rows) = (batch.now(), row_id::all(queue));
    let mut leases = batch.take_ended(name)?;
    let mut ended = of_leases(batch, &leases, most)?;
    if ended.len() < most {
        let found = batch.statement(ENDED)?;
        let found = found.query_map([rows.start, rows.end, now], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut found = found.collect::<rusqlite::Result<Vec<(i64, i64)>>>()?;
        found.sort_unstable_by_key(|&(until, id)| Reverse((until, row_id::number(id))));
        leases = found.into_iter().map(|(_, id)| id).collect();
        ended = of_leases(batch, &leases, most)?;
    }
    batch.set_ended(name, leases)?;
    if ended.is_empty() {
        note_first_end(batch, name, queue)?;
    }
    Ok(ended)
}

/// Returns the messages of up to `most` of the leases, from the last one on, as far as they have ended and exist.
fn of_leases(batch: &mut Batch<'_>, leases: &[i64], most: usize) -> rusqlite::Result<Vec<Found>> {
    let now = batch.now();
    let statement = batch.statement(OF_ENDED)?;
    let read = |id: &i64| {
        statement.query_row([*id, now], |row| Found::read(row, Source::Lease)).optional().transpose()
    };
    leases.iter().rev().filter_map(read).take(most).collect()
}

fn note_first_end(batch: &mut Batch<'_>, name: &QueueName, queue: i64) -> rusqlite::Result<()> {
    let (now, rows) = (batch.now(), row_id::all(queue));
    let first = batch.statement(FIRST_END)?;
    let first: Option<i64> = first.query_row([rows.start, rows.end, now], |row| row.get(0))?;
    batch.set_due(name, first.unwrap_or(i64::MAX))
}

/// Returns a time before which no hidden message becomes visible, after a get that has taken all that were visible. A lease that was
/// renewed or has ended since the leases were last read may count: to read all of them each time would take too long.
fn next_visible_in(
    batch: &mut Batch<'_>,
    name: &QueueName,
    queue: i64,
) -> rusqlite::Result<Option<Duration>> {
    let now = batch.now();
    let next: Option<i64> =
        batch.statement(NEXT)?.query_row([queue, now, LEASED_TIME], |row| row.get(0)).optional()?;
    if batch.due(name)? <= now {
        note_first_end(batch, name, queue)?;
    }
    let next = next.unwrap_or(i64::MAX).min(batch.due(name)?);
    Ok((next < i64::MAX).then(|| to_duration(next - now)))
}

#[cfg(test)]
mod tests {
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

    /// Returns a queue with this number of messages, surrounded by those of others. The first eighth is leased, and its head is behind them. Of
    /// eight others one is delayed, one is visible by its time, and six are received by their numbers.
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
        connection.execute("INSERT INTO jobqueue_queue (id, name, metadata, delayed, head) VALUES (2, 'queue', '', 0, ?1)",
            [row_id::of(2, i64::from(messages) / 8, true)]).unwrap();
        connection
    }

    /// Returns the cost of one claim of 32 messages in steps of SQLite's virtual machine.
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
        for sql in [VISIBLE, NEXT, TAKE, END, ENDED, OF_ENDED, FIRST_END, BY_NUMBER, LEASED] {
            let text = crate::plan_tests::of(sql);
            assert!(text.starts_with("SEARCH "), "{sql}: {text}");
            assert!(!text.contains("TEMP B-TREE") && !text.contains("SCAN"), "{sql}: {text}");
        }
    }

    /// A get asks for the leases of its queue only when one may have ended.
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
            super::get(batch, &"queue".parse().unwrap(), options)
                .unwrap_or_else(|_| panic!("refused"))
                .rows
                .len()
        };
        transact(&mut |batch| {
            for _ in 0..2 {
                let message = Arc::new(PutMessage::new("x"));
                super::super::put(batch, &name, &message).unwrap_or_else(|_| panic!("refused"));
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

    /// Puts messages into a queue, then fills the file. Long texts are in pages of their own, which a longer or shorter row would need twice.
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
            super::super::put(&mut batch, &name, &message).unwrap_or_else(|_| panic!("refused"));
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
        assert!(again.len() == 4 && again.iter().all(|one| one.dequeue_count == 2));
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

    /// A clock that is set wrong goes no further than to the last instant, and leased messages are behind it.
    #[test]
    fn leased_messages_are_not_found_at_the_end_of_time() {
        let connection = file(&["queue"]);
        let end = std::time::UNIX_EPOCH + Duration::from_millis(1 << 48);
        let clock = StoreClock::new(Runtime::new().with_clock(Arc::new(ManualClock::at(end))));
        let name: QueueName = "queue".parse().unwrap();
        let mut batch = begin(&connection, &clock, Known::default());
        let message = Arc::new(PutMessage::new("x").with_group("a".to_owned()));
        super::super::put(&mut batch, &name, &message).unwrap_or_else(|_| panic!("refused"));
        batch.insert_pending().unwrap();
        for count in [1, 2] {
            let leased = get(&mut batch, &name, GetMessages::new(1, Duration::from_secs(60)));
            assert_eq!(leased.unwrap_or_else(|_| panic!("refused")).rows[0].dequeue_count, count);
        }
    }

    /// Returns a queue in which all messages are leased until one of a thousand times, and one is not.
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

    /// Gets one message, and all, and looks how many steps the reading of leases took.
    fn steps_of_gets(connection: &Connection, clock: &StoreClock, gets: usize, count: u32) -> i32 {
        let mut batch = begin(connection, clock, Known::default());
        let name: QueueName = "queue".parse().unwrap();
        for _ in 0..gets {
            let options = GetMessages::new(count, Duration::from_secs(60));
            get(&mut batch, &name, options).unwrap_or_else(|_| panic!("refused"));
        }
        let steps = |sql| batch.statement(sql).unwrap().get_status(StatementStatus::VmStep);
        [ENDED, FIRST_END].map(steps).iter().sum()
    }

    fn clock() -> StoreClock {
        let now = std::time::UNIX_EPOCH + Duration::from_millis(NOW as u64);
        StoreClock::new(Runtime::new().with_clock(Arc::new(ManualClock::at(now))))
    }

    /// Other leases have ended and are left: a get of a few does not read all of them again.
    #[test]
    fn leases_are_read_once_for_many_gets() {
        let steps = |gets| steps_of_gets(&leased(10_000), &clock(), gets, 1);
        let (one, many) = (steps(1), steps(100));
        assert!(many < one + one / 10, "{one} and {many} steps");
    }

    #[test]
    fn gets_that_find_too_few_messages_do_not_read_all_leases_each_time() {
        let steps = |gets| steps_of_gets(&leased(1_000), &clock(), gets, 2_000);
        let (two, many) = (steps(2), steps(100));
        assert!(many < two + two / 10, "{two} and {many} steps");
    }

    /// Jobs that kill their workers again and again do not hide those of higher rows.
    #[test]
    fn leases_that_ended_first_are_taken_first_whatever_their_rows() {
        let connection = leased(5_000);
        connection.execute("UPDATE jobqueue_lease SET until = ?1 - id % (1 << 41)", [NOW]).unwrap();
        let mut batch = begin(&connection, &clock(), Known::default());
        let options = GetMessages::new(3, Duration::from_secs(60));
        let leased =
            get(&mut batch, &"queue".parse().unwrap(), options).unwrap_or_else(|_| panic!("refused"));
        let numbers: Vec<i64> = leased.rows.iter().map(|one| row_id::number(one.row.id)).collect();
        assert_eq!(numbers, [0, 5_000, 4_999], "the one without a lease, and the two that ended first");
    }
}
