//! New rows of messages, and their insertion with as few statements as possible.

use std::ops::Deref;
use std::sync::LazyLock;

use rusqlite::{ToSql, params};

use super::clock::to_instant;
use super::receipt::{Receipt, message_ref};
use super::statements::Statements;
use jobqueue_storage::{PutMessage, PutOutcome};

const INSERT: &str = "INSERT INTO jobqueue_message
    (queue, inserted_at, dequeue_count, leased, waiting, id, visible_at, expires_at, receipt, text)
    VALUES (?1, ?2, 0, 0, 0, ?3, ?4, ?5, ?6, ?7)";

/// The last turn of a group: that of the last waiting message, or else that of the only one.
pub(super) const LAST_TURN: &str = "SELECT coalesce(
    (SELECT max(turn) FROM jobqueue_message WHERE queue = ?1 AND waiting = 1 AND group_name = ?2),
    (SELECT max(turn) FROM jobqueue_message WHERE queue = ?1 AND waiting = 0 AND group_name = ?2))";

const INSERT_IN_GROUP: &str =
    "INSERT INTO jobqueue_message (queue, inserted_at, dequeue_count, leased, waiting, id, visible_at,
    expires_at, receipt, group_name, turn, text) VALUES (?1, ?2, 0, 0, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";

/// The number of parameters of a row besides the queue and the time, which all rows share.
const OWN: usize = 5;

/// A statement for many rows at once: starting and ending one is a third of the cost of a row. For still more rows,
/// preparing the statement costs more than it saves.
static INSERT_16: LazyLock<String> = LazyLock::new(|| insert_many(16));
static INSERT_4: LazyLock<String> = LazyLock::new(|| insert_many(4));

fn insert_many(rows: usize) -> String {
    let row = |row: usize| {
        let own: Vec<String> = (0..OWN).map(|own| format!("?{}", 3 + row * OWN + own)).collect();
        format!("(?1, ?2, 0, 0, 0, {})", own.join(", "))
    };
    let rows: Vec<String> = (0..rows).map(row).collect();
    let (head, _) = INSERT.split_once("(?1").unwrap_or_default();
    format!("{head}{}", rows.join(", "))
}

/// A new row. The caller makes the answer from it, so that the single writing thread need not.
#[derive(Clone, Copy)]
pub(super) struct NewRow {
    pub(super) now: i64,
    pub(super) id: i64,
    pub(super) visible_at: i64,
    pub(super) expires_at: Option<i64>,
    pub(super) receipt: Receipt,
}

impl NewRow {
    pub(super) fn outcome(self) -> PutOutcome {
        let message = message_ref(self.id, &self.receipt);
        PutOutcome::new(message, to_instant(self.now), to_instant(self.visible_at))
            .with_expires(self.expires_at.map(to_instant))
    }
}

/// A message that a transaction has not inserted yet: one statement inserts it together with the next ones.
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
    let mut left = messages;
    for (count, sql) in [(16, INSERT_16.as_str()), (4, INSERT_4.as_str()), (1, INSERT)] {
        while let Some((group, rest)) = left.split_at_checked(count) {
            let mut values: Vec<&dyn ToSql> = Vec::with_capacity(2 + count * OWN);
            values.extend([&group[0].queue as &dyn ToSql, &group[0].row.now]);
            for Pending { row, message, .. } in group {
                let own: [&dyn ToSql; OWN] =
                    [&row.id, &row.visible_at, &row.expires_at, &row.receipt, &message.text];
                values.extend(own);
            }
            statements.get(sql)?.execute(&*values)?;
            left = rest;
        }
    }
    Ok(())
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
