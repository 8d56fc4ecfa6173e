//! Adds messages.

use std::sync::{Arc, LazyLock};

use rusqlite::{ToSql, params};

use crate::name::QueueName;
use crate::sqlite::batch::Batch;
use crate::sqlite::clock::{after, to_instant};
use crate::sqlite::error::Applied;
use crate::sqlite::receipt::{Receipt, message_ref};
use crate::storage::{Operation, PutMessage, PutOutcome};

const INSERT: &str = "INSERT INTO jobqueue_message
    (queue, inserted_at, dequeue_count, leased, id, visible_at, expires_at, receipt, text)
    VALUES (?1, ?2, 0, 0, ?3, ?4, ?5, ?6, ?7)";

/// The number of parameters of a row besides the queue and the time, which all rows share.
const OWN: usize = 5;

/// A statement for many rows at once: starting and ending one is a third of the cost of a row. For still more rows,
/// preparing the statement costs more than it saves.
static INSERT_16: LazyLock<String> = LazyLock::new(|| insert_many(16));
static INSERT_4: LazyLock<String> = LazyLock::new(|| insert_many(4));

fn insert_many(rows: usize) -> String {
    let row = |row: usize| {
        let own: Vec<String> = (0..OWN).map(|own| format!("?{}", 3 + row * OWN + own)).collect();
        format!("(?1, ?2, 0, 0, {})", own.join(", "))
    };
    let rows: Vec<String> = (0..rows).map(row).collect();
    let (head, _) = INSERT.split_once("(?1").unwrap_or_default();
    format!("{head}{}", rows.join(", "))
}

/// A new row. The caller makes the answer from it, so that the single writing thread need not.
#[derive(Clone, Copy)]
pub(in crate::sqlite) struct NewRow {
    now: i64,
    id: i64,
    visible_at: i64,
    expires_at: Option<i64>,
    receipt: Receipt,
}

impl NewRow {
    fn allocate(batch: &mut Batch<'_>, message: &PutMessage) -> Applied<Self> {
        let now = batch.now();
        Ok(Self {
            now,
            id: batch.next()?,
            visible_at: after(now, message.visibility_delay),
            expires_at: message.ttl.map(|ttl| after(now, ttl)),
            receipt: Receipt::random(),
        })
    }

    pub(in crate::sqlite) fn outcome(self) -> PutOutcome {
        PutOutcome {
            message: message_ref(self.id, &self.receipt),
            inserted: to_instant(self.now),
            expires: self.expires_at.map(to_instant),
            next_visible: to_instant(self.visible_at),
        }
    }
}

/// A row that a transaction has not inserted yet: one statement inserts it together with those that are put next.
pub(in crate::sqlite) struct Pending {
    queue: i64,
    row: NewRow,
    message: Arc<PutMessage>,
}

/// Adds a message whose arguments were checked. It is inserted before any operation but another put reads the messages.
pub(in crate::sqlite) fn put(
    batch: &mut Batch<'_>,
    name: &QueueName,
    message: &Arc<PutMessage>,
) -> Applied<NewRow> {
    let queue = batch.queue(Operation::Put, name)?;
    let row = NewRow::allocate(batch, message)?;
    batch.put_off(Pending { queue, row, message: Arc::clone(message) });
    batch.arrive(name, row.visible_at)?;
    Ok(row)
}

/// Inserts the pending messages.
pub(in crate::sqlite) fn insert_pending(batch: &mut Batch<'_>, pending: &[Pending]) -> rusqlite::Result<()> {
    for of_queue in pending.chunk_by(|one, next| one.queue == next.queue) {
        let rows: Vec<_> = of_queue.iter().map(|one| (one.row, &one.message.text)).collect();
        insert(batch, of_queue[0].queue, &rows)?;
    }
    Ok(())
}

/// Adds many messages whose arguments were checked; all or none.
pub(super) fn put_all<'m>(
    batch: &mut Batch<'_>,
    name: &QueueName,
    messages: impl Iterator<Item = &'m PutMessage>,
) -> Applied<Vec<NewRow>> {
    let queue = batch.queue(Operation::PutAll, name)?;
    let row = |message: &'m PutMessage| Ok((NewRow::allocate(batch, message)?, &message.text));
    let rows: Vec<_> = messages.map(row).collect::<Applied<_>>()?;
    insert(batch, queue, &rows)?;
    if let Some(latest) = rows.iter().map(|(row, _)| row.visible_at).max() {
        batch.arrive(name, latest)?;
    }
    Ok(rows.into_iter().map(|(row, _)| row).collect())
}

/// Inserts rows of one transaction, which share one time.
fn insert(batch: &mut Batch<'_>, queue: i64, rows: &[(NewRow, &String)]) -> rusqlite::Result<()> {
    let now = batch.now();
    let mut left = rows;
    for (count, sql) in [(16, &INSERT_16), (4, &INSERT_4)] {
        while let Some((group, rest)) = left.split_at_checked(count) {
            let mut values: Vec<&dyn ToSql> = Vec::with_capacity(2 + count * OWN);
            values.extend([&queue as &dyn ToSql, &now]);
            for (row, text) in group {
                let own: [&dyn ToSql; OWN] = [&row.id, &row.visible_at, &row.expires_at, &row.receipt, text];
                values.extend(own);
            }
            batch.statement(sql)?.execute(&*values)?;
            left = rest;
        }
    }
    for (row, text) in left {
        let own = params![queue, now, row.id, row.visible_at, row.expires_at, row.receipt, text];
        batch.statement(INSERT)?.execute(own)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::sqlite::clock::StoreClock;
    use crate::sqlite::ids::Ids;
    use rusqlite::Connection;
    use std::time::Duration;

    #[test]
    fn deferred_put_keeps_its_queue_text_and_answer() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(include_str!("../schema/v1.sql")).unwrap();
        for name in ["first", "second"] {
            let sql = "INSERT INTO jobqueue_queue (name, metadata, delayed) VALUES (?1, '{}', 0)";
            connection.execute(sql, [name]).unwrap();
        }
        let queues: [QueueName; 2] = ["first".parse().unwrap(), "second".parse().unwrap()];
        let clock = StoreClock::new(Arc::new(ManualClock::new()));
        // Enough rows that every statement is needed, alternating between two queues by 27.
        let mut batch = Batch::begin(&connection, &clock, Ids::in_blocks()).unwrap();
        let mut answers = Vec::new();
        for number in 0..108 {
            let delay = Duration::from_secs(u64::from(number == 107));
            let message = Arc::new(PutMessage::new(number.to_string()).with_visibility_delay(delay));
            let row = put(&mut batch, &queues[number / 27 % 2], &message);
            answers.push(row.unwrap_or_else(|_| panic!("put {number}")));
        }
        let finished = batch.finish().unwrap().unwrap();
        assert_eq!(finished.arrived, queues);

        for (number, row) in answers.iter().enumerate() {
            let sql = "SELECT m.text, m.receipt, q.name FROM jobqueue_message m JOIN jobqueue_queue q ON q.id = m.queue
                WHERE m.id = ?1";
            let found: (String, Vec<u8>, String) = connection
                .query_row(sql, [row.id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
                .unwrap();
            let queue = queues[number / 27 % 2].as_str().to_owned();
            assert_eq!(found, (number.to_string(), row.receipt.bytes().to_vec(), queue));
        }
        let delayed = "SELECT group_concat(delayed) FROM jobqueue_queue";
        assert_eq!(connection.query_row(delayed, [], |row| row.get::<_, String>(0)).unwrap(), "0,1");
    }
}
