//! Creates, changes and removes queues.

use async_trait::async_trait;
use tokio_postgres::types::Type;

use crate::database::Call;
use crate::held::held_up;
use crate::purge::{DELETE_LOCKED_OF_QUEUE, DELETE_OF_QUEUE};
use crate::store::Store;
use crate::{error, metadata};
use jobqueue_storage::rules::limits;
use jobqueue_storage::{Created, Metadata, MetadataStore, Operation, QueueName, StoreError, StoreErrorKind};

const CREATE: &str =
    "INSERT INTO jobqueue.queue (name, metadata) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING RETURNING id";

const METADATA: &str = "SELECT metadata FROM jobqueue.queue WHERE name = $1";

/// The messages are unreachable at once. Their rows are removed step by step.
const DELETE: &str = "WITH gone AS (DELETE FROM jobqueue.queue WHERE name = $1 RETURNING id)
    INSERT INTO jobqueue.garbage (kind, owner, since) SELECT 'queue', id, jobqueue.now() FROM gone RETURNING owner";

const LIST: &str = "SELECT name FROM jobqueue.queue WHERE pg_catalog.starts_with(name, $1) ORDER BY name";

const SET_METADATA: &str = "UPDATE jobqueue.queue SET metadata = $2 WHERE name = $1 RETURNING id";

const SWAP_METADATA: &str =
    "UPDATE jobqueue.queue SET metadata = $2 WHERE name = $1 AND metadata = $3 RETURNING id";

const LAST_MESSAGE: &str = "SELECT q.id, (SELECT pg_catalog.max(m.id) FROM jobqueue.message m) FROM jobqueue.queue q WHERE q.name = $1";

/// The number of messages that a statement of `clear` removes.
const CLEARED_PER_STATEMENT: i64 = 5_000;

/// The number of attempts at a change of a queue that other processes keep changing.
const MAX_ATTEMPTS: usize = 10;

impl Store {
    pub(super) async fn create(&self, queue: &QueueName, wanted: &Metadata) -> Result<Created, StoreError> {
        let call = Call::new(Operation::CreateQueue, queue);
        let (name, text) = (queue.as_str(), metadata::to_text(wanted));
        for _ in 0..MAX_ATTEMPTS {
            let values = [(&name as _, Type::TEXT), (&text as _, Type::TEXT)];
            if !self.database.query(call, CREATE, &values).await?.is_empty() {
                return Ok(Created::New);
            }
            if let Some(row) = self.database.query(call, METADATA, &[(&name, Type::TEXT)]).await?.first() {
                if metadata::from_text(call, call.get(row, 0)?)? == *wanted {
                    return Ok(Created::Existed);
                }
                return Err(call.refuse(StoreErrorKind::QueueAlreadyExists));
            }
        }
        Err(call.refuse(StoreErrorKind::Unavailable).with_detail("others create and delete the queue"))
    }

    pub(super) async fn write_metadata(&self, queue: &QueueName, new: &Metadata) -> Result<(), StoreError> {
        let call = Call::new(Operation::SetQueueMetadata, queue);
        let (name, text) = (queue.as_str(), metadata::to_text(new));
        let values = [(&name as _, Type::TEXT), (&text as _, Type::TEXT)];
        let rows = self.database.query(call, SET_METADATA, &values).await?;
        rows.first().map(drop).ok_or_else(|| call.refuse(StoreErrorKind::QueueNotFound))
    }

    pub(super) async fn remove(&self, queue: &QueueName) -> Result<(), StoreError> {
        let call = Call::new(Operation::DeleteQueue, queue);
        let rows = self.database.query(call, DELETE, &[(&queue.as_str(), Type::TEXT)]).await?;
        rows.first().map(drop).ok_or_else(|| call.refuse(StoreErrorKind::QueueNotFound))
    }

    pub(super) async fn names(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        let call = Call::of_database(Operation::ListQueues, &self.database);
        if prefix.contains('\0') {
            return Ok(Vec::new());
        }
        let rows = self.database.query(call, LIST, &[(&prefix, Type::TEXT)]).await?;
        let mut names = Vec::with_capacity(rows.len());
        for row in &rows {
            // A name that breaks the rules was written by another program. No caller could use it.
            names.extend(QueueName::new(call.get::<&str>(row, 0)?));
        }
        Ok(names)
    }

    /// Removes the messages that exist when it begins.
    pub(super) async fn empty(&self, queue: &QueueName) -> Result<(), StoreError> {
        let call = Call::new(Operation::Clear, queue);
        let rows = self.database.query(call, LAST_MESSAGE, &[(&queue.as_str(), Type::TEXT)]).await?;
        let row = rows.first().ok_or_else(|| call.refuse(StoreErrorKind::QueueNotFound))?;
        let (id, last): (i32, Option<i64>) = (call.get(row, 0)?, call.get(row, 1)?);
        let Some(last) = last else { return Ok(()) };
        let several =
            [(&id as _, Type::INT4), (&last as _, Type::INT8), (&CLEARED_PER_STATEMENT as _, Type::INT8)];
        let one = [
            (&id as _, Type::INT4),
            (&last as _, Type::INT8),
            (&1_i64 as _, Type::INT8),
            (&self.held.limits.longest as _, Type::TEXT),
        ];
        loop {
            let mut removed = 0;
            for sql in DELETE_OF_QUEUE {
                removed += self.database.query(call, sql, &several).await?.len();
            }
            if removed > 0 {
                // A message that was sent since then may now be the first of its group.
                self.announce(queue);
                continue;
            }
            // The remaining messages are locked by other transactions. This waits for one message at a time,
            // and holds no other lock while it waits.
            for sql in DELETE_LOCKED_OF_QUEUE {
                let rows = self.database.query(call, sql, &one).await;
                let is_held = rows.as_ref().is_err_and(error::is_lock_timeout);
                removed += if is_held { Err(held_up(call)) } else { rows }?.len();
            }
            if removed == 0 {
                return Ok(());
            }
            self.announce(queue);
        }
    }
}

#[async_trait]
impl MetadataStore for Store {
    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        let call = Call::new(Operation::QueueMetadata, queue);
        let rows = self.database.query(call, METADATA, &[(&queue.as_str(), Type::TEXT)]).await?;
        let row = rows.first().ok_or_else(|| call.refuse(StoreErrorKind::QueueNotFound))?;
        metadata::from_text(call, call.get(row, 0)?)
    }

    /// Equal metadata may have different texts, for example if the case of a name differs, so the stored text
    /// is compared after parsing.
    async fn replace_queue_metadata(
        &self,
        queue: &QueueName,
        before: &Metadata,
        new: &Metadata,
    ) -> Result<(), StoreError> {
        limits::check_metadata(Operation::SetQueueMetadata, queue, new)?;
        let (reading, call) =
            (Call::new(Operation::QueueMetadata, queue), Call::new(Operation::SetQueueMetadata, queue));
        let (name, text) = (queue.as_str(), metadata::to_text(new));
        for _ in 0..MAX_ATTEMPTS {
            let rows = self.database.query(reading, METADATA, &[(&name, Type::TEXT)]).await?;
            let row = rows.first().ok_or_else(|| call.refuse(StoreErrorKind::QueueNotFound))?;
            let found: &str = reading.get(row, 0)?;
            if metadata::from_text(reading, found)? != *before {
                break;
            }
            let values = [(&name as _, Type::TEXT), (&text as _, Type::TEXT), (&found as _, Type::TEXT)];
            if !self.database.query(call, SWAP_METADATA, &values).await?.is_empty() {
                return Ok(());
            }
        }
        Err(call.refuse(StoreErrorKind::ConditionNotMet))
    }
}
