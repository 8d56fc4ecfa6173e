//! Leases messages.

use std::sync::LazyLock;
use std::time::Duration;

use rusqlite::{OptionalExtension, ToSql, params};

use super::ready::{BY_NUMBER, Found, merge};
use crate::batch::Batch;
use crate::clock::{after, to_duration, to_instant};
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

/// Takes a message from the index of times.
const TAKE: &str = "UPDATE jobqueue_message SET visible_at = NULL WHERE id = ?1";

/// The leases that have ended: a number of them, in no order.
const ENDED: &str = "SELECT id FROM jobqueue_lease WHERE id >= ?1 AND id < ?2 AND until <= ?3 LIMIT 500";

/// Gives the message of a lease that has ended its place in the index of times. The receipt is still its newest.
const RETURN: &str = "UPDATE jobqueue_message SET (visible_at, dequeue_count, receipt, leased) =
    (SELECT until, dequeue_count, receipt, 1 FROM jobqueue_lease WHERE id = ?1) WHERE id = ?1";

const END: &str = "DELETE FROM jobqueue_lease WHERE id = ?1";

/// The end of the first lease.
const FIRST_END: &str = "SELECT min(until) FROM jobqueue_lease WHERE id >= ?1 AND id < ?2";

const NEXT: &str = "SELECT visible_at FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 0 AND visible_at > ?2 AND (expires_at IS NULL OR expires_at > visible_at)
    ORDER BY visible_at LIMIT 1";

/// The first lease to end after one.
const NEXT_END: &str =
    "SELECT until, id FROM jobqueue_lease WHERE id >= ?1 AND id < ?2 AND (until, id) > (?3, ?4)
    ORDER BY until, id LIMIT 1";

const LIVES: &str = "SELECT expires_at IS NULL OR expires_at > ?2 FROM jobqueue_message WHERE id = ?1";

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
    return_ended(batch, name, queue)?;
    let mut rows = Vec::with_capacity(wanted.min(8));
    let mut expired = 0;
    loop {
        let found = candidates(batch, name, queue, wanted - rows.len())?;
        let mut exhausted = found.len() < wanted - rows.len();
        for row in found {
            if row.is_expired(batch.now()) {
                exhausted &= Removed::remove(batch, Some(row.id))?.advance(batch, queue)?.is_none();
                expired += 1;
                continue;
            }
            if !row.by_number {
                batch.statement(TAKE)?.execute([row.id])?;
            }
            let (dequeue_count, receipt) =
                (row.dequeue_count.saturating_add(1), Receipt::random(batch.runtime()));
            rows.push(LeasedRow { row, dequeue_count, receipt });
        }
        if exhausted || rows.len() == wanted || expired >= MAX_EXPIRED {
            break;
        }
    }
    if rows.is_empty() {
        batch.note_unmet();
    } else {
        batch.statements().insert(&LEASE, &[&visible_at], &rows, |one, values| {
            values.extend([&one.row.id as &dyn ToSql, &one.dequeue_count, &one.receipt]);
        })?;
        batch.note_lease(name, visible_at)?;
    }
    let next_visible_in = match rows.len() {
        _ if expired >= MAX_EXPIRED && rows.len() < wanted => Some(Duration::ZERO),
        leased if leased < wanted => next_visible_in(batch, name, queue)?,
        _ => None,
    };
    Ok(Leased { rows, visible_at, next_visible_in })
}

/// Returns messages whose leases have ended to those that can be received.
fn return_ended(batch: &mut Batch<'_>, name: &QueueName, queue: i64) -> rusqlite::Result<()> {
    let now = batch.now();
    if batch.due(name)? > now {
        return Ok(());
    }
    let rows = row_id::all(queue);
    let ended = batch.statement(ENDED)?.query_map(params![rows.start, rows.end, now], |row| row.get(0))?;
    for id in ended.collect::<rusqlite::Result<Vec<i64>>>()? {
        batch.statement(RETURN)?.execute([id])?;
        batch.statement(END)?.execute([id])?;
        batch.note_change();
    }
    let first: Option<i64> =
        batch.statement(FIRST_END)?.query_row([rows.start, rows.end], |row| row.get(0))?;
    batch.set_due(name, first.unwrap_or(i64::MAX))
}

/// Returns the first messages that can be received, some of them perhaps expired.
fn candidates(
    batch: &mut Batch<'_>,
    name: &QueueName,
    queue: i64,
    limit: usize,
) -> rusqlite::Result<Vec<Found>> {
    let (now, most) = (batch.now(), i64::try_from(limit).unwrap_or(i64::MAX));
    let due = batch.statement(VISIBLE)?.query_map(params![queue, now, most], Found::read)?;
    let due = due.collect::<rusqlite::Result<Vec<_>>>()?;
    let rows = row_id::from_head(queue, batch.head(name)?);
    let (found, head) =
        merge(due, batch.statement(BY_NUMBER)?.query([rows.start, rows.end])?, limit, |_| true)?;
    if let Some(head) = head {
        batch.set_head(name, head)?;
    }
    Ok(found)
}

/// Returns the time until the next hidden message becomes visible.
fn next_visible_in(
    batch: &mut Batch<'_>,
    name: &QueueName,
    queue: i64,
) -> rusqlite::Result<Option<Duration>> {
    let (now, rows) = (batch.now(), row_id::all(queue));
    let next = batch.statement(NEXT)?.query_row([queue, now], |row| row.get(0)).optional()?;
    let mut after = (i64::MIN, 0);
    while batch.due(name)? < next.unwrap_or(i64::MAX) {
        let values = params![rows.start, rows.end, after.0, after.1];
        let end = batch.statement(NEXT_END)?.query_row(values, |row| Ok((row.get(0)?, row.get(1)?)));
        let Some((until, id)) = end.optional()?.filter(|(until, _)| *until < next.unwrap_or(i64::MAX)) else {
            break;
        };
        let lives = batch.statement(LIVES)?.query_row([id, until], |row| row.get(0)).optional()?;
        if lives.unwrap_or(false) {
            return Ok(Some(to_duration(until - now)));
        }
        after = (until, id);
    }
    Ok(next.map(|at: i64| to_duration(at - now)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::StoreClock;
    use crate::known::Known;
    use crate::tests::{begin, file};
    use jobqueue_storage::clock::ManualClock;
    use jobqueue_storage::runtime::Runtime;
    use rusqlite::{Connection, StatementStatus};
    use std::sync::Arc;

    const NOW: i64 = 1_500_000;

    /// Returns a queue with this number of messages, an eighth each delayed, visible by their time, and leased, the others to be received by their
    /// numbers, surrounded by messages of another queue. Its head is behind the leased ones.
    fn filled(messages: u32) -> Connection {
        let connection = file(&[]);
        let rows = |queue| {
            format!(
                "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {messages})
                 INSERT INTO jobqueue_message
                 SELECT ({queue} << 42) + ((n % 8 > 1) << 41) + n, {queue}, n, CASE n % 8 WHEN 0 THEN 2000000 + n WHEN 1 THEN n END,
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
        for sql in [VISIBLE, BY_NUMBER, TAKE] {
            let statement = batch.statement(sql).unwrap();
            steps += statement.get_status(StatementStatus::VmStep);
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
        for sql in [VISIBLE, NEXT, TAKE, RETURN, ENDED, END, FIRST_END, LIVES, BY_NUMBER] {
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
                let message = Arc::new(jobqueue_storage::PutMessage::new("x"));
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
}
