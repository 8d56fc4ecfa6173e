//! The powers of a wrong adapter's queues.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jobqueue::memory;
use jobqueue::storage::{
    Arrivals, Batches, DeadLetterMessage, Detach, ExpiredReceipt, LogPage, LoggedMessage, LoggedState,
    MessageId, MessageIndex, MessageLog, MessagePage, MessageRef, MessageState, Metadata, MetadataStore,
    NativeDeadLetters, OrderedGroups, PutMessage, PutOutcome, QueueName, QueueStore, StateCounter,
    StateCounts, StoreError, StoreErrorKind, Subscription, UpdateMessage,
};

use crate::Wrong;
use crate::mistakes::Mistake;
use crate::queues::{LONG_TIMEOUT, refusal};

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
        if self.has(Mistake::FindsNoneHeldUp) {
            counts.oldest_held_up = None;
        }
        Ok(counts)
    }
}

#[async_trait]
impl OrderedGroups for Wrong {
    async fn orders_groups(&self, queue: &QueueName) -> Result<bool, StoreError> {
        Ok(!self.has(Mistake::OrdersInNoQueue) && self.below.queues().orders_groups(queue).await?)
    }
}

#[async_trait]
impl NativeDeadLetters for Wrong {
    async fn dead_letter(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        letter: DeadLetterMessage,
    ) -> Result<(), StoreError> {
        let dead = queue.dead_letter().map_err(|_| refusal(StoreErrorKind::InvalidInput))?;
        let text = if self.has(Mistake::MovesFormerTexts) { "text".to_owned() } else { letter.text };
        self.queues().create_queue(&dead, &Metadata::new()).await?;
        let write = || self.store(&dead, PutMessage::new(text.clone()));
        if self.has(Mistake::WritesStaleLetters) {
            write().await?;
            return self.queues().delete(queue, message, ExpiredReceipt::Refuse).await;
        }
        if !self.has(Mistake::LeavesDeadMessages) {
            self.queues().delete(queue, message, ExpiredReceipt::Refuse).await?;
        }
        write().await.map(drop)
    }
}

impl Detach<dyn QueueStore> for Wrong {
    fn detached(&self) -> Arc<dyn QueueStore> {
        match self.mistake {
            Mistake::DetachesOtherQueues => Arc::clone(memory::open().queues().store()),
            _ => Arc::clone(self.queues()),
        }
    }
}

impl Arrivals for Wrong {
    /// Returns a subscription that is notified at once, which the port allows.
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

impl Wrong {
    /// Returns the messages of a queue as a log shows them.
    async fn all_logged(&self, queue: &QueueName) -> Result<Vec<LoggedMessage>, StoreError> {
        let Some(index) = &self.below.queues().powers().index else {
            return Err(refusal(StoreErrorKind::Unsupported));
        };
        let mut all = Vec::new();
        for state in MessageState::ALL {
            let shown = match state {
                MessageState::Waiting | MessageState::Running => LoggedState::Active,
                _ if self.has(Mistake::LogsAllAsActive) => LoggedState::Active,
                MessageState::Delayed => LoggedState::Delayed,
                MessageState::BackingOff => LoggedState::BackingOff,
            };
            let page = index.messages(queue, state, None, 1_000).await?;
            let logged = |(message, due)| LoggedMessage::new(message, shown, Some(due));
            all.extend(page.messages.into_iter().map(logged));
        }
        Ok(all)
    }
}

#[async_trait]
impl MessageLog for Wrong {
    async fn logged(
        &self,
        queue: &QueueName,
        state: Option<LoggedState>,
        from: Option<&str>,
        count: u32,
    ) -> Result<LogPage, StoreError> {
        let begin = from.map_or(Some(0), |from| from.parse::<usize>().ok());
        let Some(begin) = begin.filter(|_| (1..=1_000).contains(&count)) else {
            let is_taken = self.has(Mistake::LogsWrongPages);
            return if is_taken {
                Ok(LogPage::default())
            } else {
                Err(refusal(StoreErrorKind::InvalidInput))
            };
        };
        let mut all = self.all_logged(queue).await?;
        all.retain(|logged| state.is_none_or(|state| logged.state == state));
        let end = begin + count as usize;
        let next = (end < all.len() && !self.has(Mistake::LogsFirstPageOnly)).then(|| end.to_string());
        let messages = all.into_iter().skip(begin).take(count as usize).collect();
        Ok(LogPage::new(messages).with_next(next))
    }
}

#[async_trait]
impl Batches for Wrong {
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Arc<[PutMessage]>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let has_bad = || messages.iter().any(|message| message.text.len() > 65_536);
        if self.has(Mistake::RefusesListsWithOneBad) && has_bad() {
            return messages.iter().map(|_| Err(refusal(StoreErrorKind::TooLarge))).collect();
        }
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
        if self.has(Mistake::AnswersBackwards) {
            answers.reverse();
        }
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
                    self.queues().update(queue, message, UpdateMessage::new(LONG_TIMEOUT)).await.map(drop)
                }
                Mistake::DeletesAllExpired => {
                    self.queues().delete(queue, message, ExpiredReceipt::Allow).await
                }
                _ => self.queues().delete(queue, message, expired).await,
            });
        }
        self.notify_unless(Mistake::NotifiesOfNoDeletion);
        if self.has(Mistake::AnswersBackwards) {
            answers.reverse();
        }
        answers
    }
}
