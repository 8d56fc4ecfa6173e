//! Counts messages.

use tokio_postgres::types::Type;

use crate::database::Call;
use crate::metadata;
use crate::store::Store;
use crate::time::to_instant;
use jobqueue_storage::{Operation, QueueName, QueueProperties, StateCounts, StoreError, StoreErrorKind};

const LENGTH: &str = "SELECT q.metadata, (SELECT count(*) FROM jobqueue.message m
        WHERE m.queue = q.id AND (m.expires_at IS NULL OR m.expires_at > statement_time.now)), statement_time.now
    FROM jobqueue.queue q, (SELECT jobqueue.now() AS now) AS statement_time WHERE q.name = $1";

/// The states are those of `MessageState`. A message that waits for another of its group is waiting, whatever its time.
const BY_STATE: &str = "SELECT
        count(m.id) FILTER (WHERE m.waiting OR m.visible_at <= t.now),
        count(m.id) FILTER (WHERE NOT m.waiting AND m.visible_at > t.now AND m.lease = 0),
        count(m.id) FILTER (WHERE NOT m.waiting AND m.visible_at > t.now AND m.lease = 2),
        count(m.id) FILTER (WHERE NOT m.waiting AND m.visible_at > t.now AND m.lease = 1)
    FROM jobqueue.queue q CROSS JOIN (SELECT jobqueue.now() AS now) AS t
    LEFT JOIN jobqueue.message m ON m.queue = q.id AND (m.expires_at IS NULL OR m.expires_at > t.now)
    WHERE q.name = $1 GROUP BY q.id";

impl Store {
    pub(super) async fn properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        let call = Call::new(Operation::QueueProperties, queue);
        let rows = self.database.query(call, LENGTH, &[(&queue.as_str(), Type::TEXT)]).await?;
        let row = rows.first().ok_or_else(|| call.refuse(StoreErrorKind::QueueNotFound))?;
        let length: i64 = call.get(row, 1)?;
        let metadata = metadata::from_text(call, call.get(row, 0)?)?;
        let now = to_instant(call.get(row, 2)?);
        Ok(QueueProperties::new(metadata, u64::try_from(length).unwrap_or(0)).at(now))
    }

    pub(super) async fn counts(&self, queue: &QueueName) -> Result<StateCounts, StoreError> {
        let call = Call::new(Operation::QueueProperties, queue);
        let rows = self.database.query(call, BY_STATE, &[(&queue.as_str(), Type::TEXT)]).await?;
        let row = rows.first().ok_or_else(|| call.refuse(StoreErrorKind::QueueNotFound))?;
        let count = |column| Ok(u64::try_from(call.get::<i64>(row, column)?).unwrap_or(0));
        Ok(StateCounts { waiting: count(0)?, delayed: count(1)?, backing_off: count(2)?, running: count(3)? })
    }
}
