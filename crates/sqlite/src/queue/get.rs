//! Leases messages.

use std::cmp::Reverse;
use std::sync::LazyLock;
use std::time::Duration;

use rusqlite::{OptionalExtension, ToSql, params};

use super::ready::{BY_NUMBER, FoundMessage, LEASED, Source, merge};
use crate::batch::{Batch, refuse};
use crate::clock::{LEASED_TIME, after, to_duration, to_instant};
use crate::error::Applied;
use crate::groups::Removed;
use crate::receipt::{Receipt, message_ref};
use crate::row_id;
use crate::space::Reserve;
use crate::statements::Insert;
use jobqueue_storage::{GetMessages, LeasedMessage, Operation, QueueName, Received, StoreErrorKind};

/// The maximum number of expired messages that a get removes before it returns with the messages that it has.
const MAX_EXPIRED: usize = 1_000;

const VISIBLE: &str =
    "SELECT id, text, dequeue_count, inserted_at, expires_at, visible_at FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 0 AND visible_at <= ?2 ORDER BY visible_at, id & 2199023255551 LIMIT ?3";

static INSERT_LEASE: LazyLock<Insert> =
    LazyLock::new(|| Insert::new("jobqueue_lease (until, id, dequeue_count, receipt)", "(?1, {})", 1, 3));

/// Takes a message of the index of times by moving it after all times. The row keeps its length, so SQLite
/// writes it in place. A shorter row with a long text would need pages before it frees others, and a full
/// file has none.
const TAKE: &str = "UPDATE jobqueue_message SET visible_at = ?2 WHERE id = ?1";

/// The leases that have ended.
const ENDED_LEASES: &str = "SELECT until, id FROM jobqueue_lease WHERE id >= ?1 AND id < ?2 AND until <= ?3";

/// The message of an ended lease. Its row is not written, so that it can be leased again even if the file is
/// full.
const MESSAGE_OF_ENDED_LEASE: &str =
    "SELECT m.id, m.text, l.dequeue_count, m.inserted_at, m.expires_at, l.until
    FROM jobqueue_lease l CROSS JOIN jobqueue_message m ON m.id = l.id WHERE l.id = ?1 AND l.until <= ?2";

const DELETE_LEASE: &str = "DELETE FROM jobqueue_lease WHERE id = ?1";

/// The earliest end of a lease in force.
const FIRST_LEASE_END: &str =
    "SELECT min(until) FROM jobqueue_lease WHERE id >= ?1 AND id < ?2 AND until > ?3";

const NEXT_VISIBLE: &str = "SELECT visible_at FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 0 AND visible_at > ?2 AND visible_at < ?3
        AND (expires_at IS NULL OR expires_at > visible_at)
    ORDER BY visible_at LIMIT 1";

/// The messages leased by a get. The caller builds the answer from them, which relieves the single writing
/// thread.
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
    row: FoundMessage,
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
            take(batch, name, &row)?;
            if row.is_expired(batch.now()) {
                exhausted &= Removed::remove(batch, Some(row.id))?.advance(batch, queue)?.is_none();
                expired += 1;
                continue;
            }
            let (dequeue_count, receipt) =
                (row.dequeue_count.saturating_add(1), Receipt::random(batch.runtime()));
            rows.push(LeasedRow { row, dequeue_count, receipt });
        }
        // Inserted before the next round, which would otherwise find these messages by their numbers again.
        batch.statements().insert(&INSERT_LEASE, &[&visible_at], &rows[before..], |one, values| {
            values.extend([&one.row.id as &dyn ToSql, &one.dequeue_count, &one.receipt]);
        })?;
        if exhausted || rows.len() == wanted || expired >= MAX_EXPIRED {
            break;
        }
    }
    if rows.is_empty() {
        if batch.saves_pages() {
            return Err(refuse(StoreErrorKind::Full, Operation::Get, name));
        }
        batch.note_unmet();
    } else {
        batch.note_lease(name, visible_at)?;
    }
    let next_visible_in = match rows.len() {
        leased if leased < wanted && (expired >= MAX_EXPIRED || batch.saves_pages()) => Some(Duration::ZERO),
        leased if leased < wanted => next_visible_in(batch, name, queue)?,
        _ => None,
    };
    Ok(Leased { rows, visible_at, next_visible_in })
}

/// Removes a message from the order in which it was found.
fn take(batch: &mut Batch<'_>, name: &QueueName, row: &FoundMessage) -> Applied<()> {
    match row.source {
        Source::Number => leave(batch),
        Source::Time => {
            leave(batch);
            batch.statement(TAKE)?.execute([row.id, LEASED_TIME])?;
        }
        Source::Lease => {
            batch.statement(DELETE_LEASE)?.execute([row.id])?;
            batch.end_lease(name, row.id)?;
        }
    }
    Ok(())
}

/// Leaves pages for messages that are leased again, unless the file is full.
fn leave(batch: &mut Batch<'_>) {
    if !batch.saves_pages() {
        batch.leave(Reserve::ForOldLeases);
    }
}

/// Returns the first messages that can be received; some may be expired.
fn candidates(
    batch: &mut Batch<'_>,
    name: &QueueName,
    queue: i64,
    limit: usize,
) -> rusqlite::Result<Vec<FoundMessage>> {
    if batch.saves_pages() {
        // Each of these messages has a lease already, whose row is reused.
        let has_ended = batch.due(name)? <= batch.now();
        let ended = if has_ended { ended(batch, name, queue, limit)? } else { Vec::new() };
        if !ended.is_empty() || batch.due(name)? < i64::MAX {
            return Ok(ended);
        }
        // No lease is left that could end.
    }
    let (now, most) = (batch.now(), i64::try_from(limit).unwrap_or(i64::MAX));
    let due = batch.statement(VISIBLE)?.query_map(params![queue, now, most], FoundMessage::by_time)?;
    let mut due = due.collect::<rusqlite::Result<Vec<_>>>()?;
    if batch.due(name)? <= now {
        due.extend(ended(batch, name, queue, limit)?);
        due.sort_unstable_by_key(FoundMessage::place);
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

/// Returns the first messages whose leases have ended. If there are none, records when the first lease ends.
///
/// All leases of the queue are read only if the known ended leases are not enough, and others may have ended
/// since.
fn ended(
    batch: &mut Batch<'_>,
    name: &QueueName,
    queue: i64,
    most: usize,
) -> rusqlite::Result<Vec<FoundMessage>> {
    let (now, rows) = (batch.now(), row_id::all(queue));
    let (mut leases, mut others_due) = batch.take_ended(name)?;
    let mut ended = of_leases(batch, &leases, most)?;
    if ended.len() < most && others_due <= now {
        let found = batch.statement(ENDED_LEASES)?;
        let found = found.query_map([rows.start, rows.end, now], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut found = found.collect::<rusqlite::Result<Vec<(i64, i64)>>>()?;
        found.sort_unstable_by_key(|&(until, id)| Reverse((until, row_id::number(id))));
        leases = found.into_iter().map(|(_, id)| id).collect();
        ended = of_leases(batch, &leases, most)?;
        others_due = first_end(batch, queue)?;
    }
    batch.set_ended(name, leases, others_due)?;
    if ended.is_empty() {
        batch.set_due(name, others_due)?;
    }
    Ok(ended)
}

/// Returns the existing messages of up to `most` ended leases, starting from the last of `leases`.
fn of_leases(batch: &mut Batch<'_>, leases: &[i64], most: usize) -> rusqlite::Result<Vec<FoundMessage>> {
    let now = batch.now();
    let statement = batch.statement(MESSAGE_OF_ENDED_LEASE)?;
    let read = |id: &i64| {
        statement.query_row([*id, now], |row| FoundMessage::read(row, Source::Lease)).optional().transpose()
    };
    leases.iter().rev().filter_map(read).take(most).collect()
}

/// Returns the time at which the first lease in force ends.
fn first_end(batch: &mut Batch<'_>, queue: i64) -> rusqlite::Result<i64> {
    let (now, rows) = (batch.now(), row_id::all(queue));
    let first = batch.statement(FIRST_LEASE_END)?;
    let first: Option<i64> = first.query_row([rows.start, rows.end, now], |row| row.get(0))?;
    Ok(first.unwrap_or(i64::MAX))
}

/// Returns a time before which no hidden message becomes visible, after a get that took all visible messages.
/// The time may be too early, if it belongs to a lease that was renewed or ended since the leases were last
/// read: reading all leases each time would take too long.
fn next_visible_in(
    batch: &mut Batch<'_>,
    name: &QueueName,
    queue: i64,
) -> rusqlite::Result<Option<Duration>> {
    let now = batch.now();
    let next: Option<i64> =
        batch.statement(NEXT_VISIBLE)?.query_row([queue, now, LEASED_TIME], |row| row.get(0)).optional()?;
    if batch.due(name)? <= now {
        let first = first_end(batch, queue)?;
        batch.set_due(name, first)?;
    }
    let next = next.unwrap_or(i64::MAX).min(batch.due(name)?);
    Ok((next < i64::MAX).then(|| to_duration(next - now)))
}

#[cfg(test)]
mod tests;
