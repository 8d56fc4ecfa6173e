//! Queues with a planted defect, over the queues of a sound storage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jobqueue::QueueName;
use jobqueue::storage::{
    Created, ExpiredReceipt, GetMessages, LeasedMessage, MessageRef, Metadata, Operation, PeekedMessage,
    PopReceipt, PutMessage, PutOutcome, QueueProperties, QueueStore, Received, StoreError, StoreErrorKind,
    UpdateMessage, Updated,
};

/// A defect of a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Defect {
    /// A put is acknowledged, but its message is not stored.
    ForgetsPuts,
    /// A put is certainly refused, but its message is stored.
    StoresRefused,
    /// A message that is deleted is stored again, once, as another message that comes later.
    StoresAgain,
    /// The first deletion of a message is acknowledged, but not performed.
    KeepsDeleted,
    /// The first deletion of a message is refused, as if another process had the message.
    RefusesDeletions,
    /// A leased message is handed out again, as if its visibility timeout did not count.
    HandsOutLeased,
    /// A leased message is handed out again under a smaller dequeue count.
    CountsBackwards,
    /// A renewal is acknowledged, but not performed, and any receipt is accepted.
    DoesNotRenew,
    /// A change of the text is acknowledged, but not performed, and no delivery is counted.
    ForgetsFailures,
    /// Messages are counted, but never delivered.
    Hides,
}

/// Queues with a defect, which affects queues whose name contains `word`, and messages whose text does.
#[derive(Debug, Clone)]
pub(in super::super) struct BrokenQueues {
    pub(super) inner: Arc<dyn QueueStore>,
    pub(super) defect: Defect,
    pub(super) word: &'static str,
    pub(super) seen: Arc<Mutex<Seen>>,
}

/// The messages that the broken storage has handed out.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The leased messages by id, each with the number of further deliveries that are due.
    leased: BTreeMap<String, (LeasedMessage, u32)>,
    kept: BTreeSet<String>,
}

impl BrokenQueues {
    fn concerns(&self, queue: &QueueName, text: &str) -> bool {
        !queue.as_str().contains("-poison")
            && (queue.as_str().contains(self.word) || text.contains(self.word))
    }

    fn is(&self, defect: Defect, queue: &QueueName, text: &str) -> bool {
        self.defect == defect && self.concerns(queue, text)
    }

    /// Returns a message that another process has leased, if the storage is to hand out leased messages.
    fn leased_again(&self, queue: &QueueName) -> Option<LeasedMessage> {
        let mut seen = self.seen.lock().unwrap();
        let due = seen.leased.values_mut().find(|(message, due)| {
            *due > 0 && self.concerns(queue, message.text.as_deref().unwrap_or_default())
        });
        let (message, due) = due?;
        *due -= 1;
        let mut again = message.clone();
        again.dequeue_count = match self.defect {
            Defect::CountsBackwards => 1,
            _ => again.dequeue_count + 1,
        };
        Some(again)
    }

    /// Returns the message with the newest receipt, which the inner storage expects.
    fn with_newest_receipt(&self, message: &MessageRef) -> MessageRef {
        let seen = self.seen.lock().unwrap();
        let newest = seen.leased.get(message.id.as_str()).filter(|_| self.defect == Defect::DoesNotRenew);
        newest.map_or_else(|| message.clone(), |(newest, _)| newest.message.clone())
    }
}

#[async_trait]
impl QueueStore for BrokenQueues {
    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        let text = message.text.clone();
        let outcome = self.inner.put(queue, message).await?;
        if self.is(Defect::ForgetsPuts, queue, &text) {
            self.inner.delete(queue, &outcome.message, ExpiredReceipt::Allow).await?;
        }
        if self.is(Defect::StoresRefused, queue, &text) {
            return Err(StoreError::new(StoreErrorKind::TooLarge, Operation::Put.as_str(), queue));
        }
        Ok(outcome)
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        let mut received = self.inner.get(queue, options).await?;
        for message in &mut received.messages {
            match self.defect {
                Defect::CountsBackwards => message.dequeue_count += 1,
                Defect::ForgetsFailures => message.dequeue_count = 1,
                _ => {}
            }
            let id = message.message.id.to_string();
            self.seen.lock().unwrap().leased.insert(id, (message.clone(), 1));
        }
        if matches!(self.defect, Defect::HandsOutLeased | Defect::CountsBackwards)
            && received.messages.is_empty()
        {
            received.messages.extend(self.leased_again(queue));
        }
        received
            .messages
            .retain(|message| !self.is(Defect::Hides, queue, message.text.as_deref().unwrap_or_default()));
        Ok(received)
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        mut change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        match self.defect {
            Defect::DoesNotRenew if change.text.is_none() && !change.visibility.is_zero() => {
                let next_visible = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
                return Ok(Updated::new(PopReceipt::new(message.receipt.expose()), next_visible));
            }
            Defect::ForgetsFailures => change.text = None,
            _ => {}
        }
        let updated = self.inner.update(queue, &self.with_newest_receipt(message), change).await?;
        if self.defect == Defect::DoesNotRenew
            && let Some((leased, _)) = self.seen.lock().unwrap().leased.get_mut(message.id.as_str())
        {
            leased.message.receipt = updated.receipt.clone();
        }
        Ok(updated)
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        let id = message.id.to_string();
        let keeps = [Defect::KeepsDeleted, Defect::RefusesDeletions].contains(&self.defect);
        if keeps && self.concerns(queue, "") && self.seen.lock().unwrap().kept.insert(id.clone()) {
            return match self.defect {
                Defect::KeepsDeleted => Ok(()),
                _ => Err(StoreError::new(StoreErrorKind::MessageNotFound, Operation::Delete.as_str(), queue)),
            };
        }
        let newest = self.with_newest_receipt(message);
        let deleted = self.seen.lock().unwrap().leased.remove(&id);
        self.inner.delete(queue, &newest, expired).await?;
        let text = deleted.and_then(|(message, _)| message.text.ok()).unwrap_or_default();
        if self.is(Defect::StoresAgain, queue, &text) && self.seen.lock().unwrap().kept.insert(text.clone()) {
            let again = PutMessage::new(text).with_visibility_delay(Duration::from_secs(20));
            self.inner.put(queue, again).await?;
        }
        Ok(())
    }

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        self.inner.create_queue(queue, metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.inner.delete_queue(queue).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        self.inner.list_queues(prefix).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.inner.queue_properties(queue).await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        self.inner.set_queue_metadata(queue, metadata).await
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        self.inner.peek(queue, count).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.inner.clear(queue).await
    }
}
