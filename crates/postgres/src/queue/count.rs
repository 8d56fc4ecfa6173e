//! Counts messages.

use async_trait::async_trait;
use tokio_postgres::types::Type;

use crate::database::Call;
use crate::metadata;
use crate::store::Store;
use crate::time::to_instant;
use jobqueue_storage::{
    Metadata, Operation, QueueName, QueueProperties, StateCounter, StateCounts, StoreError, StoreErrorKind,
};

const COUNT: &str =
    "SELECT q.metadata, t.now, c.* FROM jobqueue.queue q, (SELECT jobqueue.now() AS now) AS t,
    LATERAL jobqueue.count_states(q.id, t.now) AS c WHERE q.name = $1";

impl Store {
    pub(super) async fn properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        let (metadata, states) = self.count(queue).await?;
        Ok(QueueProperties::new(metadata, states.total()).with_now(states.now))
    }

    /// Counts the messages of a queue, and returns the counts with its metadata.
    async fn count(&self, queue: &QueueName) -> Result<(Metadata, StateCounts), StoreError> {
        let call = Call::new(Operation::QueueProperties, queue);
        let rows = self.database.query(call, COUNT, &[(&queue.as_str(), Type::TEXT)]).await?;
        let row = rows.first().ok_or_else(|| call.refuse(StoreErrorKind::QueueNotFound))?;
        let count = |column| Ok(u64::try_from(call.get::<i64>(row, column)?).unwrap_or(0));
        let states = StateCounts {
            now: Some(to_instant(call.get(row, 1)?)),
            waiting: count(2)?,
            delayed: count(3)?,
            backing_off: count(4)?,
            running: count(5)?,
            oldest_backing_off: call.get::<Option<i64>>(row, 6)?.map(to_instant),
            oldest_held_up: call.get::<Option<i64>>(row, 7)?.map(to_instant),
        };
        Ok((metadata::from_text(call, call.get(row, 0)?)?, states))
    }
}

#[async_trait]
impl StateCounter for Store {
    async fn counts_by_state(&self, queue: &QueueName) -> Result<StateCounts, StoreError> {
        Ok(self.count(queue).await?.1)
    }
}
