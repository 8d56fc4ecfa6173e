//! Implements the queue half of the port over the service's REST operations.

mod get;
mod put;
mod queues;
mod update;

pub(super) use self::queues::{from_headers, to_headers};

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt as _;

use super::connection::Connection;
use super::probe;
use jobqueue_storage::QueueName;
use jobqueue_storage::{
    Access, Batches, Created, Detach, ExpiredReceipt, GetMessages, MessageRef, Metadata, PeekedMessage,
    Permissions, PutMessage, PutOutcome, QueuePowers, QueueProperties, QueueStore, Received, StoreError,
    UpdateMessage, Updated,
};

/// The number of concurrent calls of `put_all` and `delete_all`: the service has no bulk operations.
const PARALLEL: usize = 16;

/// The queues of a storage account.
///
/// Visibility and time to live are sent in whole seconds, rounded up. The service accepts an expired receipt until
/// another worker gets the message, whatever [`ExpiredReceipt`] says: it does not guarantee `checks_expiry`.
#[derive(Debug)]
pub(super) struct AzureQueues {
    connection: Arc<Connection>,
}

impl AzureQueues {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self { connection }
    }
}

#[async_trait]
impl QueueStore for AzureQueues {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        queues::create(&self.connection, queue, metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        queues::delete(&self.connection, queue).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        queues::list(&self.connection, prefix).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        queues::properties(&self.connection, queue).await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        queues::set_metadata(&self.connection, queue, metadata).await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        put::put(&self.connection, queue, &message).await
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        get::get(&self.connection, queue, options).await
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        get::peek(&self.connection, queue, count).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        update::update(&self.connection, queue, message, &change).await
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        _late: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        update::delete(&self.connection, queue, message).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        queues::clear(&self.connection, queue).await
    }

    fn powers(self: Arc<Self>) -> QueuePowers {
        QueuePowers {
            batches: Some(Arc::clone(&self) as _),
            permissions: Some(Arc::clone(&self) as _),
            detach: Some(self),
            ..QueuePowers::default()
        }
    }
}

#[async_trait]
impl Batches for AzureQueues {
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Vec<PutMessage>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        futures_util::stream::iter(messages)
            .map(|message| self.put(queue, message))
            .buffered(PARALLEL)
            .collect()
            .await
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        _late: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        futures_util::stream::iter(messages)
            .map(|message| async move { update::delete(&self.connection, queue, &message).await })
            .buffered(PARALLEL)
            .collect()
            .await
    }
}

#[async_trait]
impl Permissions<QueueName> for AzureQueues {
    async fn check_access(&self, queue: &QueueName, access: Access) -> Result<(), StoreError> {
        probe::queue(&self.connection, queue, access).await
    }
}

impl Detach<dyn QueueStore> for AzureQueues {
    fn detached(&self) -> Arc<dyn QueueStore> {
        Arc::new(Self { connection: self.connection.again() })
    }
}
