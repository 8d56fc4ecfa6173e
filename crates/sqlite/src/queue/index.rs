//! Shows messages without leasing them, and makes hidden messages visible.

use rusqlite::params;

use super::admin::find;
use super::ready::{BY_NUMBER, FoundMessage, LEASED, Source, merge};
use crate::batch::{Batch, refuse};
use crate::clock::{LAST_INSTANT, LEASED_TIME, to_instant};
use crate::error::Applied;
use crate::reader::View;
use crate::receipt::message_id;
use crate::row_id;
use jobqueue_storage::fast::hex::{read_hex, to_hex};
use jobqueue_storage::{
    MessageId, MessagePage, MessageState, Operation, PeekedMessage, QueueName, StoreErrorKind,
};

/// The messages in the index of times that are not leased.
pub(crate) const BY_TIME: &str =
    "SELECT id, text, dequeue_count, inserted_at, expires_at, visible_at FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 0 AND (visible_at, id & 2199023255551) > (?3, ?4) AND visible_at <= ?5
        AND leased BETWEEN ?6 AND ?7 AND (expires_at IS NULL OR expires_at > ?2)
    ORDER BY visible_at, id & 2199023255551 LIMIT ?8";

/// The leased messages, by the ends of their leases.
pub(crate) const BY_LEASE: &str = "SELECT l.id, m.text, l.dequeue_count, m.inserted_at, m.expires_at, l.until
    FROM jobqueue_lease l CROSS JOIN jobqueue_message m ON m.id = l.id
    WHERE l.id >= ?1 AND l.id < ?2 AND (l.until, l.id & 2199023255551) > (?4, ?5) AND l.until <= ?6
        AND (m.expires_at IS NULL OR m.expires_at > ?3)
    ORDER BY l.until, l.id & 2199023255551 LIMIT ?7";

/// The messages that wait for another message of their group.
pub(crate) const BY_GROUP: &str =
    "SELECT id, text, dequeue_count, inserted_at, expires_at, visible_at, group_name, turn FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 1 AND group_name IS NOT NULL AND (group_name, turn) > (?3, ?4)
        AND (expires_at IS NULL OR expires_at > ?2)
    ORDER BY group_name, turn LIMIT ?5";

const MAKE_VISIBLE: &str = "UPDATE jobqueue_message SET visible_at = ?2
    WHERE id = ?1 AND visible_at > ?2 AND visible_at < ?3 AND leased <> 1
        AND (expires_at IS NULL OR expires_at > ?2)
    RETURNING waiting";

/// The place at which a page ends.
#[derive(Clone, Debug, PartialEq)]
enum PagePlace {
    /// Among the messages that do not wait for another message of their group.
    Time(TimePlace),
    /// The last group and turn.
    Turn(String, i64),
}

/// The last messages of a page that do not wait for another message of their group.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TimePlace {
    /// The time of visibility and the number of the last message from the index of times or the leases.
    visible_at: i64,
    number: i64,
    /// The row of the last message that is received by its number.
    row: i64,
}

impl PagePlace {
    const FIRST: Self = Self::Time(TimePlace { visible_at: i64::MIN, number: 0, row: 0 });

    fn text(&self) -> String {
        match self {
            Self::Time(TimePlace { visible_at, number, row }) => format!("t{visible_at}.{number}.{row}"),
            Self::Turn(group, turn) => format!("g{turn}.{}", to_hex(group.as_bytes())),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let by_time = text.starts_with('t');
        let (first, rest) = text.strip_prefix(['t', 'g'])?.split_once('.')?;
        let first = first.parse().ok()?;
        if !by_time {
            return Some(Self::Turn(read_group(rest)?, first));
        }
        let (number, row) = rest.split_once('.')?;
        let (number, row) = (number.parse().ok()?, row.parse().ok()?);
        let is_place = (0..row_id::NUMBERS).contains(&number) && (0..i64::MAX).contains(&row);
        is_place.then_some(Self::Time(TimePlace { visible_at: first, number, row }))
    }
}

/// Reads the name of a group in hexadecimal digits.
fn read_group(digits: &str) -> Option<String> {
    let bytes = digits.as_bytes().chunks(2).map(|pair| read_hex::<1>(pair).map(|[byte]| byte));
    String::from_utf8(bytes.collect::<Option<Vec<u8>>>()?).ok()
}

/// Returns a page of the messages of one state. Messages that wait for their group come after all receivable
/// messages.
pub(super) fn messages(
    view: &View<'_>,
    name: &QueueName,
    state: MessageState,
    from: Option<&str>,
    count: u32,
) -> Applied<MessagePage> {
    let unknown =
        || refuse(StoreErrorKind::InvalidInput, Operation::Peek, format!("{name}: no page ended there"));
    let from = from.map_or(Ok(PagePlace::FIRST), |text| PagePlace::parse(text).ok_or_else(unknown))?;
    let Page { found, waiting_for_group, end } = page(view, name, state, from, count as usize)?;
    let next = Some(end).filter(|_| found.len() == count as usize).map(|end| end.text());
    let shown = |one: FoundMessage| (to_instant(one.visible_at), one);
    let messages = found.into_iter().map(shown).map(|(at, one)| (peeked(one), at)).collect();
    Ok(MessagePage::new(messages).with_waiting_for_group(waiting_for_group).with_next(next))
}

/// Returns the first `count` messages: the visible messages, then the messages that wait for their group.
pub(super) fn peek(view: &View<'_>, name: &QueueName, count: u32) -> Applied<Vec<PeekedMessage>> {
    let page = page(view, name, MessageState::Waiting, PagePlace::FIRST, count as usize)?;
    Ok(page.found.into_iter().map(peeked).collect())
}

/// Messages of a state.
struct Page {
    found: Vec<FoundMessage>,
    /// The number of messages at the end of the page that wait for another message of their group.
    waiting_for_group: usize,
    /// The place of the last message.
    end: PagePlace,
}

/// Returns the messages of a state after a place.
fn page(
    view: &View<'_>,
    name: &QueueName,
    state: MessageState,
    from: PagePlace,
    count: usize,
) -> Applied<Page> {
    let queue = find(view, Operation::Peek, name)?;
    let (mut found, mut end) = match from {
        PagePlace::Time(mut place) => {
            let found = by_time(view, &queue, state, place, count)?;
            if let Some(last) = found.iter().rfind(|one| one.source != Source::Number) {
                (place.visible_at, place.number) = last.place();
            }
            place.row =
                found.iter().rfind(|one| one.source == Source::Number).map_or(place.row, |one| one.id);
            (found, PagePlace::Time(place))
        }
        turn @ PagePlace::Turn(..) => (Vec::new(), turn),
    };
    let receivable = found.len();
    if state == MessageState::Waiting && found.len() < count {
        let (group, turn) = match &end {
            PagePlace::Turn(group, turn) => (group.clone(), *turn),
            PagePlace::Time(..) => (String::new(), i64::MIN),
        };
        let mut statement = view.connection.prepare_cached(BY_GROUP)?;
        let mut rows =
            statement.query(params![queue.id, view.now, group, turn, (count - found.len()) as i64])?;
        while let Some(row) = rows.next()? {
            found.push(FoundMessage::by_time(row)?);
            end = PagePlace::Turn(row.get(6)?, row.get(7)?);
        }
    }
    Ok(Page { waiting_for_group: found.len() - receivable, found, end })
}

/// Returns messages that do not wait for another message of their group.
fn by_time(
    view: &View<'_>,
    queue: &super::admin::FoundQueue,
    state: MessageState,
    place: TimePlace,
    count: usize,
) -> rusqlite::Result<Vec<FoundMessage>> {
    let (after, until, least, most) = match state {
        MessageState::Waiting => (i64::MIN, view.now, 0, 2),
        MessageState::Delayed => (view.now, LAST_INSTANT, 0, 0),
        MessageState::Running => (view.now, LAST_INSTANT, 1, 1),
        MessageState::BackingOff => (view.now, LAST_INSTANT, 2, 2),
    };
    let (visible_at, number) = (place.visible_at, place.number).max((after, i64::MAX));
    let values = params![queue.id, view.now, visible_at, number, until, least, most, count as i64];
    let mut statement = view.connection.prepare_cached(BY_TIME)?;
    let mut found =
        statement.query_map(values, FoundMessage::by_time)?.collect::<rusqlite::Result<Vec<_>>>()?;
    if matches!(state, MessageState::Waiting | MessageState::Running) {
        let rows = row_id::all(queue.id);
        let values = params![rows.start, rows.end, view.now, visible_at, number, until, count as i64];
        let mut statement = view.connection.prepare_cached(BY_LEASE)?;
        let leased = statement.query_map(values, FoundMessage::by_time)?;
        found.extend(leased.collect::<rusqlite::Result<Vec<_>>>()?);
        found.sort_by_key(FoundMessage::place);
    }
    if state != MessageState::Waiting {
        found.truncate(count);
        return Ok(found);
    }
    let rows = row_id::from_head(queue.id, queue.head.max(place.row + 1));
    let mut statement = view.connection.prepare_cached(LEASED)?;
    let leased = statement.query_map([rows.start, rows.end], |row| row.get(0))?;
    let leased = leased.collect::<rusqlite::Result<Vec<i64>>>()?;
    let mut statement = view.connection.prepare_cached(BY_NUMBER)?;
    let by_number = statement.query([rows.start, rows.end])?;
    let (found, _) = merge(found, by_number, &leased, count, |one| !one.is_expired(view.now))?;
    Ok(found)
}

fn peeked(one: FoundMessage) -> PeekedMessage {
    PeekedMessage::new(message_id(one.id), one.text, one.dequeue_count, to_instant(one.inserted_at))
        .with_expires(one.expires_at.map(to_instant))
}

/// Makes a hidden message visible, unless it is leased.
pub(super) fn make_visible(batch: &mut Batch<'_>, name: &QueueName, message: &MessageId) -> Applied<bool> {
    let queue = batch.queue(Operation::Update, name)?;
    let now = batch.now();
    let Some(shown) = row_id::parse(message.as_str()) else { return Ok(false) };
    let mut statement = batch.connection().prepare_cached(MAKE_VISIBLE)?;
    let mut rows = statement.query(params![row_id::of_shown(queue, shown), now, LEASED_TIME])?;
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
        for place in [
            PagePlace::FIRST,
            PagePlace::Time(TimePlace { visible_at: 5, number: 7, row: 9 }),
            PagePlace::Turn("a.b'; exit\n$(ä)".into(), 3),
            PagePlace::Turn("".into(), 1),
        ] {
            assert_eq!(PagePlace::parse(&place.text()), Some(place));
        }
        for wrong in [
            "",
            "5.7",
            "t5",
            "t5.7",
            "tx.7.9",
            "t5.y.9",
            "t5.7.z",
            "gx.61",
            "g1.a",
            "g1.6x",
            "g1.ff",
            "t0.-1.0",
            "t0.2199023255552.0",
            "t0.0.-1",
            "t0.0.9223372036854775807",
        ] {
            assert_eq!(PagePlace::parse(wrong), None, "{wrong}");
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
