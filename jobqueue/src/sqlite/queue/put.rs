//! Adding a message.

use rusqlite::params;

use crate::sqlite::batch::Batch;
use crate::sqlite::clock::{after, to_instant};
use crate::sqlite::error::Applied;
use crate::sqlite::receipt::{Receipt, message_ref};
use crate::storage::{Operation, PutMessage, PutOutcome};
use crate::vocabulary::name::QueueName;

const INSERT: &str = "INSERT INTO jobqueue_message
    (id, queue, visible_at, expires_at, inserted_at, dequeue_count, leased, receipt, text)
    VALUES (?1, ?2, ?3, ?4, ?5, 0, 0, ?6, ?7)";

/// Adds a message whose arguments were checked.
pub(in crate::sqlite) fn put(
    batch: &mut Batch<'_>,
    name: &QueueName,
    message: &PutMessage,
) -> Applied<PutOutcome> {
    let queue = batch.queue(Operation::Put, name)?;
    let id = batch.next()?;
    let now = batch.now();
    let visible_at = after(now, message.visibility_delay);
    let expires_at = message.ttl.map(|ttl| after(now, ttl));
    let receipt = Receipt::random();
    batch.statement(INSERT)?.execute(params![
        id,
        queue,
        visible_at,
        expires_at,
        now,
        receipt.bytes(),
        message.text
    ])?;
    batch.count(name, 1)?;
    batch.arrive(name)?;
    Ok(PutOutcome {
        message: message_ref(id, &receipt),
        inserted: to_instant(now),
        expires: expires_at.map(to_instant),
        next_visible: to_instant(visible_at),
    })
}
