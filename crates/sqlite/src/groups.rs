//! The order of groups: only the first message of a group can be received.
//!
//! The first message of a group is the message with the lowest turn. All others are `waiting`, and the
//! indexes of visible messages exclude them. The operation that removes the first message makes the next one
//! the first, in the same transaction. Time plays no part: a first message that is leased, delayed or put
//! back blocks its group until it is removed.

use rusqlite::{OptionalExtension, Row, params};

use super::batch::Batch;

const ADVANCE: &str = "UPDATE jobqueue_message SET waiting = 0 WHERE id = (SELECT id FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 1 AND group_name = ?2 ORDER BY turn LIMIT 1) RETURNING visible_at";

const REMOVE: &str = "DELETE FROM jobqueue_message WHERE id = ?1 RETURNING expires_at, waiting, group_name";

/// A removed message, as far as it matters to its group.
pub(super) struct Removed {
    /// The group, if the message was its first.
    headed: Option<String>,
    expires_at: Option<i64>,
}

impl Removed {
    /// Removes an existing message.
    pub(super) fn remove(batch: &mut Batch<'_>, id: Option<i64>) -> rusqlite::Result<Self> {
        batch.note_change();
        batch.statement(REMOVE)?.query_row([id], Self::of)
    }

    pub(super) fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        let waiting: bool = row.get("waiting")?;
        let group: Option<String> = row.get("group_name")?;
        Ok(Self { headed: group.filter(|_| !waiting), expires_at: row.get("expires_at")? })
    }

    pub(super) fn is_expired(&self, now: i64) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }

    /// Makes the next message of the group the first. Returns the time at which it becomes visible; `None` if
    /// there is no next message.
    pub(super) fn advance(self, batch: &mut Batch<'_>, queue: i64) -> rusqlite::Result<Option<i64>> {
        let Some(group) = self.headed else { return Ok(None) };
        batch.statement(ADVANCE)?.query_row(params![queue, group], |row| row.get(0)).optional()
    }
}

#[cfg(test)]
mod tests {
    use super::ADVANCE;
    use crate::new_row::LAST_TURN;

    /// The cost of a message of a group does not grow with the number of waiting messages.
    #[test]
    fn turns_are_found_in_the_index() {
        for sql in [LAST_TURN, ADVANCE] {
            let plan = crate::plan_tests::of(sql);
            assert!(
                plan.contains("INDEX jobqueue_message_group (queue=? AND waiting=? AND group_name=?)"),
                "{plan}"
            );
            assert!(!plan.contains("SCAN jobqueue_message") && !plan.contains("TEMP B-TREE"), "{plan}");
        }
    }
}
