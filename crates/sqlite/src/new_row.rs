//! New rows of messages, and their insertion with as few statements as possible.

use std::ops::Deref;
use std::sync::LazyLock;

use rusqlite::{ToSql, params};

use super::clock::to_instant;
use super::receipt::{Receipt, message_ref};
use super::statements::{Insert, Statements};
use jobqueue_storage::{PutMessage, PutOutcome};

static INSERT: LazyLock<Insert> = LazyLock::new(|| {
    let columns =
        "(queue, inserted_at, dequeue_count, leased, waiting, id, visible_at, expires_at, receipt, text)";
    Insert::new(&format!("jobqueue_message {columns}"), "(?1, ?2, 0, 0, 0, {})", 2, 5)
});

/// The last turn of a group: the turn of its last waiting message, or else of its only message.
pub(super) const LAST_TURN: &str = "SELECT coalesce(
    (SELECT max(turn) FROM jobqueue_message WHERE queue = ?1 AND waiting = 1 AND group_name = ?2),
    (SELECT max(turn) FROM jobqueue_message WHERE queue = ?1 AND waiting = 0 AND group_name = ?2))";

const INSERT_IN_GROUP: &str =
    "INSERT INTO jobqueue_message (queue, inserted_at, dequeue_count, leased, waiting, id, visible_at,
    expires_at, receipt, group_name, turn, text) VALUES (?1, ?2, 0, 0, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";

/// A new row. The caller builds the answer from it, which relieves the single writing thread.
#[derive(Clone, Copy)]
pub(super) struct NewRow {
    pub(super) now: i64,
    pub(super) id: i64,
    /// The time at which the message becomes visible; `None` if it can be received at once, by its number.
    pub(super) visible_at: Option<i64>,
    pub(super) expires_at: Option<i64>,
    pub(super) receipt: Receipt,
}

impl NewRow {
    pub(super) fn visible_at(&self) -> i64 {
        self.visible_at.unwrap_or(self.now)
    }

    pub(super) fn outcome(self) -> PutOutcome {
        let message = message_ref(self.id, &self.receipt);
        PutOutcome::new(message, to_instant(self.now), to_instant(self.visible_at()))
            .with_expires(self.expires_at.map(to_instant))
    }
}

/// A message that a transaction has not inserted yet, so that one statement can insert it together with the
/// next messages.
pub(super) struct Pending<M> {
    pub(super) queue: i64,
    pub(super) row: NewRow,
    pub(super) message: M,
}

/// Inserts messages that were put at the same time.
pub(super) fn insert<M: Deref<Target = PutMessage>>(
    statements: &mut Statements<'_>,
    messages: &[Pending<M>],
) -> rusqlite::Result<()> {
    let is_free = |one: &Pending<M>| one.message.group.is_none();
    let chunks = messages.chunk_by(|one, next| one.queue == next.queue && is_free(one) && is_free(next));
    for chunk in chunks {
        match chunk {
            [one] if !is_free(one) => insert_in_group(statements, one)?,
            free => insert_free(statements, free)?,
        }
    }
    Ok(())
}

/// Inserts messages of one queue that belong to no group.
fn insert_free<M: Deref<Target = PutMessage>>(
    statements: &mut Statements<'_>,
    messages: &[Pending<M>],
) -> rusqlite::Result<()> {
    let Some(first) = messages.first() else { return Ok(()) };
    statements.insert(
        &INSERT,
        &[&first.queue, &first.row.now],
        messages,
        |Pending { row, message, .. }, values| {
            values.extend([
                &row.id as &dyn ToSql,
                &row.visible_at,
                &row.expires_at,
                &row.receipt,
                &message.text,
            ]);
        },
    )
}

fn insert_in_group<M: Deref<Target = PutMessage>>(
    statements: &mut Statements<'_>,
    Pending { queue, row, message }: &Pending<M>,
) -> rusqlite::Result<()> {
    let group = &message.group;
    let last: Option<i64> = statements.get(LAST_TURN)?.query_row(params![queue, group], |row| row.get(0))?;
    let (waiting, turn) = (last.is_some(), last.map_or(0, |last| last + 1));
    let NewRow { now, id, visible_at, expires_at, receipt } = row;
    let values = params![queue, now, waiting, id, visible_at, expires_at, receipt, group, turn, message.text];
    statements.get(INSERT_IN_GROUP)?.execute(values)?;
    Ok(())
}
