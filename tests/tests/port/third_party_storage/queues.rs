//! The eleven methods of a queue store, and what it promises beyond them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use async_trait::async_trait;
use jobqueue::QueueName;
use jobqueue::clock::Clock;
use jobqueue::storage::rules::limits;
use jobqueue::storage::{
    Created, ExpiredReceipt, GetMessages, Guarantees, LeasedMessage, MessageId, MessageRef, Metadata,
    Operation, PeekedMessage, PopReceipt, PutMessage, PutOutcome, QueuePowers, QueueProperties, QueueStore,
    Received, StoreError, StoreErrorKind as Kind, UpdateMessage, Updated,
};

/// Queues in memory, as plain as possible: every operation looks at all messages of its queue.
#[derive(Debug)]
pub struct PlainQueues {
    clock: Arc<dyn Clock>,
    queues: Mutex<BTreeMap<QueueName, Queue>>,
    /// The number of messages that a get returns beyond those that were asked for.
    unasked: usize,
}

#[derive(Debug, Default)]
struct Queue {
    metadata: Metadata,
    messages: Vec<Message>,
}

#[derive(Debug)]
struct Message {
    reference: MessageRef,
    text: String,
    inserted: SystemTime,
    expires: Option<SystemTime>,
    visible: SystemTime,
    dequeue_count: u32,
    /// The time at which the receipt of a get or an update ends.
    lease_ends: Option<SystemTime>,
}

impl PlainQueues {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, queues: Mutex::default(), unasked: 0 }
    }

    /// Returns queues that break their promise about the number of messages.
    pub fn returning_more(clock: Arc<dyn Clock>, unasked: usize) -> Self {
        Self { unasked, ..Self::new(clock) }
    }

    /// Runs `action` on a queue without its expired messages.
    fn on<T>(
        &self,
        operation: Operation,
        name: &QueueName,
        action: impl FnOnce(&mut Queue, SystemTime) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut queues = self.queues.lock().unwrap();
        let now = self.clock.now();
        let queue = queues.get_mut(name).ok_or_else(|| error(Kind::QueueNotFound, operation, name))?;
        queue.messages.retain(|message| message.expires.is_none_or(|expires| expires > now));
        action(queue, now)
    }
}

impl Queue {
    /// Returns the place of a message that `reference` may change.
    fn place(&self, reference: &MessageRef, expired: ExpiredReceipt, now: SystemTime) -> Result<usize, Kind> {
        let place = self.messages.iter().position(|message| message.reference.id == reference.id);
        let place = place.ok_or(Kind::MessageNotFound)?;
        let message = &self.messages[place];
        let has_ended = message.lease_ends.is_some_and(|end| end <= now);
        if message.reference.receipt != reference.receipt {
            Err(Kind::PopReceiptMismatch)
        } else if has_ended && expired == ExpiredReceipt::Refuse {
            Err(Kind::LeaseExpired)
        } else {
            Ok(place)
        }
    }
}

#[async_trait]
impl QueueStore for PlainQueues {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        limits::check_metadata(Operation::CreateQueue, queue, metadata)?;
        let mut queues = self.queues.lock().unwrap();
        match queues.get(queue) {
            Some(found) if found.metadata == *metadata => Ok(Created::Existed),
            Some(_) => Err(error(Kind::QueueAlreadyExists, Operation::CreateQueue, queue)),
            None => {
                queues.insert(queue.clone(), Queue { metadata: metadata.clone(), messages: Vec::new() });
                Ok(Created::New)
            }
        }
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        let removed = self.queues.lock().unwrap().remove(queue);
        removed.map(drop).ok_or_else(|| error(Kind::QueueNotFound, Operation::DeleteQueue, queue))
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        let queues = self.queues.lock().unwrap();
        Ok(queues.keys().filter(|name| name.as_str().starts_with(prefix)).cloned().collect())
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.on(Operation::QueueProperties, queue, |queue, _| {
            Ok(QueueProperties::new(queue.metadata.clone(), queue.messages.len() as u64))
        })
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        limits::check_metadata(Operation::SetQueueMetadata, queue, metadata)?;
        self.on(Operation::SetQueueMetadata, queue, |queue, _| {
            queue.metadata = metadata.clone();
            Ok(())
        })
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        limits::check_put(queue, &message)?;
        self.on(Operation::Put, queue, |queue, now| {
            let reference = MessageRef { id: MessageId::new(random()), receipt: PopReceipt::new(random()) };
            let expires = message.ttl.and_then(|ttl| now.checked_add(ttl));
            let visible = now + message.visibility_delay;
            queue.messages.push(Message {
                reference: reference.clone(),
                text: message.text,
                inserted: now,
                expires,
                visible,
                dequeue_count: 0,
                lease_ends: None,
            });
            Ok(PutOutcome::new(reference, now, visible).with_expires(expires))
        })
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        limits::check_get(queue, &options)?;
        self.on(Operation::Get, queue, |queue, now| {
            let mut leased = Vec::new();
            let visible = queue.messages.iter_mut().filter(|message| message.visible <= now);
            for message in visible.take(options.count as usize + self.unasked) {
                let until = now + options.visibility;
                message.reference.receipt = PopReceipt::new(random());
                message.dequeue_count += 1;
                (message.visible, message.lease_ends) = (until, Some(until));
                let (reference, text) = (message.reference.clone(), Ok(message.text.clone()));
                let count = message.dequeue_count;
                let lease = LeasedMessage::new(reference, text, count, message.inserted, until);
                leased.push(lease.with_expires(message.expires));
            }
            let lives = |message: &&Message| message.expires.is_none_or(|expires| expires > message.visible);
            let hidden = queue.messages.iter().filter(lives).map(|message| message.visible);
            let next = hidden.filter(|visible| *visible > now).min();
            let wait = next.and_then(|next| next.duration_since(now).ok());
            let is_full = leased.len() == options.count as usize;
            Ok(Received::new(leased).with_next_visible_in(wait.filter(|_| !is_full)))
        })
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        limits::check_peek(queue, count)?;
        self.on(Operation::Peek, queue, |queue, now| {
            let visible = queue.messages.iter().filter(|message| message.visible <= now);
            let peeked = visible.take(count as usize).map(|message| {
                let (id, text) = (message.reference.id.clone(), Ok(message.text.clone()));
                let peeked = PeekedMessage::new(id, text, message.dequeue_count, message.inserted);
                peeked.with_expires(message.expires)
            });
            Ok(peeked.collect())
        })
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        limits::check_update(queue, &change)?;
        self.on(Operation::Update, queue, |found, now| {
            let place = found.place(message, change.expired, now);
            let message = &mut found.messages[place.map_err(|kind| error(kind, Operation::Update, queue))?];
            let visible = now + change.visibility;
            limits::check_before_expiry(queue, visible, message.expires)?;
            (message.visible, message.lease_ends) = (visible, Some(visible));
            message.reference.receipt = PopReceipt::new(random());
            if let Some(text) = change.text {
                message.text = text;
            }
            Ok(Updated::new(message.reference.receipt.clone(), visible))
        })
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        self.on(Operation::Delete, queue, |found, now| {
            let place = found.place(message, expired, now);
            found.messages.remove(place.map_err(|kind| error(kind, Operation::Delete, queue))?);
            Ok(())
        })
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.on(Operation::Clear, queue, |queue, _| {
            queue.messages.clear();
            Ok(())
        })
    }

    fn powers(self: Arc<Self>) -> QueuePowers {
        let guarantees = Guarantees { checks_expiry: true, ..Guarantees::default() };
        QueuePowers { guarantees, ..QueuePowers::default() }
    }
}

fn random() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

fn error(kind: Kind, operation: Operation, queue: &QueueName) -> StoreError {
    StoreError::new(kind, operation.as_str(), queue)
}
