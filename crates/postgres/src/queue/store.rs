//! Implements the queue half of the port: checks arguments, then runs a statement.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::{Instant, sleep_until};

use super::leased;
use crate::combine::runtime_ended;
use crate::database::Call;
use crate::held::{self, held_up, next_attempt};
use crate::receipt::{Presented, ReceiptUse};
use crate::store::{DeleteLane, PutLane, Store};
use jobqueue_storage::rules::limits;
use jobqueue_storage::{
    Arrivals, Batches, Created, Detach, ExpiredReceipt, GetMessages, Guarantees, MessageRef, Metadata,
    Operation, OrderedGroups, PeekedMessage, PutMessage, PutOutcome, QueueName, QueuePowers, QueueProperties,
    QueueStore, Received, StoreError, Subscription, UpdateMessage, Updated,
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
        let (call, end) = (Call::new(Operation::Put, queue), self.end());
        let (mut lane, mut message) = (PutLane::of(&message), message);
        loop {
            let (runner, name, next) = (self.batch_runner(), (queue.clone(), lane), next_attempt().min(end));
            let permits = matches!(name.1, PutLane::HeldUp(_)).then(|| Arc::clone(&self.held.puts));
            let run = {
                let (queue, lane) = name.clone();
                move |messages| runner.clone().put_together(queue.clone(), lane.clone(), messages)
            };
            let is_held_up = permits.is_some();
            match self.puts.submit(call, &name, message, end, permits, run).await? {
                Ok(outcome) => return Ok(outcome),
                Err(held) => message = held,
            }
            if is_held_up {
                sleep_until(next).await;
            }
            if Instant::now() >= end {
                return Err(held_up(call));
            }
            lane = name.1.after(&message);
        }
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        limits::check_get(queue, &options)?;
        self.lease(queue, options).await
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        limits::check_peek(queue, count)?;
        self.peek_messages(queue, count).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        limits::check_update(queue, &change)?;
        let (updated, is_earlier) = leased::update(self, queue, message, &change).await?;
        // Waiting callers would otherwise wake only at the former time.
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
        let mut deletion = ReceiptUse { presented: Presented::of(message), expired };
        let (call, end, mut pauses) = (Call::new(Operation::Delete, queue), self.end(), held::pauses());
        let mut lane = DeleteLane { queue: queue.clone(), is_held_up: false };
        loop {
            let (runner, name) = (self.batch_runner(), queue.clone());
            let run = move |deletions| runner.clone().delete_together(name.clone(), deletions);
            match self.deletions.submit(call, &lane, deletion, end, None, run).await? {
                Ok(()) => return Ok(()),
                Err(held) => deletion = held,
            }
            let next = Instant::now() + pauses.next().unwrap_or_default();
            if next >= end {
                return Err(held_up(call));
            }
            sleep_until(next).await;
            lane.is_held_up = true;
        }
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.empty(queue).await
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
            arrivals: self.arrivals.is_listening().then(|| Arc::clone(&self) as _),
            upkeep: Some(Arc::clone(&self) as _),
            transaction_place: Some(self.transaction_place()),
            detach: Some(self),
            ..QueuePowers::default()
        }
    }
}

impl Store {
    /// Wakes the subscribers of a queue in this process and in others.
    pub(super) fn announce(&self, queue: &QueueName) {
        self.arrivals.announce(&self.database, &self.runtime, queue);
    }

    /// Returns the time at which an operation that begins now is given up.
    fn end(&self) -> Instant {
        Instant::now() + self.database.settings().timeout
    }
}

/// Lists are put and deleted by tasks, which continue and announce their changes even if the caller gives up.
#[async_trait]
impl Batches for Store {
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Arc<[PutMessage]>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let list = limits::CheckedMessages::new(queue, messages);
        if list.wanted.is_empty() {
            return list.answers(Ok(Vec::new()));
        }
        let (call, runner) = (Call::new(Operation::PutAll, queue), self.batch_runner());
        let attempt =
            |is_patient| runner.clone().put_list(queue.clone(), Arc::clone(&list.wanted), is_patient);
        let put = held::repeat(&self.runtime, &self.held.puts, call, self.end(), attempt).await;
        list.answers(put)
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        let deletion = |message| ReceiptUse { presented: Presented::of(message), expired };
        let deletions: Vec<_> = messages.iter().map(deletion).collect();
        let (call, count) = (Call::new(Operation::DeleteAll, queue), deletions.len());
        let task = self.runtime.spawn(self.batch_runner().delete_all(queue.clone(), deletions));
        task.await.unwrap_or_else(|_| runtime_ended(call).for_each(count).map(Err).collect())
    }
}

/// The tables keep the order of groups, for all queues.
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
        Arc::new(self.with_own_connections())
    }
}
