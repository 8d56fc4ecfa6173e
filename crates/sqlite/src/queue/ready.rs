//! The messages that can be received, in the order in which they became visible.
//!
//! Most messages are received by their numbers, from the head of the queue on. They are merged with the
//! messages in the index of times, which were delayed or put back, and with the messages whose leases have
//! ended.

use rusqlite::types::ValueRef;
use rusqlite::{Row, Rows};

use crate::row_id;

/// The rows from the head on. Rows without a time of visibility can be received by their numbers, unless they
/// are leased.
pub(crate) const BY_NUMBER: &str = "SELECT id, text, dequeue_count, inserted_at, expires_at, visible_at
    FROM jobqueue_message WHERE id >= ?1 AND id < ?2 ORDER BY id";

/// The leased rows from the head on. They are few, because the head moves past messages that were received by
/// their numbers.
pub(crate) const LEASED: &str = "SELECT id FROM jobqueue_lease WHERE id >= ?1 AND id < ?2 ORDER BY id";

/// A message that can be received or shown.
pub(super) struct FoundMessage {
    pub(super) id: i64,
    pub(super) text: Result<String, String>,
    pub(super) dequeue_count: u32,
    pub(super) inserted_at: i64,
    pub(super) expires_at: Option<i64>,
    pub(super) visible_at: i64,
    pub(super) source: Source,
}

/// The place where a message was found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Among the messages that are received by their numbers.
    Number,
    /// In the index of times.
    Time,
    /// By its lease.
    Lease,
}

impl FoundMessage {
    /// Reads a row of the index of times.
    pub(super) fn by_time(row: &Row<'_>) -> rusqlite::Result<Self> {
        Self::read(row, Source::Time)
    }

    pub(super) fn read(row: &Row<'_>, source: Source) -> rusqlite::Result<Self> {
        let inserted_at = row.get(3)?;
        let visible_at = if source == Source::Number { inserted_at } else { row.get(5)? };
        Ok(Self {
            id: row.get(0)?,
            text: text(row, 1)?,
            dequeue_count: row.get(2)?,
            inserted_at,
            expires_at: row.get(4)?,
            visible_at,
            source,
        })
    }

    /// Returns the message's place in the order of the index of times.
    pub(super) fn place(&self) -> (i64, i64) {
        (self.visible_at, row_id::number(self.id))
    }

    pub(super) fn is_expired(&self, now: i64) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }
}

/// Reads a text. A text of another program that is not UTF-8 is reported, and does not fail the other
/// messages.
fn text(row: &Row<'_>, column: usize) -> rusqlite::Result<Result<String, String>> {
    let value = row.get_ref(column)?;
    Ok(value.as_str().map(str::to_owned).map_err(|error| error.to_string()))
}

/// Merges up to `limit` messages, in the order of their times: `due`, and rows of [`BY_NUMBER`] that are not
/// in `leased` and that `is_wanted` selects. Also returns the new head if it has moved.
pub(super) fn merge(
    due: Vec<FoundMessage>,
    mut rows: Rows<'_>,
    leased: &[i64],
    limit: usize,
    is_wanted: impl Fn(&FoundMessage) -> bool,
) -> rusqlite::Result<(Vec<FoundMessage>, Option<i64>)> {
    let (mut merged, mut head) = (Vec::with_capacity(limit.min(32)), None);
    let mut due = due.into_iter().peekable();
    let mut next = None;
    while merged.len() < limit {
        while next.is_none()
            && let Some(row) = rows.next()?
        {
            if row.get_ref(5)? == ValueRef::Null && leased.binary_search(&row.get(0)?).is_err() {
                next = Some(FoundMessage::read(row, Source::Number)?).filter(&is_wanted);
            }
            if next.is_none() {
                head = Some(row.get::<_, i64>(0)? + 1);
            }
        }
        let earlier = due.next_if(|due| next.as_ref().is_none_or(|next| due.place() < next.place()));
        let Some(first) = earlier.or_else(|| next.take()) else { break };
        if first.source == Source::Number {
            head = Some(first.id + 1);
        }
        merged.push(first);
    }
    Ok((merged, head))
}
