//! Reads messages without leasing them.

use rusqlite::{Row, params};

use super::admin::find;
use super::get::text;
use crate::clock::to_instant;
use crate::error::Applied;
use crate::reader::View;
use crate::receipt::message_id;
use jobqueue_storage::QueueName;
use jobqueue_storage::{Operation, PeekedMessage};

pub(crate) const FIRST: &str = "SELECT id, text, dequeue_count, inserted_at, expires_at FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 0 AND visible_at <= ?2 AND (expires_at IS NULL OR expires_at > ?2)
    ORDER BY visible_at, id LIMIT ?3";

pub(crate) const NEXT_OF_GROUPS: &str =
    "SELECT id, text, dequeue_count, inserted_at, expires_at FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 1 AND group_name IS NOT NULL AND (expires_at IS NULL OR expires_at > ?2)
    ORDER BY group_name, turn LIMIT ?3";

/// Returns the first `count` messages: those that are visible, then those that wait for another of their group.
pub(super) fn peek(view: &View<'_>, name: &QueueName, count: u32) -> Applied<Vec<PeekedMessage>> {
    let queue = find(view, Operation::Peek, name)?.id;
    let mut messages = Vec::new();
    for sql in [FIRST, NEXT_OF_GROUPS] {
        let left = i64::from(count).saturating_sub(messages.len() as i64);
        let mut statement = view.connection.prepare_cached(sql)?;
        let found = statement.query_map(params![queue, view.now, left], peeked)?;
        messages.extend(found.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    Ok(messages)
}

pub(super) fn peeked(row: &Row<'_>) -> rusqlite::Result<PeekedMessage> {
    let inserted = to_instant(row.get(3)?);
    let peeked = PeekedMessage::new(message_id(row.get(0)?), text(row, 1)?, row.get(2)?, inserted);
    Ok(peeked.with_expires(row.get::<_, Option<i64>>(4)?.map(to_instant)))
}
