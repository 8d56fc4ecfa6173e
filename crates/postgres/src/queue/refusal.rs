//! Says why receipts are refused.

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::database::{Call, Parameter};
use crate::receipt::ReceiptUse;
use crate::time::to_instant;
use jobqueue_storage::rules::limits::check_before_expiry;
use jobqueue_storage::{ExpiredReceipt, QueueName, StoreError, StoreErrorKind};

/// Looks at the messages of refused receipts, in their order.
pub(crate) const LOOK: &str = "SELECT q.id IS NOT NULL, m.id IS NOT NULL, m.receipt = w.receipt, NOT w.late AND m.lease <> 0 AND m.visible_at <= jobqueue.now(),
        m.expires_at, jobqueue.now()
    FROM unnest($2::bigint[], $3::bytea[], $4::boolean[]) WITH ORDINALITY AS w (id, receipt, late, number)
    LEFT JOIN jobqueue.queue q ON q.name = $1
    LEFT JOIN jobqueue.message m ON m.id = w.id AND m.queue = q.id AND (m.expires_at IS NULL OR m.expires_at > jobqueue.now())
    ORDER BY w.number";

/// The values of the statement.
pub(crate) struct Look<'p> {
    queue: &'p str,
    ids: Vec<i64>,
    receipts: Vec<&'p [u8]>,
    late: Vec<bool>,
}

impl<'p> Look<'p> {
    pub(crate) fn new(queue: &'p QueueName, refused: &'p [ReceiptUse]) -> Self {
        Self {
            queue: queue.as_str(),
            ids: refused.iter().map(|one| one.presented.row).collect(),
            receipts: refused.iter().map(|one| one.presented.bytes()).collect(),
            late: refused.iter().map(|one| one.expired == ExpiredReceipt::Allow).collect(),
        }
    }

    pub(crate) fn values(&self) -> [Parameter<'_>; 4] {
        [
            (&self.queue, Type::TEXT),
            (&self.ids, Type::INT8_ARRAY),
            (&self.receipts, Type::BYTEA_ARRAY),
            (&self.late, Type::BOOL_ARRAY),
        ]
    }
}

/// Returns the reason of a row of the answer. `visibility` is that of an update, which the end of the message's life may forbid. Without a
/// reason, another transaction had locked the message.
pub(crate) fn reason(
    call: Call<'_>,
    queue: &QueueName,
    row: &Row,
    visibility: Option<i64>,
) -> Option<StoreError> {
    let read = || {
        let (has_queue, is_there): (bool, bool) = (call.get(row, 0)?, call.get(row, 1)?);
        if !has_queue {
            return Err(call.refuse(StoreErrorKind::QueueNotFound));
        }
        if !is_there {
            return Err(call.refuse(StoreErrorKind::MessageNotFound));
        }
        let (is_newest, is_over): (bool, bool) = (call.get(row, 2)?, call.get(row, 3)?);
        if !is_newest {
            return Err(call.refuse(StoreErrorKind::PopReceiptMismatch));
        }
        if is_over {
            return Err(call.refuse(StoreErrorKind::LeaseExpired));
        }
        let (expires, now): (Option<i64>, i64) = (call.get(row, 4)?, call.get(row, 5)?);
        let visible = to_instant(now + visibility.unwrap_or(0));
        check_before_expiry(queue, visible, expires.map(to_instant))
    };
    read().err()
}
