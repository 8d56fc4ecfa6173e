//! Leases messages.

use std::time::Duration;

use rusqlite::{OptionalExtension, Row, params};

use crate::batch::Batch;
use crate::clock::{after, to_duration, to_instant};
use crate::error::Applied;
use crate::groups::Removed;
use crate::receipt::{Receipt, message_ref};
use jobqueue_storage::{GetMessages, LeasedMessage, Operation, QueueName, Received};

/// The number of expired messages that one get may meet and remove before it returns with the messages it has.
const MAX_EXPIRED: usize = 1_000;

const VISIBLE: &str = "SELECT id, text, dequeue_count, inserted_at, expires_at FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 0 AND visible_at <= ?2 ORDER BY visible_at, id LIMIT ?3";

const LEASE: &str = "UPDATE jobqueue_message
    SET visible_at = ?2, receipt = ?3, dequeue_count = dequeue_count + 1, leased = 1 WHERE id = ?1";

const REMOVE: &str = "DELETE FROM jobqueue_message WHERE id = ?1 RETURNING waiting, group_name";

const NEXT: &str = "SELECT visible_at FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 0 AND visible_at > ?2 AND (expires_at IS NULL OR expires_at > visible_at)
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
        let message = |LeasedRow { row, receipt }: LeasedRow| {
            let (message, count) = (message_ref(row.id, &receipt), row.dequeue_count.saturating_add(1));
            LeasedMessage::new(message, row.text, count, to_instant(row.inserted_at), next_visible)
                .with_expires(row.expires_at.map(to_instant))
        };
        let messages = self.rows.into_iter().map(message).collect();
        Received::new(messages).with_next_visible_in(self.next_visible_in)
    }
}

struct LeasedRow {
    row: Candidate,
    receipt: Receipt,
}

/// A visible message.
struct Candidate {
    id: i64,
    text: Result<String, String>,
    dequeue_count: u32,
    inserted_at: i64,
    expires_at: Option<i64>,
}

/// Leases up to `count` messages in the order in which they became visible.
pub(super) fn get(batch: &mut Batch<'_>, name: &QueueName, options: GetMessages) -> Applied<Leased> {
    let queue = batch.queue(Operation::Get, name)?;
    let wanted = options.count as usize;
    let visible_at = after(batch.now(), options.visibility);
    let mut rows = Vec::with_capacity(wanted.min(8));
    let mut expired = 0;
    loop {
        let found = candidates(batch, queue, wanted - rows.len())?;
        let mut exhausted = found.len() < wanted - rows.len();
        for candidate in found {
            if candidate.expires_at.is_some_and(|end| end <= batch.now()) {
                let removed = batch.statement(REMOVE)?.query_row([candidate.id], Removed::of)?;
                exhausted &= removed.advance(batch, queue)?.is_none();
                batch.note_change();
                expired += 1;
            } else {
                rows.push(lease(batch, candidate, visible_at)?);
            }
        }
        if exhausted || rows.len() == wanted {
            break;
        }
        if expired >= MAX_EXPIRED {
            return Ok(Leased { rows, visible_at, next_visible_in: Some(Duration::ZERO) });
        }
    }
    if rows.is_empty() {
        batch.note_unmet();
    }
    let now = batch.now();
    let next: Option<i64> = if rows.len() < wanted {
        batch.statement(NEXT)?.query_row([queue, now], |row| row.get(0)).optional()?
    } else {
        None
    };
    Ok(Leased { rows, visible_at, next_visible_in: next.map(|at| to_duration(at - now)) })
}

fn candidates(batch: &mut Batch<'_>, queue: i64, limit: usize) -> rusqlite::Result<Vec<Candidate>> {
    let (now, limit) = (batch.now(), i64::try_from(limit).unwrap_or(i64::MAX));
    batch
        .statement(VISIBLE)?
        .query_map(params![queue, now, limit], |row| {
            Ok(Candidate {
                id: row.get(0)?,
                text: text(row, 1)?,
                dequeue_count: row.get(2)?,
                inserted_at: row.get(3)?,
                expires_at: row.get(4)?,
            })
        })?
        .collect()
}

/// Reads a text. One that another program wrote and that is not UTF-8 is reported, and does not fail the other
/// messages.
pub(super) fn text(row: &Row<'_>, column: usize) -> rusqlite::Result<Result<String, String>> {
    let value = row.get_ref(column)?;
    Ok(value.as_str().map(str::to_owned).map_err(|error| error.to_string()))
}

fn lease(batch: &mut Batch<'_>, row: Candidate, visible_at: i64) -> rusqlite::Result<LeasedRow> {
    let receipt = Receipt::random(batch.runtime());
    let changed = batch.statement(LEASE)?.execute(params![row.id, visible_at, receipt.bytes()])?;
    if changed != 1 {
        return Err(rusqlite::Error::StatementChangedRows(changed));
    }
    batch.note_change();
    Ok(LeasedRow { row, receipt })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::MIGRATIONS;
    use rusqlite::{Connection, StatementStatus};

    /// Returns a queue with this number of messages, a third each visible, leased and expired, surrounded by messages
    /// of another queue.
    fn filled(messages: u32) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(&MIGRATIONS.concat()).unwrap();
        connection
            .execute(
                "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?1)
                 INSERT INTO jobqueue_message
                 SELECT n, 1 + (n % 10 = 0), iif(n % 3 = 1, 2000000 + n, n), iif(n % 3 = 2, 3000000, NULL), 0, 0, 0,
                     0, NULL, NULL, randomblob(16), 'text'
                 FROM numbers",
                [messages],
            )
            .unwrap();
        connection
    }

    /// Returns the cost of one claim of 32 messages in steps of SQLite's virtual machine.
    fn steps_of_a_claim(connection: &Connection) -> i32 {
        let transaction = connection.unchecked_transaction().unwrap();
        let mut steps = 0;
        let mut count = |statement: &rusqlite::Statement<'_>| {
            steps += statement.get_status(StatementStatus::VmStep);
            assert_eq!(statement.get_status(StatementStatus::FullscanStep), 0);
            assert_eq!(statement.get_status(StatementStatus::Sort), 0);
        };
        let mut visible = transaction.prepare(VISIBLE).unwrap();
        let found = visible.query_map(params![1, 1_500_000, 32], |row| row.get::<_, i64>(0)).unwrap();
        let found: Vec<i64> = found.map(Result::unwrap).collect();
        assert_eq!(found.len(), 32);
        count(&visible);
        for id in found {
            let mut lease = transaction.prepare(LEASE).unwrap();
            assert_eq!(lease.execute(params![id, 4_000_000, [0_u8; 16]]).unwrap(), 1);
            count(&lease);
        }
        let mut next = transaction.prepare(NEXT).unwrap();
        next.query_row(params![1, 1_500_000], |row| row.get::<_, i64>(0)).unwrap();
        count(&next);
        drop((visible, next));
        transaction.rollback().unwrap();
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
        for sql in [VISIBLE, NEXT, LEASE, REMOVE] {
            let text = crate::plan_tests::of(sql);
            assert!(text.starts_with("SEARCH jobqueue_message USING"), "{sql}: {text}");
            assert!(!text.contains("TEMP B-TREE") && !text.contains("SCAN"), "{sql}: {text}");
        }
    }
}
