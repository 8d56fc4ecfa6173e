//! The queues of a wrong adapter.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use jobqueue::storage::{
    Arrivals, Batches, Created, ExpiredReceipt, GetMessages, MessageId, MessageIndex, MessagePage,
    MessageRef, MessageState, Metadata, MetadataStore, OrderedGroups, PeekedMessage, PutMessage, PutOutcome,
    QueueName, QueuePowers, QueueProperties, QueueStore, Received, StateCounter, StateCounts, StoreError,
    StoreErrorKind, Subscription, UpdateMessage, Updated,
};

use crate::{Mistake, Wrong, locked};

/// A delay and a lease that are longer than a promise waits.
const LONG: Duration = Duration::from_secs(60);

fn refusal(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "test", "wrong")
}

impl Wrong {
    /// Puts a message without a notification.
    async fn store(&self, queue: &QueueName, mut message: PutMessage) -> Result<PutOutcome, StoreError> {
        match self.mistake {
            Mistake::ForgetsGroups => message.group = None,
            Mistake::MixesGroupsOfQueues => {
                let group = message.group.clone().unwrap_or_default();
                if locked(&self.groups).entry(group).or_insert_with(|| queue.clone()) != queue {
                    message.visibility_delay = LONG;
                }
            }
            Mistake::PutsWithoutDelay => message.visibility_delay = Duration::ZERO,
            Mistake::PutsForEver => message.ttl = None,
            Mistake::PutsTwice => drop(self.queues().put(queue, message.clone()).await?),
            Mistake::TrimsTexts => message.text = message.text.trim().to_owned(),
            Mistake::CutsDelays => {
                message.visibility_delay = Duration::from_secs(message.visibility_delay.as_secs());
            }
            _ => {}
        }
        let mut put = self.queues().put(queue, message).await?;
        self.note(&put.message);
        if self.has(Mistake::TellsNoExpiry) {
            put.expires = None;
        }
        Ok(put)
    }

    fn notify_unless(&self, mistake: Mistake) {
        if !self.has(mistake) {
            self.arrivals.notify();
        }
    }
}

#[async_trait]
impl QueueStore for Wrong {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        let nothing = Metadata::new();
        let forgets = self.has(Mistake::ForgetsMetadataOfNewQueues);
        let created = self.queues().create_queue(queue, if forgets { &nothing } else { metadata }).await;
        match (self.mistake, created) {
            (Mistake::MakesQueuesTwice, Ok(_)) => Ok(Created::New),
            (Mistake::TakesOtherMetadata, Err(_)) => Ok(Created::Existed),
            (_, created) => created,
        }
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        match self.mistake {
            Mistake::KeepsDeletedQueues => Ok(()),
            _ => self.queues().delete_queue(queue).await,
        }
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        let prefix = if self.has(Mistake::ListsWithoutPrefix) { "" } else { prefix };
        let mut queues = self.queues().list_queues(prefix).await?;
        if self.has(Mistake::ListsBackwards) {
            queues.reverse();
        }
        Ok(queues)
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        let mut properties = self.queues().queue_properties(queue).await?;
        if self.has(Mistake::CountsVisibleOnly) {
            properties.approximate_count = self.queues().peek(queue, 32).await?.len() as u64;
        }
        if self.has(Mistake::SubtractsExpiredTwice) {
            properties.approximate_count = properties.approximate_count.saturating_sub(40);
        }
        if self.has(Mistake::TellsTimesOf1970) {
            properties.now = Some(SystemTime::UNIX_EPOCH + LONG);
        }
        Ok(properties)
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        let mut metadata = metadata.clone();
        if self.has(Mistake::MergesMetadata) {
            let former = self.queues().queue_properties(queue).await?.metadata;
            let kept = former.iter().filter(|(name, _)| metadata.get(name).is_none());
            metadata = kept.fold(metadata.clone(), |all, (name, value)| all.with(name, value));
        }
        self.queues().set_queue_metadata(queue, &metadata).await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        let is_delayed = !message.visibility_delay.is_zero();
        let put = self.store(queue, message).await?;
        self.notify_unless(match is_delayed {
            true => Mistake::NotifiesOfNoDelayedPut,
            false => Mistake::NotifiesOfNoPut,
        });
        Ok(put)
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        let options = match self.mistake {
            Mistake::GivesTooMany => GetMessages::new(32, options.visibility),
            Mistake::LeasesForAMoment => GetMessages::new(options.count, Duration::from_secs(1)),
            _ => options,
        };
        let mut received = self.queues().get(queue, options).await?;
        if self.has(Mistake::NeverTellsOfTheNext) {
            received.next_visible_in = None;
        }
        for leased in &mut received.messages {
            self.note(&leased.message);
            locked(&self.leased).insert(leased.message.id.clone());
            if self.has(Mistake::CountsReleasesOnly) {
                leased.dequeue_count = self.count(&leased.message.id);
            }
        }
        Ok(received)
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        let count = if self.has(Mistake::PeeksAtTooMany) { 32 } else { count };
        let mut peeked = self.queues().peek(queue, count).await?;
        if self.has(Mistake::PeeksWithoutCount) {
            peeked.iter_mut().for_each(|message| message.dequeue_count = 0);
        }
        Ok(peeked)
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        mut change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        let is_leased = locked(&self.leased).contains(&message.id);
        let mut message = message.clone();
        match self.mistake {
            Mistake::RefusesUpdates => return Err(refusal(StoreErrorKind::Unauthorized)),
            Mistake::UpdatesById => {
                change.expired = ExpiredReceipt::Allow;
                message = self.by_id(&message);
            }
            Mistake::DropsNewTexts => change.text = None,
            Mistake::ErasesTexts => change.text = change.text.or(Some(String::new())),
            Mistake::HidesLeasedBeyondExpiry if is_leased => change.visibility = change.visibility.min(LONG),
            Mistake::NeverReleases => change.visibility = change.visibility.max(LONG),
            _ => {}
        }
        if let Some((_, counts)) = locked(&self.counted).get_mut(&message.id) {
            *counts = change.visibility.is_zero();
        }
        let is_release = change.visibility.is_zero();
        let mut updated = self.queues().update(queue, &message, change).await?;
        self.note(&MessageRef { receipt: updated.receipt.clone(), ..message.clone() });
        match self.mistake {
            Mistake::TellsOldReceipt => updated.receipt = message.receipt,
            Mistake::TellsTimesOfPutsOnly if is_leased => updated.next_visible = SystemTime::UNIX_EPOCH,
            _ => {}
        }
        self.notify_unless(match is_release {
            true => Mistake::NotifiesOfNoRelease,
            false => Mistake::NotifiesOfNoShorterLease,
        });
        Ok(updated)
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        let deleted = match self.mistake {
            Mistake::IgnoresDeletions => return Ok(()),
            Mistake::DeletesById => {
                self.queues().delete(queue, &self.by_id(message), ExpiredReceipt::Allow).await
            }
            _ => self.queues().delete(queue, message, expired).await,
        };
        self.notify_unless(Mistake::NotifiesOfNoDeletion);
        if self.has(Mistake::DeletesWhatIsGone) { Ok(()) } else { deleted }
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        match self.mistake {
            Mistake::ClearsNothing => Ok(()),
            _ => self.queues().clear(queue).await,
        }
    }

    fn powers(self: Arc<Self>) -> QueuePowers {
        QueuePowers {
            guarantees: self.below.queues().guarantees(),
            metadata: Some(Arc::clone(&self) as _),
            counts: Some(Arc::clone(&self) as _),
            groups: Some(Arc::clone(&self) as _),
            index: Some(Arc::clone(&self) as _),
            arrivals: Some(Arc::clone(&self) as _),
            batches: Some(self),
            ..QueuePowers::default()
        }
    }
}

#[async_trait]
impl MetadataStore for Wrong {
    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        self.below.queues().queue_metadata(queue).await
    }

    async fn replace_queue_metadata(
        &self,
        queue: &QueueName,
        before: &Metadata,
        metadata: &Metadata,
    ) -> Result<(), StoreError> {
        if self.has(Mistake::ReplacesAnyMetadata) {
            return self.set_queue_metadata(queue, metadata).await;
        }
        if self.has(Mistake::ReplacesInTwoSteps) && self.queue_metadata(queue).await? == *before {
            tokio::task::yield_now().await;
            return self.set_queue_metadata(queue, metadata).await;
        }
        self.below.queues().replace_queue_metadata(queue, before, metadata).await
    }
}

#[async_trait]
impl StateCounter for Wrong {
    async fn counts_by_state(&self, queue: &QueueName) -> Result<StateCounts, StoreError> {
        let mut counts = self.below.queues().counts_by_state(queue).await?.unwrap_or_default();
        if self.has(Mistake::CountsDelayedAsWaiting) {
            counts.waiting += std::mem::take(&mut counts.delayed);
        }
        Ok(counts)
    }
}

#[async_trait]
impl OrderedGroups for Wrong {
    async fn orders_groups(&self, queue: &QueueName) -> Result<bool, StoreError> {
        self.below.queues().orders_groups(queue).await
    }
}

impl Arrivals for Wrong {
    /// Returns a subscription that is notified at once, as a storage may do.
    fn subscribe(&self, _: &QueueName) -> Subscription {
        let subscription = self.arrivals.subscribe();
        self.arrivals.notify();
        subscription
    }
}

#[async_trait]
impl MessageIndex for Wrong {
    async fn messages(
        &self,
        queue: &QueueName,
        state: MessageState,
        from: Option<&str>,
        count: u32,
    ) -> Result<MessagePage, StoreError> {
        let state = if self.has(Mistake::ShowsWaitingForAll) { MessageState::Waiting } else { state };
        let Some(index) = &self.below.queues().powers().index else {
            return Err(refusal(StoreErrorKind::Unsupported));
        };
        match (self.mistake, index.messages(queue, state, from, count).await) {
            (Mistake::ShowsFirstPageOnly, Ok(page)) => Ok(MessagePage::new(page.messages)),
            (Mistake::TakesWrongPages, Err(_)) => Ok(MessagePage::default()),
            (Mistake::FailsAtWrongPages, Err(_)) => Err(refusal(StoreErrorKind::Unavailable)),
            (_, page) => page,
        }
    }

    async fn make_visible(&self, queue: &QueueName, message: &MessageId) -> Result<bool, StoreError> {
        let Some(index) = &self.below.queues().powers().index else { return Ok(false) };
        let made = index.make_visible(queue, message).await?;
        Ok(made || self.has(Mistake::MakesAllVisible))
    }
}

#[async_trait]
impl Batches for Wrong {
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Arc<[PutMessage]>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let mut answers = Vec::new();
        for mut message in messages.iter().cloned() {
            match self.mistake {
                Mistake::PutsAllWithoutDelay => message.visibility_delay = Duration::ZERO,
                Mistake::PutsAllForEver => message.ttl = None,
                Mistake::PutsAllWithoutGroups => message.group = None,
                _ => {}
            }
            answers.push(self.store(queue, message).await);
            if self.has(Mistake::PutsListsOneByOne) {
                tokio::task::yield_now().await;
            }
        }
        self.notify_unless(Mistake::NotifiesOfNoBatch);
        answers
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        let mut answers = Vec::new();
        for message in &messages {
            answers.push(match self.mistake {
                Mistake::DeletesAllById => {
                    self.queues().delete(queue, &self.by_id(message), ExpiredReceipt::Allow).await
                }
                Mistake::HidesWhatIsDeletedTogether => {
                    self.queues().update(queue, message, UpdateMessage::new(LONG)).await.map(drop)
                }
                Mistake::DeletesAllExpired => {
                    self.queues().delete(queue, message, ExpiredReceipt::Allow).await
                }
                _ => self.queues().delete(queue, message, expired).await,
            });
        }
        self.notify_unless(Mistake::NotifiesOfNoDeletion);
        answers
    }
}
