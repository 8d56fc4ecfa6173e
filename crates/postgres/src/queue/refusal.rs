//! Finds out why receipts were refused.

use tokio_postgres::types::Type;

use crate::database::{Call, Parameter};
use crate::driver::{Numbers, Value};
use crate::receipt::ReceiptUse;
use crate::time::to_instant;
use jobqueue_storage::rules::limits::check_before_expiry;
use jobqueue_storage::{QueueName, StoreError, StoreErrorKind};

/// Builds a query about the messages of refused receipts, in their order. `OFFSET` keeps the planner from a
/// join, which could read all of the index where `ANALYZE` saw an empty table.
macro_rules! inspect {
    ($refused:literal) => {
        concat!(
            "SELECT (q.id IS NOT NULL)::int::bigint, (m.id IS NOT NULL)::int::bigint, (m.receipt = w.receipt)::int::bigint,
                (NOT w.late AND m.lease <> 0 AND m.visible_at <= jobqueue.now())::int::bigint, m.expires_at, jobqueue.now()
            FROM ", $refused, " AS w (id, receipt, late, number)
            LEFT JOIN jobqueue.queue q ON q.name = $1
            LEFT JOIN LATERAL (SELECT * FROM jobqueue.message WHERE id = w.id AND queue + 0 = q.id
                AND (expires_at IS NULL OR expires_at > jobqueue.now()) OFFSET 0) m ON true
            ORDER BY w.number"
        )
    };
}

pub(crate) const INSPECT: &str = inspect!("unnest($2::bigint[], $3::bytea[], $4::boolean[]) WITH ORDINALITY");
/// Queries a single message.
pub(crate) const INSPECT_ONE: &str = inspect!("(VALUES ($2::bigint, $3::bytea, $4::boolean, 1))");

/// The values of [`INSPECT`].
pub(crate) struct Inspection<'p> {
    queue: &'p str,
    ids: Vec<i64>,
    receipts: Vec<&'p [u8]>,
    late: Vec<bool>,
}

impl<'p> Inspection<'p> {
    pub(super) fn new(queue: &'p QueueName, refused: &'p [ReceiptUse]) -> Self {
        Self {
            queue: queue.as_str(),
            ids: refused.iter().map(|refused| refused.presented.row).collect(),
            receipts: refused.iter().map(|refused| refused.presented.bytes()).collect(),
            late: refused.iter().map(ReceiptUse::accepts_expired).collect(),
        }
    }

    pub(super) fn values(&self) -> [Parameter<'_>; 4] {
        [
            (&self.queue, Type::TEXT),
            (&self.ids, Type::INT8_ARRAY),
            (&self.receipts, Type::BYTEA_ARRAY),
            (&self.late, Type::BOOL_ARRAY),
        ]
    }
}

/// Returns the values of [`INSPECT_ONE`].
pub(crate) fn inspect_one<'p>(queue: &'p QueueName, refused: &'p ReceiptUse) -> [Value<'p>; 4] {
    let presented = &refused.presented;
    [
        Value::Text(Some(queue.as_str())),
        Value::Number(Some(presented.row)),
        Value::Bytes(Some(presented.bytes())),
        Value::Flag(refused.accepts_expired()),
    ]
}

/// Reads the reason for a refusal from a row of the answer. `visibility` is the new visibility of an update,
/// which must not go beyond the end of the message's life. Without a reason, another transaction had locked
/// the message.
pub(crate) fn reason(
    call: Call<'_>,
    queue: &QueueName,
    row: &Numbers,
    visibility: Option<i64>,
) -> Option<StoreError> {
    let read = || {
        let (has_queue, is_there) = (call.flag(row, 0)?, call.flag(row, 1)?);
        if !has_queue {
            return Err(call.refuse(StoreErrorKind::QueueNotFound));
        }
        if !is_there {
            return Err(call.refuse(StoreErrorKind::MessageNotFound));
        }
        let (is_newest, is_over) = (call.flag(row, 2)?, call.flag(row, 3)?);
        if !is_newest {
            return Err(call.refuse(StoreErrorKind::PopReceiptMismatch));
        }
        if is_over {
            return Err(call.refuse(StoreErrorKind::LeaseExpired));
        }
        let (expires, now) = (call.number_or_null(row, 4)?, call.number(row, 5)?);
        let visible = to_instant(now + visibility.unwrap_or(0));
        check_before_expiry(queue, visible, expires.map(to_instant))
    };
    read().err()
}
