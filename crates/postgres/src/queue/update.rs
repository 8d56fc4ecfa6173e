//! Changes a leased message.

use crate::database::Call;
use crate::driver::{Numbers, Value};
use crate::receipt::{self, Presented, ReceiptUse};
use crate::time::{to_instant, to_millis};
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{MessageRef, QueueName, StoreError, UpdateMessage, Updated};

/// Builds a statement that makes message $2 visible $4 milliseconds from now, and gives it the receipt $5 and
/// the state $6. $8 says whether an expired receipt is accepted. A refused message is not locked, because a
/// get would skip it, unless the statement has waited for its lock. The row is found by its number without a
/// join, which could read all of the index where `ANALYZE` saw an empty table.
macro_rules! update {
    ($lock:literal) => {
        concat!(
            "WITH held AS MATERIALIZED (
                SELECT m.id, m.visible_at FROM jobqueue.message m
                WHERE m.id = $2 AND m.receipt = $3 AND m.queue + 0 = (SELECT id FROM jobqueue.queue WHERE name = $1)
                    AND (m.expires_at IS NULL OR m.expires_at > jobqueue.now() AND m.expires_at >= jobqueue.now() + $4)
                    AND ($8 OR m.lease = 0 OR m.visible_at > jobqueue.now())
                FOR NO KEY UPDATE", $lock,
            ") UPDATE jobqueue.message m
                SET visible_at = jobqueue.writing() + $4, receipt = $5, lease = $6, text = coalesce($7, m.text)
                WHERE m.id = (SELECT id FROM held)
                RETURNING m.visible_at, (m.visible_at < (SELECT visible_at FROM held) OR $4 = 0)::int::bigint"
        )
    };
}

/// Does not wait for other transactions. The transaction of the message's handler may take long, and each
/// renewal that waits for it would occupy a connection that the other leases need.
pub(crate) const UPDATE_FREE: &str = update!(" SKIP LOCKED");
/// Waits for a renewal that is in progress.
pub(crate) const UPDATE: &str = update!("");

/// The values of the column `lease` for a leased message and for a message that its holder put back.
const LEASED: i64 = 1;
const PUT_BACK: i64 = 2;

/// The statement that changes a message.
pub(crate) struct Update<'m> {
    queue: &'m str,
    pub(crate) offered: ReceiptUse,
    pub(crate) visibility: i64,
    former: Vec<u8>,
    pub(super) receipt: Vec<u8>,
    state: i64,
    text: Option<&'m str>,
}

impl<'m> Update<'m> {
    pub(crate) fn new(
        queue: &'m QueueName,
        message: &MessageRef,
        change: &'m UpdateMessage,
        runtime: &Runtime,
    ) -> Self {
        let offered = ReceiptUse { presented: Presented::of(message), expired: change.expired };
        Self {
            queue: queue.as_str(),
            visibility: to_millis(change.visibility),
            former: offered.presented.bytes().to_vec(),
            offered,
            receipt: receipt::random(runtime).to_vec(),
            state: if change.ends_lease { PUT_BACK } else { LEASED },
            text: change.text.as_deref(),
        }
    }

    /// Returns whether the change only renews the lease.
    pub(super) fn is_renewal(&self) -> bool {
        self.text.is_none() && self.state == LEASED && self.visibility > 0
    }

    pub(crate) fn values(&self) -> [Value<'_>; 8] {
        [
            Value::Text(Some(self.queue)),
            Value::Number(Some(self.offered.presented.row)),
            Value::Bytes(Some(&self.former)),
            Value::Number(Some(self.visibility)),
            Value::Bytes(Some(&self.receipt)),
            Value::Number(Some(self.state)),
            Value::Text(self.text),
            Value::Flag(self.offered.accepts_expired()),
        ]
    }

    /// Reads the answer: the change, and whether the message becomes visible earlier than before it. Returns
    /// `None` if the change was refused.
    pub(crate) fn outcome(
        &self,
        call: Call<'_>,
        rows: &[Numbers],
    ) -> Result<Option<(Updated, bool)>, StoreError> {
        let Some(row) = rows.first() else { return Ok(None) };
        let updated = Updated::new(receipt::expose(&self.receipt), to_instant(call.number(row, 0)?));
        Ok(Some((updated, call.flag(row, 1)?)))
    }
}
