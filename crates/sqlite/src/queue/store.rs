//! Implements the queue half of the port: checks arguments, then passes the work to the writer or the reader.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use super::get::Leased;
use super::put::NewRow;
use super::{admin, delete, get, peek, put, update};
use crate::name::QueueName;
use crate::settings::metadata::Metadata;
use crate::sqlite::error::Subject;
use crate::sqlite::receipt::Presented;
use crate::sqlite::store::Store;
use crate::storage::rules::limits;
use crate::storage::{
    Created, ExpiredReceipt, GetMessages, MessageRef, Operation, PeekedMessage, PutMessage, PutOutcome,
    QueueProperties, QueueStore, Received, StateCounts, StoreError, Subscription, UpdateMessage, Updated,
};

/// The approximate number of bytes that an operation writes besides a text.
const ROW: usize = 128;

#[async_trait]
impl QueueStore for Store {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        limits::check_metadata(Operation::CreateQueue, queue, metadata)?;
        let (name, metadata) = (queue.clone(), metadata.clone());
        self.write(Operation::CreateQueue, subject(queue), ROW, move |batch| {
            admin::create(batch, &name, &metadata)
        })
        .await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        let name = queue.clone();
        self.write(Operation::DeleteQueue, subject(queue), ROW, move |batch| admin::delete(batch, &name))
            .await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        let prefix = prefix.to_owned();
        self.read(Operation::ListQueues, Subject::Storage, move |view| admin::list(view, &prefix)).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        let name = queue.clone();
        self.read(Operation::QueueProperties, subject(queue), move |view| admin::properties(view, &name))
            .await
    }

    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        let name = queue.clone();
        self.read(Operation::QueueMetadata, subject(queue), move |view| admin::metadata(view, &name)).await
    }

    async fn counts_by_state(&self, queue: &QueueName) -> Result<Option<StateCounts>, StoreError> {
        let name = queue.clone();
        self.read(Operation::QueueProperties, subject(queue), move |view| {
            admin::counts(view, &name).map(Some)
        })
        .await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        limits::check_metadata(Operation::SetQueueMetadata, queue, metadata)?;
        let (name, metadata) = (queue.clone(), metadata.clone());
        self.write(Operation::SetQueueMetadata, subject(queue), ROW, move |batch| {
            admin::set_metadata(batch, &name, &metadata)
        })
        .await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        limits::check_put(queue, &message)?;
        let name = queue.clone();
        let weight = ROW + message.text.len();
        let message = Arc::new(message);
        let row =
            self.write(Operation::Put, subject(queue), weight, move |batch| put::put(batch, &name, &message));
        row.await.map(NewRow::outcome)
    }

    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Vec<PutMessage>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let count = messages.len();
        let name = queue.clone();
        // Checked here, since the single writing thread is the bottleneck. A refused message does not refuse the
        // others.
        let checked: Vec<_> =
            messages.iter().map(|message| limits::check_put(queue, message).err()).collect();
        let wanted: Vec<bool> = checked.iter().map(Option::is_none).collect();
        let weight = messages.iter().map(|message| ROW + message.text.len()).sum();
        let answers = self.write(Operation::PutAll, subject(queue), weight, move |batch| {
            let wanted =
                messages.iter().zip(&wanted).filter_map(|(message, wanted)| wanted.then_some(message));
            put::put_all(batch, &name, wanted)
        });
        let stored = count - checked.iter().flatten().count();
        let answers = match answers.await {
            Ok(rows) => rows.into_iter().map(NewRow::outcome).map(Ok).collect(),
            Err(error) => error.for_each(stored).map(Err).collect::<Vec<_>>(),
        };
        let mut answers = answers.into_iter();
        checked.into_iter().filter_map(|refused| refused.map(Err).or_else(|| answers.next())).collect()
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        limits::check_get(queue, &options)?;
        let name = queue.clone();
        let weight = ROW * options.count as usize;
        let leased =
            self.write(Operation::Get, subject(queue), weight, move |batch| get::get(batch, &name, options));
        leased.await.map(Leased::received)
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        limits::check_peek(queue, count)?;
        let name = queue.clone();
        self.read(Operation::Peek, subject(queue), move |view| peek::peek(view, &name, count)).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        limits::check_update(queue, &change)?;
        let (name, presented) = (queue.clone(), Presented::of(message));
        let weight = ROW + change.text.as_ref().map_or(0, String::len);
        self.write(Operation::Update, subject(queue), weight, move |batch| {
            update::update(batch, &name, presented, &change)
        })
        .await
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        let (name, presented) = (queue.clone(), Presented::of(message));
        self.write(Operation::Delete, subject(queue), ROW, move |batch| {
            delete::delete(batch, Operation::Delete, &name, presented, expired)
        })
        .await
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        let count = messages.len();
        let name = queue.clone();
        let presented: Vec<_> = messages.iter().map(Presented::of).collect();
        let answers = self.write(Operation::DeleteAll, subject(queue), ROW * count, move |batch| {
            delete::delete_all(batch, &name, &presented, expired)
        });
        answers.await.unwrap_or_else(|error| error.for_each(count).map(Err).collect())
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        let name = queue.clone();
        self.write(Operation::Clear, subject(queue), ROW, move |batch| admin::clear(batch, &name)).await
    }

    fn subscribe(&self, queue: &QueueName) -> Option<Subscription> {
        Some(self.subscription(queue))
    }

    fn checks_expiry(&self) -> bool {
        true
    }

    fn commits_together(&self) -> bool {
        true
    }

    fn file(&self) -> Option<&Path> {
        Some(self.path())
    }

    /// Returns this store: its threads and connections serve any runtime, and no runtime can block them.
    fn detached(self: Arc<Self>) -> Arc<dyn QueueStore> {
        self
    }
}

fn subject(queue: &QueueName) -> Subject {
    Subject::Queue(queue.clone())
}
