//! The order of groups: of the messages of a group only the first can be received.
//!
//! The first message of a group is the one with the lowest turn; all others are `waiting`, and the indexes of visible
//! messages have no waiting ones. The operation that removes the first makes the next one the first, in the same transaction. No time is
//! part of this: a first message that is leased, delayed or put back holds up its group because it is there.

use rusqlite::{OptionalExtension, Row, params};

use super::batch::Batch;

const ADVANCE: &str = "UPDATE jobqueue_message SET waiting = 0 WHERE id = (SELECT id FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 1 AND group_name = ?2 ORDER BY turn LIMIT 1) RETURNING visible_at";

const REMOVE: &str = "DELETE FROM jobqueue_message WHERE id = ?1 RETURNING expires_at, waiting, group_name";

/// A removed message: what the removal means to its group.
pub(super) struct Removed {
    /// The group, if the message was its first.
    headed: Option<String>,
    expires_at: Option<i64>,
}

impl Removed {
    /// Removes a message that exists.
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

    /// Makes the next message of the group its first. Returns the time at which it is visible; `None` if there is none.
    pub(super) fn advance(self, batch: &mut Batch<'_>, queue: i64) -> rusqlite::Result<Option<i64>> {
        let Some(group) = self.headed else { return Ok(None) };
        batch.statement(ADVANCE)?.query_row(params![queue, group], |row| row.get(0)).optional()
    }
}

#[cfg(test)]
mod tests {
    use super::ADVANCE;
    use crate::new_row::LAST_TURN;

    /// The cost of a message of a group does not grow with the number of messages that wait.
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
