//! Shows messages without leasing them, and makes hidden ones visible.

use rusqlite::{Row, params};

use super::admin::find;
use super::get::text;
use crate::batch::{Batch, refuse};
use crate::clock::to_instant;
use crate::error::Applied;
use crate::reader::View;
use crate::receipt::{message_id, row_id};
use jobqueue_storage::{
    MessageId, MessagePage, MessageState, Operation, PeekedMessage, QueueName, StoreErrorKind,
};

pub(crate) const FIRST: &str = "SELECT id, text, dequeue_count, inserted_at, expires_at FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 0 AND visible_at <= ?2 AND (expires_at IS NULL OR expires_at > ?2)
    ORDER BY visible_at, id LIMIT ?3";

pub(crate) const NEXT_OF_GROUPS: &str =
    "SELECT id, text, dequeue_count, inserted_at, expires_at FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 1 AND group_name IS NOT NULL AND (expires_at IS NULL OR expires_at > ?2)
    ORDER BY group_name, turn LIMIT ?3";

/// The messages that can be received, or could, by the time at which they become visible.
pub(crate) const BY_TIME: &str =
    "SELECT id, text, dequeue_count, inserted_at, expires_at, visible_at, NULL, NULL FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 0 AND (visible_at, id) > (?3, ?4) AND visible_at <= ?5
        AND leased BETWEEN ?6 AND ?7 AND (expires_at IS NULL OR expires_at > ?2)
    ORDER BY visible_at, id LIMIT ?8";

/// The messages that wait for another of their group.
pub(crate) const BY_GROUP: &str =
    "SELECT id, text, dequeue_count, inserted_at, expires_at, visible_at, group_name, turn FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 1 AND group_name IS NOT NULL AND (group_name, turn) > (?3, ?4)
        AND (expires_at IS NULL OR expires_at > ?2)
    ORDER BY group_name, turn LIMIT ?5";

const MAKE_VISIBLE: &str = "UPDATE jobqueue_message SET visible_at = ?3
    WHERE id = ?1 AND queue = ?2 AND visible_at > ?3 AND leased <> 1 AND (expires_at IS NULL OR expires_at > ?3)
    RETURNING waiting";

/// The place of a message in the order of a list.
#[derive(Clone, Debug, PartialEq)]
enum Place {
    /// Its time of visibility and its row.
    Time(i64, i64),
    /// Its group and its turn.
    Turn(String, i64),
}

impl Place {
    const FIRST: Self = Self::Time(i64::MIN, 0);

    fn text(&self) -> String {
        match self {
            Self::Time(visible_at, id) => format!("t{visible_at}.{id}"),
            Self::Turn(group, turn) => format!("g{turn}.{group}"),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let by_time = text.starts_with('t');
        let (number, rest) = text.strip_prefix(['t', 'g'])?.split_once('.')?;
        let number = number.parse().ok()?;
        Some(if by_time {
            Self::Time(number, rest.parse().ok()?)
        } else {
            Self::Turn(rest.to_owned(), number)
        })
    }
}

struct Listed {
    message: PeekedMessage,
    visible_at: i64,
    place: Place,
}

/// Returns a page of the messages of one state. Those of a group that wait come after all that can be received.
pub(super) fn messages(
    view: &View<'_>,
    name: &QueueName,
    state: MessageState,
    from: Option<&str>,
    count: u32,
) -> Applied<MessagePage> {
    let queue = find(view, Operation::Peek, name)?.id;
    let count = count as usize;
    let unknown =
        || refuse(StoreErrorKind::InvalidInput, Operation::Peek, format!("{name}: no page ended there"));
    let from = from.map_or(Ok(Place::FIRST), |text| Place::parse(text).ok_or_else(unknown))?;
    let (mut found, group, turn) = match from {
        Place::Time(visible_at, id) => {
            (by_time(view, queue, state, (visible_at, id), count)?, String::new(), i64::MIN)
        }
        Place::Turn(group, turn) => (Vec::new(), group, turn),
    };
    if state == MessageState::Waiting && found.len() < count {
        let left = (count - found.len()) as i64;
        let mut statement = view.connection.prepare_cached(BY_GROUP)?;
        let rows = statement.query_map(params![queue, view.now, group, turn, left], listed)?;
        found.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    let next = found.last().filter(|_| found.len() == count).map(|last| last.place.text());
    let messages = found.into_iter().map(|one| (one.message, to_instant(one.visible_at))).collect();
    Ok(MessagePage::new(messages).with_next(next))
}

fn by_time(
    view: &View<'_>,
    queue: i64,
    state: MessageState,
    from: (i64, i64),
    count: usize,
) -> rusqlite::Result<Vec<Listed>> {
    let (after, until, least, most) = match state {
        MessageState::Waiting => (i64::MIN, view.now, 0, 2),
        MessageState::Delayed => (view.now, i64::MAX, 0, 0),
        MessageState::Running => (view.now, i64::MAX, 1, 1),
        MessageState::BackingOff => (view.now, i64::MAX, 2, 2),
    };
    let (visible_at, id) = from.max((after, i64::MAX));
    let values = params![queue, view.now, visible_at, id, until, least, most, count as i64];
    view.connection.prepare_cached(BY_TIME)?.query_map(values, listed)?.collect()
}

fn listed(row: &Row<'_>) -> rusqlite::Result<Listed> {
    let (id, visible_at): (i64, i64) = (row.get(0)?, row.get(5)?);
    let place = match row.get(6)? {
        None => Place::Time(visible_at, id),
        Some(group) => Place::Turn(group, row.get(7)?),
    };
    Ok(Listed { message: peeked(row)?, visible_at, place })
}

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

fn peeked(row: &Row<'_>) -> rusqlite::Result<PeekedMessage> {
    let inserted = to_instant(row.get(3)?);
    let peeked = PeekedMessage::new(message_id(row.get(0)?), text(row, 1)?, row.get(2)?, inserted);
    Ok(peeked.with_expires(row.get::<_, Option<i64>>(4)?.map(to_instant)))
}

/// Makes a message visible that is hidden and not leased.
pub(super) fn make_visible(batch: &mut Batch<'_>, name: &QueueName, message: &MessageId) -> Applied<bool> {
    let queue = batch.queue(Operation::Update, name)?;
    let now = batch.now();
    let Some(id) = row_id(message) else { return Ok(false) };
    let mut statement = batch.connection().prepare_cached(MAKE_VISIBLE)?;
    let mut rows = statement.query(params![id, queue, now])?;
    let Some(row) = rows.next()? else { return Ok(false) };
    let waits: bool = row.get(0)?;
    batch.note_change();
    if !waits {
        batch.arrive(name, now)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_were_written() {
        for place in
            [Place::FIRST, Place::Time(5, 7), Place::Turn("a.b".into(), 3), Place::Turn("".into(), 1)]
        {
            assert_eq!(Place::parse(&place.text()), Some(place));
        }
        for wrong in ["", "5.7", "t5", "tx.7", "t5.y", "gx.a"] {
            assert_eq!(Place::parse(wrong), None, "{wrong}");
        }
    }

    /// A page costs the same wherever it begins.
    #[test]
    fn pages_begin_in_an_index() {
        for (sql, index) in [
            (BY_TIME, "jobqueue_message_visible (queue=? AND visible_at>"),
            (BY_GROUP, "jobqueue_message_group (queue=? AND waiting=? AND "),
        ] {
            let plan = crate::plan_tests::of(sql);
            assert!(plan.contains(index), "{plan}");
            assert!(!plan.contains("SCAN jobqueue_message") && !plan.contains("TEMP B-TREE"), "{plan}");
        }
    }
}
