//! Implements the queue half of the port: checks arguments, then runs a statement.

use std::sync::Arc;

use async_trait::async_trait;

use super::leased;
use super::put::Put;
use crate::arrivals::ArrivalHub;
use crate::database::{Call, Database};
use crate::receipt::{Deletion, Presented};
use crate::store::Store;
use jobqueue_storage::rules::limits;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{
    Arrivals, Batches, Created, Detach, ExpiredReceipt, GetMessages, Guarantees, MessageId, MessageIndex,
    MessagePage, MessageRef, MessageState, Metadata, MetadataStore, Operation, OrderedGroups, PeekedMessage,
    PutMessage, PutOutcome, QueueName, QueuePowers, QueueProperties, QueueStore, Received, StateCounter,
    StateCounts, StoreError, Subscription, TransactionPlace, UpdateMessage, Updated,
};

#[async_trait]
impl QueueStore for Store {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        limits::check_metadata(Operation::CreateQueue, queue, metadata)?;
        self.create(queue, metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.remove(queue).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        self.names(prefix).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.properties(queue).await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        limits::check_metadata(Operation::SetQueueMetadata, queue, metadata)?;
        self.write_metadata(queue, metadata).await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        limits::check_put(queue, &message)?;
        let shared = self.shared();
        let run = move |queue, messages| shared.clone().put(queue, messages);
        self.puts.submit(Call::new(Operation::Put, queue), queue, message, run).await
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        limits::check_get(queue, &options)?;
        self.lease(queue, options).await
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        limits::check_peek(queue, count)?;
        self.look(queue, count).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        limits::check_update(queue, &change)?;
        let (updated, is_earlier) = leased::update(self, queue, message, &change).await?;
        // Waiting callers would otherwise wait until the former time.
        if is_earlier {
            self.announce(queue);
        }
        Ok(updated)
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        let deletion = Deletion { presented: Presented::of(message), expired };
        let shared = self.shared();
        let run = move |queue, deletions| shared.clone().delete(queue, deletions);
        self.deletions.submit(Call::new(Operation::Delete, queue), queue, deletion, run).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.empty(queue).await
    }

    fn powers(self: Arc<Self>) -> QueuePowers {
        QueuePowers {
            guarantees: Guarantees {
                checks_expiry: true,
                commits_together: true,
                throttles_by_shard: false,
                puts_lists_whole: true,
            },
            metadata: Some(Arc::clone(&self) as _),
            counts: Some(Arc::clone(&self) as _),
            index: Some(Arc::clone(&self) as _),
            groups: Some(Arc::clone(&self) as _),
            batches: Some(Arc::clone(&self) as _),
            arrivals: self.arrivals.are_announced().then(|| Arc::clone(&self) as _),
            upkeep: Some(Arc::clone(&self) as _),
            transaction_place: Some(TransactionPlace::Schema(self.database.schema().into())),
            detach: Some(self),
            ..QueuePowers::default()
        }
    }
}

impl Store {
    /// Wakes those that wait for messages of a queue, here and in other processes.
    fn announce(&self, queue: &QueueName) {
        self.arrivals.announce(&self.database, &self.runtime, queue);
    }

    fn shared(&self) -> Shared {
        Shared {
            database: Arc::clone(&self.database),
            arrivals: Arc::clone(&self.arrivals),
            runtime: self.runtime.clone(),
        }
    }
}

/// The parts of a store with which a task runs operations of several callers. It goes on if all of them give up.
#[derive(Clone)]
struct Shared {
    database: Arc<Database>,
    arrivals: Arc<ArrivalHub>,
    runtime: Runtime,
}

impl Shared {
    async fn put(self, queue: QueueName, messages: Vec<PutMessage>) -> Vec<Result<PutOutcome, StoreError>> {
        self.put_all(Operation::Put, &queue, &messages).await
    }

    /// Adds messages, and announces them, also if it is uncertain whether they are stored.
    async fn put_all(
        &self,
        operation: Operation,
        queue: &QueueName,
        messages: &[PutMessage],
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let call = Call::new(operation, queue);
        let put = Put::new(queue, messages, &self.runtime).run(&self.database, call).await;
        if put.as_ref().err().is_none_or(StoreError::is_ambiguous) {
            self.arrivals.announce(&self.database, &self.runtime, queue);
        }
        match put {
            Ok(outcomes) => outcomes.into_iter().map(Ok).collect(),
            Err(error) => error.for_each(messages.len()).map(Err).collect(),
        }
    }

    async fn delete(self, queue: QueueName, deletions: Vec<Deletion>) -> Vec<Result<(), StoreError>> {
        self.delete_all(Operation::Delete, &queue, &deletions).await
    }

    /// Deletes messages, and announces those that are the first of their groups now.
    async fn delete_all(
        &self,
        operation: Operation,
        queue: &QueueName,
        deletions: &[Deletion],
    ) -> Vec<Result<(), StoreError>> {
        let deleted = leased::delete(&self.database, Call::new(operation, queue), queue, deletions).await;
        if deleted.advances {
            self.arrivals.announce(&self.database, &self.runtime, queue);
        }
        deleted.answers
    }
}

#[async_trait]
impl MetadataStore for Store {
    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        self.read_metadata(queue).await
    }

    async fn replace_queue_metadata(
        &self,
        queue: &QueueName,
        before: &Metadata,
        metadata: &Metadata,
    ) -> Result<(), StoreError> {
        limits::check_metadata(Operation::SetQueueMetadata, queue, metadata)?;
        self.swap_metadata(queue, before, metadata).await
    }
}

#[async_trait]
impl StateCounter for Store {
    async fn counts_by_state(&self, queue: &QueueName) -> Result<StateCounts, StoreError> {
        self.counts(queue).await
    }
}

#[async_trait]
impl MessageIndex for Store {
    async fn messages(
        &self,
        queue: &QueueName,
        state: MessageState,
        from: Option<&str>,
        count: u32,
    ) -> Result<MessagePage, StoreError> {
        limits::check_page(queue, count)?;
        self.page(queue, state, from, count).await
    }

    async fn make_visible(&self, queue: &QueueName, message: &MessageId) -> Result<bool, StoreError> {
        let is_visible = self.unhide(queue, message).await?;
        if is_visible {
            self.announce(queue);
        }
        Ok(is_visible)
    }
}

#[async_trait]
impl Batches for Store {
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Vec<PutMessage>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        // A refused message does not refuse the others.
        let checked: Vec<_> =
            messages.iter().map(|message| limits::check_put(queue, message).err()).collect();
        let wanted = messages.into_iter().zip(&checked).filter(|(_, refused)| refused.is_none());
        let wanted: Vec<_> = wanted.map(|(message, _)| message).collect();
        if wanted.is_empty() {
            return checked.into_iter().filter_map(|refused| refused.map(Err)).collect();
        }
        let answers = self.shared().put_all(Operation::PutAll, queue, &wanted).await;
        let mut answers = answers.into_iter();
        checked.into_iter().filter_map(|refused| refused.map(Err).or_else(|| answers.next())).collect()
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        let deletion = |message| Deletion { presented: Presented::of(message), expired };
        let deletions: Vec<_> = messages.iter().map(deletion).collect();
        self.shared().delete_all(Operation::DeleteAll, queue, &deletions).await
    }
}

/// The order is part of the tables, for all queues.
#[async_trait]
impl OrderedGroups for Store {
    async fn orders_groups(&self, _: &QueueName) -> Result<bool, StoreError> {
        Ok(true)
    }
}

impl Arrivals for Store {
    fn subscribe(&self, queue: &QueueName) -> Subscription {
        self.arrivals.subscribe(queue)
    }
}

impl Detach<dyn QueueStore> for Store {
    fn detached(&self) -> Arc<dyn QueueStore> {
        Arc::new(self.again())
    }
}
