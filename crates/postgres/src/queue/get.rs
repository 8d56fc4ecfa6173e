//! Leases messages.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::database::Call;
use crate::receipt::{self, Receipt};
use crate::scans::{Attempt, Scan};
use crate::store::Store;
use crate::time::{to_duration, to_instant, to_millis};
use jobqueue_storage::{
    GetMessages, LeasedMessage, Operation, QueueName, Received, StoreError, StoreErrorKind,
};

/// The time within which a get always looks for the next message that becomes visible. What is later it looks for in a part of the time:
/// while a long transaction is open, it may have to pass the ends of many former leases.
const NEAR: Duration = Duration::from_secs(10);

/// Leases up to $2 messages for $3 milliseconds under the receipts $7. The scan begins at $4, or earlier if one of the transactions $5 has
/// ended, whose messages have times from $6 on; but not longer ago than $9. The next message is looked for up to $8 milliseconds from now.
///
/// The time is read before the number at the end: that of this transaction, or the next one that the server will give, from which `age` counts.
/// A writer with a greater number has read the clock later.
const GET: &str = "WITH at AS MATERIALIZED (
    SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint AS time, pg_current_snapshot() AS snapshot,
        (SELECT id FROM jobqueue.queue WHERE name = $1) AS queue
), start AS MATERIALIZED (
    SELECT greatest(at.time - $9, least($4, (SELECT min(r.since) FROM unnest($5::bigint[], $6::bigint[]) AS r (number, since)
        WHERE pg_visible_in_snapshot(r.number::text::xid8, at.snapshot)))) AS since FROM at
), leased AS MATERIALIZED (
    SELECT c.* FROM at, start, LATERAL jobqueue.claim(at.queue, $2, $3, start.since, at.time, $7) AS c
), next AS MATERIALIZED (
    SELECT CASE WHEN (SELECT count(*) FROM leased) < $2
        THEN jobqueue.next_visible(at.queue, at.time, at.time + $8) END AS time FROM at
)
SELECT at.time, ARRAY(SELECT x::text::bigint FROM pg_snapshot_xip(at.snapshot) AS x ORDER BY x), at.queue IS NOT NULL, next.time,
    leased.*, pg_snapshot_xmax(at.snapshot)::text::bigint,
    pg_snapshot_xmax(at.snapshot)::text::bigint + age(pg_snapshot_xmax(at.snapshot)::xid)
FROM next, at LEFT JOIN leased ON true ORDER BY leased.message_number";

impl Store {
    /// Leases messages.
    pub(super) async fn lease(
        &self,
        queue: &QueueName,
        options: GetMessages,
    ) -> Result<Received, StoreError> {
        self.purge.start();
        let call = Call::new(Operation::Get, queue);
        let state = self.scans.of(queue);
        let attempt = Attempt::begin(&state);
        let receipts: Vec<Receipt> = (0..options.count).map(|_| receipt::random(&self.runtime)).collect();
        let receipts: Vec<&[u8]> = receipts.iter().map(<[u8; 16]>::as_slice).collect();
        let (count, visibility) = (i64::from(options.count), to_millis(options.visibility));
        let (running, since) = attempt.bound.running();
        let mut far = state.far.begin();
        let (is_far, ahead) = (far.is_some(), to_millis(if far.is_some() { Duration::MAX } else { NEAR }));
        let values = [
            (&queue.as_str() as _, Type::TEXT),
            (&count as _, Type::INT8),
            (&visibility as _, Type::INT8),
            (&attempt.bound.from as _, Type::INT8),
            (&running as _, Type::INT8_ARRAY),
            (&since as _, Type::INT8_ARRAY),
            (&receipts as _, Type::BYTEA_ARRAY),
            (&ahead as _, Type::INT8),
            (&attempt.back as _, Type::INT8),
        ];
        let rows = self.database.query(call, GET, &values).await?;
        let found = Found::read(call, &rows)?;
        if !found.is_there {
            return Err(call.refuse(StoreErrorKind::QueueNotFound));
        }
        let is_full = found.messages.len() == options.count as usize;
        let stopped_at = found.scan.stopped_at.filter(|_| is_full);
        attempt.end(&Scan { stopped_at, ..found.scan });
        // A full get has not looked: the turn stays due.
        if let Some(far) = far.as_mut().filter(|_| is_full) {
            far.forget_time();
        }
        // What is not near was not looked for.
        let next = found.next_visible_in.or_else(|| (!is_far).then_some(NEAR));
        Ok(Received::new(found.messages).with_next_visible_in(next.filter(|_| !is_full)))
    }
}

/// The answer of the server.
struct Found {
    is_there: bool,
    /// The scan, as if it had ended at its last message.
    scan: Scan,
    messages: Vec<LeasedMessage>,
    /// The time until the next message that was looked for becomes visible, those that are leased now included.
    next_visible_in: Option<Duration>,
}

impl Found {
    fn read(call: Call<'_>, rows: &[Row]) -> Result<Self, StoreError> {
        let first = rows.first().ok_or_else(|| call.refuse(StoreErrorKind::Protocol).with_ambiguous(true))?;
        let time: i64 = call.get(first, 0)?;
        let mut until: Option<i64> = call.get(first, 3)?;
        let (mut messages, mut stopped_at) = (Vec::with_capacity(rows.len()), None);
        for row in rows {
            if call.get::<Option<i64>>(row, 4)?.is_none() {
                continue;
            }
            stopped_at = Some(call.get(row, 5)?);
            let (message, visible_at) = leased(call, row)?;
            until = Some(until.map_or(visible_at, |until| until.min(visible_at)));
            messages.push(message);
        }
        let running: Vec<i64> = call.get(first, 1)?;
        let scan = Scan {
            time,
            stopped_at,
            number: call.get::<i64>(first, 14)?.cast_unsigned(),
            running: running.into_iter().map(i64::cast_unsigned).collect(),
            limit: call.get::<i64>(first, 13)?.cast_unsigned(),
        };
        let next_visible_in = until.map(|until| to_duration(until - time));
        Ok(Self { is_there: call.get(first, 2)?, scan, messages, next_visible_in })
    }
}

/// Reads a leased message, and the end of its lease.
fn leased(call: Call<'_>, row: &Row) -> Result<(LeasedMessage, i64), StoreError> {
    let visible_at: i64 = call.get(row, 12)?;
    let message = LeasedMessage::new(
        receipt::message_ref(call.get(row, 6)?, call.get(row, 7)?),
        Ok(call.get(row, 8)?),
        u32::try_from(call.get::<i32>(row, 9)?).unwrap_or(u32::MAX),
        to_instant(call.get(row, 10)?),
        to_instant(visible_at),
    );
    let expires: Option<i64> = call.get(row, 11)?;
    Ok((message.with_expires(expires.map(to_instant)), visible_at))
}
