//! The queues of a wrong adapter.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use jobqueue::storage::{
    Created, ExpiredReceipt, GetMessages, MAX_VISIBILITY, MessageRef, Metadata, PeekedMessage, PopReceipt,
    PutMessage, PutOutcome, QueueName, QueuePowers, QueueProperties, QueueStore, Received, StoreError,
    StoreErrorKind, UpdateMessage, Updated,
};

use crate::mistakes::Mistake;
use crate::{Wrong, locked};

/// A delay or a lease that is longer than any promise waits.
pub(crate) const LONG_TIMEOUT: Duration = Duration::from_secs(60);
const WEEK: Duration = Duration::from_secs(7 * 86_400);

pub(crate) fn refusal(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "test", "wrong")
}

impl Wrong {
    /// Puts a message without a notification.
    pub(crate) async fn store(
        &self,
        queue: &QueueName,
        mut message: PutMessage,
    ) -> Result<PutOutcome, StoreError> {
        match self.mistake {
            Mistake::ForgetsGroups => message.group = None,
            Mistake::HoldsGroupsOfExpired if message.group.is_some() && message.ttl.is_some() => {
                (message.ttl, message.visibility_delay) = (None, LONG_TIMEOUT);
            }
            Mistake::MixesGroupsOfQueues => {
                let group = message.group.clone().unwrap_or_default();
                if locked(&self.groups).entry(group).or_insert_with(|| queue.clone()) != queue {
                    message.visibility_delay = LONG_TIMEOUT;
                }
            }
            Mistake::PutsWithoutDelay => message.visibility_delay = Duration::ZERO,
            Mistake::PutsForEver => message.ttl = None,
            Mistake::PutsTwice => drop(self.queues().put(queue, message.clone()).await?),
            Mistake::LivesForAWeek => message.ttl = Some(message.ttl.unwrap_or(WEEK).min(WEEK)),
            Mistake::RefusesLongLives if message.ttl.is_some_and(|ttl| ttl > 1_000 * WEEK) => {
                return Err(refusal(StoreErrorKind::InvalidInput));
            }
            Mistake::TakesAnyLife => message.ttl = message.ttl.filter(|ttl| *ttl > message.visibility_delay),
            Mistake::TrimsTexts => message.text = message.text.trim().to_owned(),
            Mistake::UnescapesTexts => message.text = message.text.replace("&amp;", "&"),
            Mistake::DropsControlCharacters => message.text.retain(|c| !c.is_control()),
            Mistake::KeepsAsciiOnly => message.text.retain(|c| c.is_ascii()),
            Mistake::ReadsNumbers => {
                if let Ok(number) = message.text.parse::<u64>() {
                    message.text = number.to_string();
                }
            }
            Mistake::CutsTexts => message.text = message.text.chars().take(16_384).collect(),
            Mistake::RefusesEmptyTexts if message.text.is_empty() => {
                return Err(refusal(StoreErrorKind::InvalidInput));
            }
            Mistake::CutsDelays => {
                message.visibility_delay = Duration::from_secs(message.visibility_delay.as_secs());
            }
            _ => {}
        }
        let mut put = self.queues().put(queue, message).await?;
        self.remember(queue, &put.message);
        if self.has(Mistake::TellsNoExpiry) {
            put.expires = None;
        }
        Ok(put)
    }

    pub(crate) fn notify_unless(&self, mistake: Mistake) {
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
            properties.now = Some(SystemTime::UNIX_EPOCH + LONG_TIMEOUT);
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
        self.notify_unless(if is_delayed {
            Mistake::NotifiesOfNoDelayedPut
        } else {
            Mistake::NotifiesOfNoPut
        });
        Ok(put)
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        let options = match self.mistake {
            Mistake::GivesTooMany => GetMessages::new(32, options.visibility),
            Mistake::TakesAnyTimeout => {
                let visibility = options.visibility.clamp(Duration::from_secs(1), MAX_VISIBILITY);
                GetMessages::new(options.count, visibility)
            }
            Mistake::LeasesForAMoment => GetMessages::new(options.count, Duration::from_secs(1)),
            _ => options,
        };
        let mut received = self.queues().get(queue, options).await?;
        match self.mistake {
            Mistake::NeverTellsOfTheNext => received.next_visible_in = None,
            Mistake::InventsANext => received.next_visible_in = Some(LONG_TIMEOUT),
            _ => {}
        }
        for leased in &mut received.messages {
            self.remember(queue, &leased.message);
            let is_first = locked(&self.leased).insert(leased.message.id.clone());
            match self.mistake {
                Mistake::CountsReleasesOnly => leased.dequeue_count = self.count(&leased.message.id),
                Mistake::ProlongsLife if !is_first => {
                    leased.expires = leased.expires.map(|time| time + LONG_TIMEOUT)
                }
                Mistake::NeverCounts => leased.dequeue_count = 1,
                Mistake::GivesOneReceipt => leased.message.receipt = PopReceipt::new("receipt"),
                Mistake::HidesNothing => {
                    let shown = UpdateMessage::new(Duration::ZERO);
                    self.queues().update(queue, &leased.message, shown).await?;
                }
                _ => {}
            }
        }
        Ok(received)
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        let count = if self.has(Mistake::PeeksAtTooMany) { 32 } else { count };
        let mut peeked = self.queues().peek(queue, count).await?;
        if self.has(Mistake::PeeksByGet) {
            self.queues().get(queue, GetMessages::new(count, LONG_TIMEOUT)).await?;
        }
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
            Mistake::AcceptsExpired => change.expired = ExpiredReceipt::Allow,
            Mistake::RefusesExpired => change.expired = ExpiredReceipt::Refuse,
            Mistake::TakesAnyTimeout => change.visibility = change.visibility.min(MAX_VISIBILITY),
            Mistake::NeverExtends => change.visibility = change.visibility.min(Duration::from_secs(1)),
            Mistake::DropsNewTexts => change.text = None,
            Mistake::ErasesTexts => change.text = change.text.or(Some(String::new())),
            Mistake::HidesLeasedBeyondExpiry if is_leased => {
                change.visibility = change.visibility.min(LONG_TIMEOUT)
            }
            Mistake::NeverReleases => change.visibility = change.visibility.max(LONG_TIMEOUT),
            _ => {}
        }
        if let Some((_, counts)) = locked(&self.counted).get_mut(&message.id) {
            *counts = change.visibility.is_zero();
        }
        let is_release = change.visibility.is_zero();
        let queue = self.any_queue(queue, &message);
        let mut updated = self.queues().update(&queue, &message, change).await?;
        self.remember(&queue, &MessageRef { receipt: updated.receipt.clone(), ..message.clone() });
        match self.mistake {
            Mistake::TellsOldReceipt => updated.receipt = message.receipt,
            Mistake::TellsTimesOfPutsOnly if is_leased => updated.next_visible = SystemTime::UNIX_EPOCH,
            _ => {}
        }
        self.notify_unless(if is_release {
            Mistake::NotifiesOfNoRelease
        } else {
            Mistake::NotifiesOfNoShorterLease
        });
        Ok(updated)
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        mut expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        match self.mistake {
            Mistake::AcceptsExpired => expired = ExpiredReceipt::Allow,
            Mistake::RefusesExpired => expired = ExpiredReceipt::Refuse,
            _ => {}
        }
        let queue = self.any_queue(queue, message);
        let queue = &*queue;
        let deleted = match self.mistake {
            Mistake::IgnoresDeletions => return Ok(()),
            Mistake::DeletesTheQueue => self.queues().clear(queue).await,
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
            Mistake::ClearsAll => {
                for queue in self.queues().list_queues("").await? {
                    self.queues().clear(&queue).await?;
                }
                Ok(())
            }
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
            log: Some(Arc::clone(&self) as _),
            arrivals: Some(Arc::clone(&self) as _),
            dead_letters: Some(Arc::clone(&self) as _),
            detach: Some(Arc::clone(&self) as _),
            batches: Some(self),
            ..QueuePowers::default()
        }
    }
}
