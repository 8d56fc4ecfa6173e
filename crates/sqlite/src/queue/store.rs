//! The queue half of the port: checks arguments, then passes the work to the writer or the reader.

use std::sync::Arc;

use async_trait::async_trait;

use super::get::Leased;
use super::{admin, count, get, index, leased, put};
use crate::metadata;
use crate::new_row::NewRow;
use crate::receipt::Presented;
use crate::store::Store;
use jobqueue_storage::rules::limits;
use jobqueue_storage::{
    Arrivals, Batches, Created, ExpiredReceipt, GetMessages, Guarantees, MessageId, MessageIndex,
    MessagePage, MessageRef, MessageState, Metadata, MetadataStore, Operation, OrderedGroups, PeekedMessage,
    PutMessage, PutOutcome, QueueName, QueuePowers, QueueProperties, QueueStore, Received, StateCounter,
    StateCounts, StoreError, Subscription, TransactionPlace, UpdateMessage, Updated,
};

/// The approximate number of bytes that an operation writes in addition to a text.
const ROW_BYTES: usize = 128;

#[async_trait]
impl QueueStore for Store {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        limits::check_metadata(Operation::CreateQueue, queue, metadata)?;
        let metadata = metadata.clone();
        self.write(Operation::CreateQueue, queue, ROW_BYTES, move |batch, name| {
            admin::create(batch, name, &metadata)
        })
        .await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.write(Operation::DeleteQueue, queue, ROW_BYTES, admin::delete).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        let prefix = prefix.to_owned();
        self.read(Operation::ListQueues, &"", move |view, _| admin::list(view, &prefix)).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.read(Operation::QueueProperties, queue, count::properties).await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        limits::check_metadata(Operation::SetQueueMetadata, queue, metadata)?;
        let metadata = metadata.clone();
        self.write(Operation::SetQueueMetadata, queue, ROW_BYTES, move |batch, name| {
            admin::set_metadata(batch, name, &metadata)
        })
        .await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        limits::check_put(queue, &message)?;
        let weight = ROW_BYTES + message.text.len();
        let message = Arc::new(message);
        let put =
            self.write(Operation::Put, queue, weight, move |batch, name| put::put(batch, name, &message));
        put.await.map(NewRow::outcome)
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        limits::check_get(queue, &options)?;
        let weight = ROW_BYTES * options.count as usize;
        let get =
            self.write(Operation::Get, queue, weight, move |batch, name| get::get(batch, name, options));
        get.await.map(Leased::received)
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        limits::check_peek(queue, count)?;
        self.read(Operation::Peek, queue, move |view, name| index::peek(view, name, count)).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        limits::check_update(queue, &change)?;
        let presented = Presented::of(message);
        let weight = ROW_BYTES + change.text.as_ref().map_or(0, String::len);
        self.write(Operation::Update, queue, weight, move |batch, name| {
            leased::update(batch, name, presented, &change)
        })
        .await
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        let presented = Presented::of(message);
        self.write(Operation::Delete, queue, ROW_BYTES, move |batch, name| {
            leased::delete(batch, Operation::Delete, name, presented, expired)
        })
        .await
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.write(Operation::Clear, queue, ROW_BYTES, admin::clear).await
    }

    /// Needs no `detach`: the threads and connections of the store serve any runtime, and no runtime can
    /// block them.
    fn powers(self: Arc<Self>) -> QueuePowers {
        QueuePowers {
            guarantees: Guarantees {
                checks_expiry: true,
                commits_together: true,
                puts_lists_whole: true,
                counts_deliveries: true,
            },
            metadata: Some(Arc::clone(&self) as _),
            counts: Some(Arc::clone(&self) as _),
            index: Some(Arc::clone(&self) as _),
            groups: Some(Arc::clone(&self) as _),
            batches: Some(Arc::clone(&self) as _),
            transaction_place: Some(TransactionPlace::File(self.path().into())),
            arrivals: Some(self),
            ..QueuePowers::default()
        }
    }
}

#[async_trait]
impl MetadataStore for Store {
    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        self.read(Operation::QueueMetadata, queue, |view, name| {
            Ok(metadata::from_text(&admin::find(view, Operation::QueueMetadata, name)?.metadata)?)
        })
        .await
    }

    async fn replace_queue_metadata(
        &self,
        queue: &QueueName,
        before: &Metadata,
        metadata: &Metadata,
    ) -> Result<(), StoreError> {
        limits::check_metadata(Operation::SetQueueMetadata, queue, metadata)?;
        let (before, metadata) = (before.clone(), metadata.clone());
        self.write(Operation::SetQueueMetadata, queue, ROW_BYTES, move |batch, name| {
            admin::replace_metadata(batch, name, &before, &metadata)
        })
        .await
    }
}

#[async_trait]
impl StateCounter for Store {
    async fn counts_by_state(&self, queue: &QueueName) -> Result<StateCounts, StoreError> {
        self.read(Operation::QueueProperties, queue, count::by_state).await
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
        let from = from.map(str::to_owned);
        self.read(Operation::Peek, queue, move |view, name| {
            index::messages(view, name, state, from.as_deref(), count)
        })
        .await
    }

    async fn make_visible(&self, queue: &QueueName, message: &MessageId) -> Result<bool, StoreError> {
        let message = message.clone();
        self.write(Operation::Update, queue, ROW_BYTES, move |batch, name| {
            index::make_visible(batch, name, &message)
        })
        .await
    }
}

#[async_trait]
impl Batches for Store {
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Arc<[PutMessage]>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        // Checked here, because the single writing thread is the bottleneck.
        let list = limits::CheckedMessages::new(queue, messages);
        let wanted = Arc::clone(&list.wanted);
        let weight = wanted.iter().map(|message| ROW_BYTES + message.text.len()).sum();
        let rows = self
            .write(Operation::PutAll, queue, weight, move |batch, name| put::put_all(batch, name, &wanted));
        list.answers(rows.await.map(|rows| rows.into_iter().map(NewRow::outcome).collect()))
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        let count = messages.len();
        let presented: Vec<_> = messages.iter().map(Presented::of).collect();
        let answers = self.write(Operation::DeleteAll, queue, ROW_BYTES * count, move |batch, name| {
            leased::delete_all(batch, name, &presented, expired)
        });
        answers.await.unwrap_or_else(|error| error.for_each(count).map(Err).collect())
    }
}

/// The order is part of the file, for all queues.
#[async_trait]
impl OrderedGroups for Store {
    async fn orders_groups(&self, _: &QueueName) -> Result<bool, StoreError> {
        Ok(true)
    }
}

impl Arrivals for Store {
    fn subscribe(&self, queue: &QueueName) -> Subscription {
        self.subscription(queue)
    }
}
