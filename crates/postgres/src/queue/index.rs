//! Lists messages without leasing them, and makes hidden messages visible.

use async_trait::async_trait;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::database::Call;
use crate::receipt::{message_id, parse_id};
use crate::store::Store;
use crate::time::to_instant;
use jobqueue_storage::fast::hex::{read_hex, to_hex};
use jobqueue_storage::rules::limits;
use jobqueue_storage::{
    MessageId, MessageIndex, MessagePage, MessageState, Operation, PeekedMessage, QueueName, StoreError,
    StoreErrorKind,
};

/// Builds a query for messages that do not wait for another message of their group and whose `lease` is in
/// $4, ordered by the times at which they become visible.
macro_rules! by_time {
    ($condition:literal) => {
        concat!(
            "WITH t AS MATERIALIZED (SELECT jobqueue.now() AS now)
            SELECT m.id, m.text, m.dequeue_count, m.inserted_at, m.expires_at, m.visible_at, m.group_hash, m.id
            FROM jobqueue.message m
            WHERE m.queue = (SELECT id FROM jobqueue.queue WHERE name = $1) AND NOT m.waiting AND m.lease = ANY ($4)
                AND (m.expires_at IS NULL OR m.expires_at > (SELECT now FROM t)) AND ", $condition,
            " ORDER BY m.visible_at, m.id LIMIT $5"
        )
    };
}

/// The visible messages after position ($2, $3).
const VISIBLE: &str = by_time!("(m.visible_at, m.id) > ($2, $3) AND m.visible_at <= (SELECT now FROM t)");

/// The hidden messages after position ($2, $3). The scan begins after the visible messages.
const HIDDEN: &str = by_time!(
    "(m.visible_at, m.id) > (greatest($2, (SELECT now FROM t)), CASE WHEN $2 > (SELECT now FROM t) THEN $3 ELSE 9223372036854775807 END)"
);

/// The messages after position ($2, $3) that wait for another message of their group.
const BY_GROUP: &str = "SELECT m.id, m.text, m.dequeue_count, m.inserted_at, m.expires_at, m.visible_at, m.group_hash, m.turn
    FROM jobqueue.message m, (SELECT jobqueue.now() AS now) AS t
    WHERE m.queue = (SELECT id FROM jobqueue.queue WHERE name = $1) AND m.waiting AND (m.group_hash, m.turn) > ($2, $3)
        AND (m.expires_at IS NULL OR m.expires_at > t.now)
    ORDER BY m.group_hash, m.turn LIMIT $4";

const QUEUE_EXISTS: &str = "SELECT id FROM jobqueue.queue WHERE name = $1";

const MAKE_VISIBLE: &str = "UPDATE jobqueue.message SET visible_at = jobqueue.writing()
    WHERE id = $2 AND queue = (SELECT id FROM jobqueue.queue WHERE name = $1) AND visible_at > jobqueue.now() AND lease <> 1
        AND (expires_at IS NULL OR expires_at > jobqueue.now())
    RETURNING id";

/// The position at which a page ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cursor {
    /// Among the messages that do not wait for another message of their group: the time and the number of the
    /// last message.
    Time(i64, i64),
    /// Among the messages that wait in groups: the group and the turn of the last message.
    Group([u8; 16], i64),
}

impl Cursor {
    const FIRST: Self = Self::Time(i64::MIN, 0);

    fn text(&self) -> String {
        match self {
            Self::Time(time, number) => format!("t{time}.{number}"),
            Self::Group(group, number) => format!("g{}.{number}", to_hex(group)),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (first, number) = text.get(1..)?.split_once('.')?;
        let number = number.parse().ok()?;
        match text.as_bytes().first()? {
            b't' => Some(Self::Time(first.parse().ok()?, number)),
            b'g' => Some(Self::Group(read_hex(first.as_bytes())?, number)),
            _ => None,
        }
    }
}

/// A request for messages of one state: at most `count`, after `from`.
#[derive(Clone, Copy)]
struct PageRequest {
    state: MessageState,
    from: Cursor,
    count: u32,
}

/// A page of messages of one state.
struct Page {
    shown: Vec<ShownMessage>,
    /// The number of messages, at the end of the page, that wait for another message of their group.
    waiting_for_group: usize,
    /// The position of the last message.
    end: Cursor,
}

/// A message and its position.
struct ShownMessage {
    message: PeekedMessage,
    visible_at: i64,
    /// The number of the message, or its turn if it waits for another message of its group.
    number: i64,
    group: Option<[u8; 16]>,
}

impl Store {
    /// Returns the first `count` messages: the visible messages, then the messages that wait for another
    /// message of their group.
    pub(super) async fn peek_messages(
        &self,
        queue: &QueueName,
        count: u32,
    ) -> Result<Vec<PeekedMessage>, StoreError> {
        let request = PageRequest { state: MessageState::Waiting, from: Cursor::FIRST, count };
        Ok(self.page(queue, request).await?.shown.into_iter().map(|shown| shown.message).collect())
    }

    async fn page(&self, queue: &QueueName, request: PageRequest) -> Result<Page, StoreError> {
        let (PageRequest { state, from, count }, call) = (request, Call::new(Operation::Peek, queue));
        let name = queue.as_str();
        let (mut shown, mut end) = (Vec::new(), from);
        if let Cursor::Time(time, number) = from {
            let (sql, leases): (_, &[i16]) = match state {
                MessageState::Waiting => (VISIBLE, &[0, 1, 2]),
                MessageState::Delayed => (HIDDEN, &[0]),
                MessageState::Running => (HIDDEN, &[1]),
                MessageState::BackingOff => (HIDDEN, &[2]),
            };
            let limit = i64::from(count);
            let values = [
                (&name as _, Type::TEXT),
                (&time as _, Type::INT8),
                (&number as _, Type::INT8),
                (&leases as _, Type::INT2_ARRAY),
                (&limit as _, Type::INT8),
            ];
            shown = read(call, &self.database.query(call, sql, &values).await?)?;
            end = shown.last().map_or(from, |last| Cursor::Time(last.visible_at, last.number));
        }
        let receivable = shown.len();
        let missing = i64::from(count) - i64::try_from(shown.len()).unwrap_or(0);
        if state == MessageState::Waiting && missing > 0 {
            let (group, number) = match from {
                Cursor::Group(group, number) => (group.to_vec(), number),
                Cursor::Time(..) => (Vec::new(), 0),
            };
            let values = [
                (&name as _, Type::TEXT),
                (&group as _, Type::BYTEA),
                (&number as _, Type::INT8),
                (&missing as _, Type::INT8),
            ];
            let waiting = read(call, &self.database.query(call, BY_GROUP, &values).await?)?;
            if let Some(last) = waiting.last() {
                end = Cursor::Group(last.group.unwrap_or_default(), last.number);
            }
            shown.extend(waiting);
        }
        if shown.is_empty()
            && self.database.query(call, QUEUE_EXISTS, &[(&name, Type::TEXT)]).await?.is_empty()
        {
            return Err(call.refuse(StoreErrorKind::QueueNotFound));
        }
        Ok(Page { waiting_for_group: shown.len() - receivable, shown, end })
    }
}

#[async_trait]
impl MessageIndex for Store {
    /// Messages that wait in groups come after all messages that can be received.
    async fn messages(
        &self,
        queue: &QueueName,
        state: MessageState,
        from: Option<&str>,
        count: u32,
    ) -> Result<MessagePage, StoreError> {
        limits::check_page(queue, count)?;
        let call = Call::new(Operation::Peek, queue);
        let unknown = || call.refuse(StoreErrorKind::InvalidInput).with_detail("no page ended there");
        let from = from.map_or(Ok(Cursor::FIRST), |text| Cursor::parse(text).ok_or_else(unknown))?;
        let Page { shown, waiting_for_group, end } =
            self.page(queue, PageRequest { state, from, count }).await?;
        let next = Some(end.text()).filter(|_| shown.len() == count as usize);
        let messages = shown.into_iter().map(|shown| (shown.message, to_instant(shown.visible_at))).collect();
        Ok(MessagePage::new(messages).with_waiting_for_group(waiting_for_group).with_next(next))
    }

    async fn make_visible(&self, queue: &QueueName, message: &MessageId) -> Result<bool, StoreError> {
        let call = Call::new(Operation::Update, queue);
        let (name, id) = (queue.as_str(), parse_id(message));
        let values = [(&name as _, Type::TEXT), (&id as _, Type::INT8)];
        if !self.database.query(call, MAKE_VISIBLE, &values).await?.is_empty() {
            self.announce(queue);
            return Ok(true);
        }
        if self.database.query(call, QUEUE_EXISTS, &values[..1]).await?.is_empty() {
            return Err(call.refuse(StoreErrorKind::QueueNotFound));
        }
        Ok(false)
    }
}

fn read(call: Call<'_>, rows: &[Row]) -> Result<Vec<ShownMessage>, StoreError> {
    let shown = |row| {
        let (id, expires): (i64, Option<i64>) = (call.get(row, 0)?, call.get(row, 4)?);
        let count = u32::try_from(call.get::<i32>(row, 2)?).unwrap_or(u32::MAX);
        let message =
            PeekedMessage::new(message_id(id), Ok(call.get(row, 1)?), count, to_instant(call.get(row, 3)?));
        let group: Option<&[u8]> = call.get(row, 6)?;
        Ok(ShownMessage {
            message: message.with_expires(expires.map(to_instant)),
            visible_at: call.get(row, 5)?,
            number: call.get(row, 7)?,
            group: group.and_then(|group| group.try_into().ok()),
        })
    };
    rows.iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_as_they_were_written() {
        for cursor in [Cursor::FIRST, Cursor::Time(5, 7), Cursor::Group([7; 16], 3)] {
            assert_eq!(Cursor::parse(&cursor.text()), Some(cursor));
        }
        for wrong in ["", "?", "5.7", "t5", "tx.7", "t5.y", "g00.1", "ü.1"] {
            assert_eq!(Cursor::parse(wrong), None, "{wrong}");
        }
    }
}
