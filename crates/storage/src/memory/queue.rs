//! The queue half of the port over [`MessageTable`]s.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use async_trait::async_trait;

use super::clock::SteadyClock;
use super::message_table::{MessageTable, PagePlace};
use crate::name::QueueName;
use crate::rules::limits;
use crate::sync::lock;
use crate::{
    Arrivals, Batches, Created, ExpiredReceipt, GetMessages, Guarantees, MessageId, MessageIndex,
    MessagePage, MessageRef, MessageState, Metadata, MetadataStore, Notifier, Operation, OrderedGroups,
    PeekedMessage, PutMessage, PutOutcome, QueuePowers, QueueProperties, QueueStore, Received, StateCounter,
    StateCounts, StoreError, StoreErrorKind, Subscription, UpdateMessage, Updated,
};

#[derive(Debug)]
pub(super) struct MemoryQueues {
    clock: Arc<SteadyClock>,
    state: Mutex<QueuesState>,
}

#[derive(Debug, Default)]
struct QueuesState {
    queues: BTreeMap<QueueName, Queue>,
    /// The notifiers. They outlive their queues, and a subscription may exist before its queue does.
    notifiers: HashMap<QueueName, Notifier>,
}

#[derive(Debug)]
struct Queue {
    metadata: Metadata,
    message_table: MessageTable,
}

impl MemoryQueues {
    pub(super) fn new(clock: Arc<SteadyClock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, QueuesState> {
        lock(&self.state)
    }

    /// Runs `action` on a queue without its expired messages.
    fn with_queue<T>(
        &self,
        operation: Operation,
        name: &QueueName,
        action: impl FnOnce(&mut Queue, SystemTime) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut state = self.lock();
        let now = self.clock.now();
        let queue = state.queues.get_mut(name);
        let queue = queue.ok_or_else(|| error(StoreErrorKind::QueueNotFound, operation, name))?;
        queue.message_table.forget_expired(now);
        action(queue, now)
    }

    fn notify(&self, name: &QueueName) {
        if let Some(notifier) = self.lock().notifiers.get(name) {
            notifier.notify();
        }
    }

    fn put_now(&self, name: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        limits::check_put(name, &message)?;
        let outcome =
            self.with_queue(Operation::Put, name, |queue, now| Ok(queue.message_table.put(now, message)))?;
        // A delayed message notifies too: it may become visible earlier than the waiting callers expect.
        self.notify(name);
        Ok(outcome)
    }

    fn delete_now(
        &self,
        name: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        let is_of_group = self.with_queue(Operation::Delete, name, |queue, now| {
            let authorized = queue.message_table.authorize(now, message, expired);
            authorized.map_err(|kind| error(kind, Operation::Delete, name))?;
            Ok(queue.message_table.delete(message))
        })?;
        if is_of_group {
            self.notify(name);
        }
        Ok(())
    }
}

#[async_trait]
impl QueueStore for MemoryQueues {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        limits::check_metadata(Operation::CreateQueue, queue, metadata)?;
        let mut state = self.lock();
        match state.queues.get(queue) {
            Some(existing) if existing.metadata == *metadata => Ok(Created::Existed),
            Some(_) => Err(error(StoreErrorKind::QueueAlreadyExists, Operation::CreateQueue, queue)),
            None => {
                let message_table = MessageTable::new(self.clock.runtime().clone());
                let fresh = Queue { metadata: metadata.clone(), message_table };
                state.queues.insert(queue.clone(), fresh);
                Ok(Created::New)
            }
        }
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        let removed = self.lock().queues.remove(queue);
        removed.map(drop).ok_or_else(|| error(StoreErrorKind::QueueNotFound, Operation::DeleteQueue, queue))
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        let state = self.lock();
        Ok(state.queues.keys().filter(|name| name.as_str().starts_with(prefix)).cloned().collect())
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.with_queue(Operation::QueueProperties, queue, |queue, now| {
            Ok(QueueProperties::new(queue.metadata.clone(), queue.message_table.len() as u64).with_now(now))
        })
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        limits::check_metadata(Operation::SetQueueMetadata, queue, metadata)?;
        self.with_queue(Operation::SetQueueMetadata, queue, |queue, _| {
            queue.metadata = metadata.clone();
            Ok(())
        })
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        self.put_now(queue, message)
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        limits::check_get(queue, &options)?;
        self.with_queue(Operation::Get, queue, |queue, now| {
            let messages = queue.message_table.get(now, options.count, options.visibility);
            let enough = messages.len() == options.count as usize;
            let next = if enough { None } else { queue.message_table.next_visible_in(now) };
            Ok(Received::new(messages).with_next_visible_in(next))
        })
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        limits::check_peek(queue, count)?;
        self.with_queue(Operation::Peek, queue, |queue, now| Ok(queue.message_table.peek(now, count)))
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        limits::check_update(queue, &change)?;
        let (updated, earlier) = self.with_queue(Operation::Update, queue, |found, now| {
            let refuse = |kind| error(kind, Operation::Update, queue);
            let expires = found.message_table.authorize(now, message, change.expired).map_err(refuse)?;
            let next_visible = now + change.visibility;
            limits::check_before_expiry(queue, next_visible, expires)?;
            // Waiting callers would otherwise sleep until the former time.
            let earlier = found.message_table.hidden_until(message).is_some_and(|until| next_visible < until);
            let updated = found
                .message_table
                .update(message, next_visible, change.text, change.ends_lease)
                .map_err(refuse)?;
            Ok((updated, earlier || next_visible <= now))
        })?;
        if earlier {
            self.notify(queue);
        }
        Ok(updated)
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        self.delete_now(queue, message, expired)
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.with_queue(Operation::Clear, queue, |queue, _| {
            queue.message_table = MessageTable::new(self.clock.runtime().clone());
            Ok(())
        })
    }

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
            arrivals: Some(self),
            ..QueuePowers::default()
        }
    }
}

#[async_trait]
impl MetadataStore for MemoryQueues {
    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        self.with_queue(Operation::QueueMetadata, queue, |queue, _| Ok(queue.metadata.clone()))
    }

    async fn replace_queue_metadata(
        &self,
        queue: &QueueName,
        before: &Metadata,
        metadata: &Metadata,
    ) -> Result<(), StoreError> {
        let operation = Operation::SetQueueMetadata;
        limits::check_metadata(operation, queue, metadata)?;
        self.with_queue(operation, queue, |found, _| {
            if found.metadata != *before {
                return Err(error(StoreErrorKind::ConditionNotMet, operation, queue));
            }
            found.metadata = metadata.clone();
            Ok(())
        })
    }
}

#[async_trait]
impl MessageIndex for MemoryQueues {
    async fn messages(
        &self,
        queue: &QueueName,
        state: MessageState,
        from: Option<&str>,
        count: u32,
    ) -> Result<MessagePage, StoreError> {
        limits::check_page(queue, count)?;
        let behind = from.map(|from| {
            PagePlace::parse(from).ok_or_else(|| error(StoreErrorKind::InvalidInput, Operation::Peek, queue))
        });
        let behind = behind.transpose()?;
        self.with_queue(Operation::Peek, queue, |queue, now| {
            Ok(queue.message_table.page(now, state, behind, count as usize))
        })
    }

    async fn make_visible(&self, queue: &QueueName, message: &MessageId) -> Result<bool, StoreError> {
        let is_visible = self.with_queue(Operation::Update, queue, |queue, now| {
            Ok(queue.message_table.make_visible(now, message))
        })?;
        if is_visible {
            self.notify(queue);
        }
        Ok(is_visible)
    }
}

#[async_trait]
impl StateCounter for MemoryQueues {
    async fn counts_by_state(&self, queue: &QueueName) -> Result<StateCounts, StoreError> {
        self.with_queue(Operation::QueueProperties, queue, |queue, now| Ok(queue.message_table.counts(now)))
    }
}

#[async_trait]
impl OrderedGroups for MemoryQueues {
    async fn orders_groups(&self, _: &QueueName) -> Result<bool, StoreError> {
        Ok(true)
    }
}

#[async_trait]
impl Batches for MemoryQueues {
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Arc<[PutMessage]>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        messages.iter().map(|message| self.put_now(queue, message.clone())).collect()
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        messages.iter().map(|message| self.delete_now(queue, message, expired)).collect()
    }
}

impl Arrivals for MemoryQueues {
    fn subscribe(&self, queue: &QueueName) -> Subscription {
        self.lock().notifiers.entry(queue.clone()).or_default().subscribe()
    }
}

fn error(kind: StoreErrorKind, operation: Operation, queue: &QueueName) -> StoreError {
    StoreError::new(kind, operation.as_str(), queue)
}
