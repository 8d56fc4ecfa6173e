//! Adding messages.

use std::sync::LazyLock;

use rusqlite::{ToSql, params};

use crate::sqlite::batch::Batch;
use crate::sqlite::clock::{after, to_instant};
use crate::sqlite::error::Applied;
use crate::sqlite::receipt::{Receipt, message_ref};
use crate::storage::{Operation, PutMessage, PutOutcome};
use crate::vocabulary::name::QueueName;

const INSERT: &str = "INSERT INTO jobqueue_message
    (queue, inserted_at, dequeue_count, leased, id, visible_at, expires_at, receipt, text)
    VALUES (?1, ?2, 0, 0, ?3, ?4, ?5, ?6, ?7)";

/// How many rows one statement inserts when there are many: starting and ending a statement is a third of what a row costs.
const ROWS: usize = 16;
/// Parameters of a row besides the queue and the time, which all rows share.
const OWN: usize = 5;

static INSERT_MANY: LazyLock<String> = LazyLock::new(|| {
    let row = |row: usize| {
        let own: Vec<String> = (0..OWN).map(|own| format!("?{}", 3 + row * OWN + own)).collect();
        format!("(?1, ?2, 0, 0, {})", own.join(", "))
    };
    let rows: Vec<String> = (0..ROWS).map(row).collect();
    let (head, _) = INSERT.split_once("(?1").unwrap_or_default();
    format!("{head}{}", rows.join(", "))
});

/// A row to be inserted.
struct NewRow {
    id: i64,
    visible_at: i64,
    expires_at: Option<i64>,
    receipt: Receipt,
}

impl NewRow {
    fn draw(batch: &mut Batch<'_>, message: &PutMessage) -> Applied<Self> {
        let now = batch.now();
        Ok(Self {
            id: batch.next()?,
            visible_at: after(now, message.visibility_delay),
            expires_at: message.ttl.map(|ttl| after(now, ttl)),
            receipt: Receipt::random(),
        })
    }

    fn outcome(&self, now: i64) -> PutOutcome {
        PutOutcome {
            message: message_ref(self.id, &self.receipt),
            inserted: to_instant(now),
            expires: self.expires_at.map(to_instant),
            next_visible: to_instant(self.visible_at),
        }
    }
}

/// Adds a message whose arguments were checked.
pub(in crate::sqlite) fn put(
    batch: &mut Batch<'_>,
    name: &QueueName,
    message: &PutMessage,
) -> Applied<PutOutcome> {
    let queue = batch.queue(Operation::Put, name)?;
    let now = batch.now();
    let row = NewRow::draw(batch, message)?;
    let own = params![queue, now, row.id, row.visible_at, row.expires_at, row.receipt.bytes(), message.text];
    batch.statement(INSERT)?.execute(own)?;
    batch.count(name, 1)?;
    batch.arrive(name, 1)?;
    Ok(row.outcome(now))
}

/// Adds many, whose arguments were checked; all or none.
pub(super) fn put_all<'m>(
    batch: &mut Batch<'_>,
    name: &QueueName,
    messages: impl Iterator<Item = &'m PutMessage>,
) -> Applied<Vec<PutOutcome>> {
    let queue = batch.queue(Operation::PutAll, name)?;
    let now = batch.now();
    let messages: Vec<&PutMessage> = messages.collect();
    let mut outcomes = Vec::with_capacity(messages.len());
    let (groups, rest) = messages.as_chunks::<ROWS>();
    for group in groups {
        let rows: Vec<NewRow> =
            group.iter().map(|message| NewRow::draw(batch, message)).collect::<Applied<_>>()?;
        let receipts = rows.iter().map(|row| row.receipt.bytes()).collect::<Vec<_>>();
        let mut own: Vec<&dyn ToSql> = Vec::with_capacity(2 + ROWS * OWN);
        own.extend([&queue as &dyn ToSql, &now]);
        for ((row, receipt), message) in rows.iter().zip(&receipts).zip(group) {
            own.extend([&row.id as &dyn ToSql, &row.visible_at, &row.expires_at, receipt, &message.text]);
        }
        batch.statement(&INSERT_MANY)?.execute(&*own)?;
        outcomes.extend(rows.iter().map(|row| row.outcome(now)));
    }
    let grouped = (groups.len() * ROWS) as i64;
    batch.count(name, grouped)?;
    batch.arrive(name, grouped)?;
    for message in rest {
        outcomes.push(put(batch, name, message)?);
    }
    Ok(outcomes)
}
