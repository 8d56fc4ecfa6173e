//! Counts messages.

use std::time::SystemTime;

use async_trait::async_trait;
use tokio_postgres::types::Type;

use crate::database::Call;
use crate::metadata;
use crate::store::Store;
use crate::time::to_instant;
use jobqueue_storage::{
    Metadata, Operation, QueueName, QueueProperties, StateCounter, StateCounts, StoreError, StoreErrorKind,
};

/// Builds a query of the counts, with one more column.
macro_rules! count {
    ($column:literal) => {
        concat!(
            "SELECT q.metadata, t.now, c.*, ",
            $column,
            " FROM jobqueue.queue q, (SELECT jobqueue.now() AS now) AS t,
            LATERAL jobqueue.count_states(q.id, t.now) AS c WHERE q.name = $1"
        )
    };
}

const COUNT: &str = count!("NULL::bigint");
/// With the time of the oldest message that was put back. No message is read for it where none was.
const COUNT_AND_OLDEST: &str = count!(
    "CASE WHEN c.messages_put_back > 0 THEN (SELECT pg_catalog.min(m.inserted_at) FROM jobqueue.message m
        WHERE m.queue = q.id AND NOT m.waiting AND m.visible_at > t.now AND m.lease = 2
            AND (m.expires_at IS NULL OR m.expires_at > t.now)) END"
);

/// The counts of a queue, with its metadata and the server's time.
struct Counted {
    metadata: Metadata,
    now: SystemTime,
    states: StateCounts,
}

impl Store {
    pub(super) async fn properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        let Counted { metadata, now, states } = self.count(queue, COUNT).await?;
        Ok(QueueProperties::new(metadata, states.total()).with_now(now))
    }

    async fn count(&self, queue: &QueueName, sql: &'static str) -> Result<Counted, StoreError> {
        let call = Call::new(Operation::QueueProperties, queue);
        let rows = self.database.query(call, sql, &[(&queue.as_str(), Type::TEXT)]).await?;
        let row = rows.first().ok_or_else(|| call.refuse(StoreErrorKind::QueueNotFound))?;
        let count = |column| Ok(u64::try_from(call.get::<i64>(row, column)?).unwrap_or(0));
        Ok(Counted {
            metadata: metadata::from_text(call, call.get(row, 0)?)?,
            now: to_instant(call.get(row, 1)?),
            states: StateCounts {
                waiting: count(2)?,
                delayed: count(3)?,
                backing_off: count(4)?,
                running: count(5)?,
                oldest_backing_off: call.get::<Option<i64>>(row, 6)?.map(to_instant),
            },
        })
    }
}

#[async_trait]
impl StateCounter for Store {
    async fn counts_by_state(&self, queue: &QueueName) -> Result<StateCounts, StoreError> {
        Ok(self.count(queue, COUNT_AND_OLDEST).await?.states)
    }
}
