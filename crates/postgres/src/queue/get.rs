//! Leases messages.

use std::time::Duration;

use scopeguard::ScopeGuard;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::connect::Object;
use crate::database::Call;
use crate::error;
use crate::pace::Work;
use crate::receipt::{self, Receipt};
use crate::scans::{Attempt, Scan};
use crate::store::Store;
use crate::time::{to_duration, to_instant, to_millis};
use jobqueue_storage::{
    GetMessages, LeasedMessage, Operation, QueueName, Received, StoreError, StoreErrorKind,
};

/// The time ahead for which each get searches for the next message to become visible. A search further ahead
/// is made only in a part of the time, because while a long transaction is open, it may have to pass the
/// index entries of many former leases.
const SHORT_LOOKAHEAD: Duration = Duration::from_secs(10);

/// Leases messages. The session caches the plans of the function. The statement itself is planned each time,
/// as connection poolers require, which is cheap. The last column is the time at which the scan has ended.
const GET: &str =
    "SELECT g.*, jobqueue.now() FROM jobqueue.get($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) AS g";

impl Store {
    /// Leases messages.
    pub(super) async fn lease(
        &self,
        queue: &QueueName,
        options: GetMessages,
    ) -> Result<Received, StoreError> {
        self.purge.start();
        let requested = Instant::now();
        // An attempt begins with its connection, so that an outage does not count as a long scan.
        let client = self.database.client(Call::new(Operation::Get, queue)).await?;
        // The lease counts from the request, but the server grants it after the wait for a connection.
        let granted = options.visibility.saturating_add(requested.elapsed());
        let state = self.scans.of(queue);
        let (mut attempt, mut far) = (Attempt::begin(&state), state.far.begin());
        let found = match self.claim(client, queue, &options, &attempt, far.is_some()).await {
            Ok(found) => found,
            Err(error) => {
                if error::ran_out_of_time(&error) {
                    attempt.note_too_long();
                    return Err(error);
                }
                if error::is_unanswered(&error) {
                    attempt.note_unanswered();
                } else {
                    attempt.forget_time();
                }
                far.iter_mut().for_each(Work::forget_time);
                return Err(error);
            }
        };
        let is_full = found.messages.len() == options.count as usize;
        let stopped_at = found.scan.stopped_at.filter(|_| is_full);
        attempt.end(&Scan { stopped_at, ..found.scan });
        // Without a far search, no message beyond the short lookahead was looked for.
        let next = found.next_visible_in.or_else(|| far.is_none().then_some(SHORT_LOOKAHEAD));
        if is_full {
            // No next message was looked for, so the far search stays due.
            far.iter_mut().for_each(Work::forget_time);
        }
        let messages = found.messages.into_iter().map(|message| message.with_granted(granted)).collect();
        Ok(Received::new(messages).with_next_visible_in(next.filter(|_| !is_full)))
    }

    #[allow(clippy::too_many_arguments, reason = "the request, its connection and the state of former scans")]
    async fn claim<F: FnOnce(Object)>(
        &self,
        client: ScopeGuard<Object, F>,
        queue: &QueueName,
        options: &GetMessages,
        attempt: &Attempt<'_>,
        is_far: bool,
    ) -> Result<GetAnswer, StoreError> {
        let call = Call::new(Operation::Get, queue);
        let receipts: Vec<Receipt> = (0..options.count).map(|_| receipt::random(&self.runtime)).collect();
        let receipts: Vec<&[u8]> = receipts.iter().map(<[u8; 16]>::as_slice).collect();
        let (count, visibility) = (i64::from(options.count), to_millis(options.visibility));
        let (running, since) = attempt.bound.running();
        let ahead = to_millis(if is_far { Duration::MAX } else { SHORT_LOOKAHEAD });
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
            (&self.held.limits.longest as _, Type::TEXT),
        ];
        GetAnswer::read(call, &self.database.query_on(client, call, GET, &values, Duration::ZERO).await?)
    }
}

/// The server's answer to a get.
struct GetAnswer {
    /// The scan. `stopped_at` is the time of its last message, even if the scan went on behind it.
    scan: Scan,
    messages: Vec<LeasedMessage>,
    /// The time until the first message becomes visible, among those looked for and those leased by this get.
    next_visible_in: Option<Duration>,
}

impl GetAnswer {
    fn read(call: Call<'_>, rows: &[Row]) -> Result<Self, StoreError> {
        let first = rows.first().ok_or_else(|| call.refuse(StoreErrorKind::Protocol).with_ambiguous(true))?;
        if !call.get(first, 2)? {
            return Err(call.refuse(StoreErrorKind::QueueNotFound));
        }
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
            // Both times are rounded down.
            duration: to_duration(call.get::<i64>(first, 15)? - time + 1),
        };
        let next_visible_in = until.map(|until| to_duration(until - time));
        Ok(Self { scan, messages, next_visible_in })
    }
}

/// Reads a leased message and the end of its lease.
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
