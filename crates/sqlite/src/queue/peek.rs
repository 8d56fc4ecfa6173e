//! Reads messages without leasing them.

use rusqlite::params;

use super::admin::find;
use super::get::text;
use crate::clock::to_instant;
use crate::error::Applied;
use crate::reader::View;
use crate::receipt::message_id;
use jobqueue_storage::QueueName;
use jobqueue_storage::{Operation, PeekedMessage};

pub(crate) const FIRST: &str = "SELECT id, text, dequeue_count, inserted_at, expires_at FROM jobqueue_message
    WHERE queue = ?1 AND visible_at <= ?2 AND (expires_at IS NULL OR expires_at > ?2)
    ORDER BY visible_at, id LIMIT ?3";

/// Returns the first `count` visible messages.
pub(super) fn peek(view: &View<'_>, name: &QueueName, count: u32) -> Applied<Vec<PeekedMessage>> {
    let queue = find(view, Operation::Peek, name)?.id;
    let mut statement = view.connection.prepare_cached(FIRST)?;
    let messages = statement.query_map(params![queue, view.now, count], |row| {
        let inserted = to_instant(row.get(3)?);
        let peeked = PeekedMessage::new(message_id(row.get(0)?), text(row, 1)?, row.get(2)?, inserted);
        Ok(peeked.with_expires(row.get::<_, Option<i64>>(4)?.map(to_instant)))
    })?;
    Ok(messages.collect::<rusqlite::Result<_>>()?)
}
