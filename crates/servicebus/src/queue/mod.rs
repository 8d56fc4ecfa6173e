//! Implements the queue half of the port: opens links, and dispatches to the files of the operations.

mod advice;
mod body;
mod count;
mod dead_letter;
mod described;
mod facts;
mod get;
mod in_session;
mod letter;
mod listing;
mod lost_locks;
mod manage;
mod message;
mod put;
mod queues;
mod receipt;
mod replaced;
mod requires_session;
mod service_time;
mod sweep;
mod update;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures_util::StreamExt as _;
use tokio::time::Instant;

use self::count::Count;
use self::facts::{Facts, SavesTexts};
use self::receipt::Receipt;
use self::requires_session::{IsPartitioned, RequiresSession};
use super::amqp::requests::Node;
use super::amqp::sender::SendLink;
use super::amqp::{Links, OpenLink};
use super::cache::SingleFlightCache;
use super::clock::ClockReading;
use super::entity::Entities;
use super::error::Fault;
use super::held::HeldMessages;
use super::place::Place;
use super::session::Pool;
use super::texts::QueueBlobs;
use jobqueue_storage::{
    Advice, Arrivals, Batches, Created, DeliveriesStopped, Detach, ExpiredReceipt, GetMessages, Guarantees,
    LeaseLinks, LeaseRevoked, LogPage, LoggedState, MessageLog, MessageRef, Metadata, Operation,
    OrderedGroups, PeekedMessage, PutMessage, PutOutcome, QueueName, QueuePowers, QueueProperties,
    QueueStore, Received, StoreError, Subscription, SweepLeftovers, SweptLeftovers, UpdateMessage, Updated,
    Upkeep, WarmUp, put_each,
};

/// The number of concurrent requests of `put_all` and of `delete_all`. They share a link, and none waits for
/// another.
const CONCURRENT_REQUESTS: usize = 64;

/// The queues of a namespace. Clones share everything.
#[derive(Debug, Clone)]
pub(super) struct ServiceBusQueues {
    links: Arc<Links>,
    entities: Arc<Entities>,
    queue_blobs: QueueBlobs,
    held: Arc<HeldMessages>,
    /// By queue name; shared with detached handles.
    facts: Arc<Mutex<HashMap<String, Facts>>>,
    /// True for the queues that require sessions.
    sessions: Arc<SingleFlightCache<RequiresSession>>,
    /// True for the partitioned queues.
    partitioned: Arc<SingleFlightCache<IsPartitioned>>,
    saves_texts: Arc<SingleFlightCache<SavesTexts>>,
    pools: Arc<Mutex<HashMap<QueueName, Arc<Pool>>>>,
    /// Held during the pauses of walks, so that all walks of a process share their credits.
    pace: Arc<tokio::sync::Mutex<()>>,
    /// The message counts that were made by peeking.
    counts: Arc<SingleFlightCache<Count>>,
    /// The attempts to read the service's time, under a single key for all queues.
    clock_readings: Arc<SingleFlightCache<ClockReading>>,
}

impl ServiceBusQueues {
    pub(super) fn new(links: Links, entities: Arc<Entities>, queue_blobs: QueueBlobs) -> Self {
        let clock_readings = SingleFlightCache::default();
        // The first request, for the settings of a queue, shows the time.
        clock_readings.set(service_time::KEY, ClockReading::ended(Arc::clone(&links.clock)));
        Self {
            links: Arc::new(links),
            entities,
            queue_blobs,
            held: Arc::default(),
            facts: Arc::default(),
            sessions: Arc::default(),
            partitioned: Arc::default(),
            saves_texts: Arc::default(),
            pools: Arc::default(),
            pace: Arc::default(),
            counts: Arc::default(),
            clock_readings: Arc::new(clock_readings),
        }
    }

    async fn node(&self, queue: &QueueName) -> Result<Node, Fault> {
        self.links.node(&Place::of(queue).address()).await
    }

    async fn sender(&self, queue: &QueueName) -> Result<SendLink, Fault> {
        self.links.sender(&Place::of(queue).address()).await
    }

    async fn receiver(&self, queue: &QueueName) -> Result<OpenLink, Fault> {
        let link = self.links.receiver(&Place::of(queue).address()).await?;
        if link.is_new() {
            lost_locks::watch(self, queue, &link);
            self.note_no_sessions(queue);
        }
        Ok(link)
    }

    /// Wakes the subscribers of the queue in this process.
    fn notify(&self, queue: &QueueName) {
        self.links.arrivals(&Place::of(queue).address()).notify();
    }
}

#[async_trait]
impl QueueStore for ServiceBusQueues {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        queues::create(self, queue, metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        queues::delete(self, queue).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        queues::list(self, prefix).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        queues::properties(self, queue).await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        queues::set_metadata(self, queue, metadata).await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        put::put(self, queue, &message).await
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        get::get(self, queue, options).await
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        get::peek(self, queue, count).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        update::update(self, queue, message, &change).await
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        _late: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        update::delete(self, queue, message).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        queues::clear(self, queue).await
    }

    fn powers(self: Arc<Self>) -> QueuePowers {
        QueuePowers {
            guarantees: Guarantees { checks_expiry: true, ..Guarantees::default() },
            peek_reach: Some(get::PEEK_REACH),
            metadata: Some(Arc::clone(&self) as _),
            log: Some(Arc::clone(&self) as _),
            batches: Some(Arc::clone(&self) as _),
            groups: Some(Arc::clone(&self) as _),
            dead_letters: Some(Arc::clone(&self) as _),
            arrivals: Some(Arc::clone(&self) as _),
            links: Some(Arc::clone(&self) as _),
            upkeep: Some(Arc::clone(&self) as _),
            permissions: Some(Arc::clone(&self) as _),
            detach: Some(self),
            ..QueuePowers::default()
        }
    }
}

#[async_trait]
impl Batches for ServiceBusQueues {
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Arc<[PutMessage]>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let began = Instant::now();
        put::prepare(self, queue, &messages).await;
        let put = |message| self.put(queue, message);
        put_each(queue, messages, CONCURRENT_REQUESTS, began, put).await
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        _late: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        futures_util::stream::iter(messages)
            .map(|message| async move { update::delete(self, queue, &message).await })
            .buffered(CONCURRENT_REQUESTS)
            .collect()
            .await
    }
}

#[async_trait]
impl MessageLog for ServiceBusQueues {
    async fn logged(
        &self,
        queue: &QueueName,
        state: Option<LoggedState>,
        from: Option<&str>,
        count: u32,
    ) -> Result<LogPage, StoreError> {
        listing::page(self, queue, state, from, count).await
    }
}

#[async_trait]
impl OrderedGroups for ServiceBusQueues {
    async fn orders_groups(&self, queue: &QueueName) -> Result<bool, StoreError> {
        self.requires_session(queue, Operation::QueueProperties).await
    }
}

impl Arrivals for ServiceBusQueues {
    /// Wakes on an arrival: after a get that found nothing, the receive link keeps its credit at the service
    /// while there is a subscription. Also wakes when this process has put or released a message.
    fn subscribe(&self, queue: &QueueName) -> Subscription {
        self.links.arrivals(&Place::of(queue).address()).subscribe()
    }

    fn stop_deliveries(&self, queue: &QueueName) -> Option<DeliveriesStopped> {
        let address = Place::of(queue).address();
        let (link, arrivals) = (self.links.present_receiver(&address)?, self.links.arrivals(&address));
        Some(Box::pin(async move {
            if !arrivals.has_subscribers() {
                link.drain().await;
            }
        }))
    }
}

impl LeaseLinks for ServiceBusQueues {
    fn lease_revoked(&self, queue: &QueueName, message: &MessageRef) -> Option<LeaseRevoked> {
        let Receipt::Lock(token) = Receipt::read(&message.receipt)? else { return None };
        let held = self.held.get(queue, &message.id, token)?;
        let lost = held.session.as_ref().map_or(&held.lost, |session| session.lost());
        Some(Box::pin(lost.clone().cancelled_owned()))
    }

    fn warm_up(&self, queue: &QueueName) -> Option<WarmUp> {
        let address = Place::of(queue).address().to_string();
        if self.links.has_node(&address) {
            return None;
        }
        let links = Arc::clone(&self.links);
        // The error is dropped: the renewal that needs the node fails with it again.
        Some(Box::pin(async move { drop(links.node(&address).await) }))
    }
}

#[async_trait]
impl Upkeep for ServiceBusQueues {
    async fn sweep(&self, leftovers: SweepLeftovers) -> Result<SweptLeftovers, StoreError> {
        sweep::sweep(self, leftovers).await
    }

    async fn advice(&self, queue: &QueueName) -> Result<Vec<Advice>, StoreError> {
        advice::advice(self, queue).await
    }
}

impl Detach<dyn QueueStore> for ServiceBusQueues {
    fn detached(&self) -> Arc<dyn QueueStore> {
        let blobs = &self.queue_blobs.blobs;
        let detach = Arc::clone(blobs).powers().detach;
        Arc::new(Self {
            links: Arc::new(self.links.detached()),
            entities: Arc::clone(&self.entities),
            queue_blobs: self
                .queue_blobs
                .with_store(detach.map_or_else(|| Arc::clone(blobs), |detach| detach.detached())),
            held: Arc::clone(&self.held),
            facts: Arc::clone(&self.facts),
            sessions: Arc::clone(&self.sessions),
            partitioned: Arc::clone(&self.partitioned),
            saves_texts: Arc::clone(&self.saves_texts),
            pools: Arc::default(),
            pace: Arc::clone(&self.pace),
            counts: Arc::clone(&self.counts),
            clock_readings: Arc::clone(&self.clock_readings),
        })
    }
}
