//! Adapters with a planted mistake: for each of them the suite names the promise that it breaks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use jobqueue::clock::ManualClock;
use jobqueue::storage::{
    Batches, Blob, BlobListing, BlobName, BlobPowers, BlobProperties, BlobStore, ContainerName, Created,
    Detach, ExpiredReceipt, GetMessages, LeaseId, MessageId, MessageRef, Metadata, OrderedGroups,
    PeekedMessage, PutBlob, PutMessage, PutOutcome, QueueName, QueuePowers, QueueProperties, QueueStore,
    Received, StateCounter, StateCounts, StoreError, UpdateMessage, Updated,
};
use jobqueue::{Storage, memory};
use jobqueue_conformance::{Subject, exercise};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mistake {
    None,
    /// `DELETE … WHERE id = ?`.
    DeletesById,
    /// `DELETE … WHERE id IN (…)`.
    DeletesAllById,
    /// The receipts are compared, but not the times of the leases.
    DeletesAllExpired,
    /// `UPDATE … WHERE id = ?`.
    UpdatesById,
    PutsAllWithoutDelay,
    PutsAllForEver,
    PutsAllWithoutGroups,
    /// Claims to order groups, and does not know them.
    ForgetsGroups,
    CountsDelayedAsWaiting,
    /// A dequeue counts when the message is put back, not when its lease runs out.
    CountsReleasesOnly,
    DetachesOtherBlobs,
    ListsOnePage,
    /// Content first, metadata afterwards.
    WritesInTwoSteps,
}

/// A storage in memory behind an adapter with a mistake.
#[derive(Debug)]
struct Wrong {
    mistake: Mistake,
    below: Storage,
    /// The newest receipt of each message, by its id.
    newest: Mutex<HashMap<MessageId, MessageRef>>,
    /// The counted dequeues of each message, and whether the next one counts.
    counted: Mutex<HashMap<MessageId, (u32, bool)>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wrong {
    fn has(&self, mistake: Mistake) -> bool {
        self.mistake == mistake
    }

    fn queues(&self) -> &Arc<dyn QueueStore> {
        self.below.queues().store()
    }

    fn note(&self, message: &MessageRef) {
        locked(&self.newest).insert(message.id.clone(), message.clone());
    }

    /// Returns the message with the receipt that makes the storage below ignore the caller's.
    fn by_id(&self, message: &MessageRef) -> MessageRef {
        locked(&self.newest).get(&message.id).unwrap_or(message).clone()
    }

    fn count(&self, id: &MessageId) -> u32 {
        let mut counted = locked(&self.counted);
        let (count, counts) = counted.entry(id.clone()).or_insert((0, true));
        *count += u32::from(*counts);
        *counts = false;
        *count
    }
}

#[async_trait]
impl QueueStore for Wrong {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        self.queues().create_queue(queue, metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.queues().delete_queue(queue).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        self.queues().list_queues(prefix).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.queues().queue_properties(queue).await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        self.queues().set_queue_metadata(queue, metadata).await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        let message = if self.has(Mistake::ForgetsGroups) { message.with_group(None) } else { message };
        let put = self.queues().put(queue, message).await?;
        self.note(&put.message);
        Ok(put)
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        let mut received = self.queues().get(queue, options).await?;
        for leased in &mut received.messages {
            self.note(&leased.message);
            if self.has(Mistake::CountsReleasesOnly) {
                leased.dequeue_count = self.count(&leased.message.id);
            }
        }
        Ok(received)
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        self.queues().peek(queue, count).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        mut change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        if let Some((_, counts)) = locked(&self.counted).get_mut(&message.id) {
            *counts = change.visibility.is_zero();
        }
        let message = if self.has(Mistake::UpdatesById) {
            change.expired = ExpiredReceipt::Allow;
            self.by_id(message)
        } else {
            message.clone()
        };
        let updated = self.queues().update(queue, &message, change).await?;
        self.note(&MessageRef { receipt: updated.receipt.clone(), ..message });
        Ok(updated)
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        if self.has(Mistake::DeletesById) {
            return self.queues().delete(queue, &self.by_id(message), ExpiredReceipt::Allow).await;
        }
        self.queues().delete(queue, message, expired).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.queues().clear(queue).await
    }

    fn powers(self: Arc<Self>) -> QueuePowers {
        QueuePowers {
            guarantees: self.below.queues().guarantees(),
            counts: Some(Arc::clone(&self) as _),
            groups: Some(Arc::clone(&self) as _),
            batches: Some(self),
            ..QueuePowers::default()
        }
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

#[async_trait]
impl Batches for Wrong {
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Vec<PutMessage>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let mut answers = Vec::new();
        for mut message in messages {
            if self.has(Mistake::PutsAllWithoutDelay) {
                message = message.with_visibility_delay(std::time::Duration::ZERO);
            }
            if self.has(Mistake::PutsAllForEver) {
                message = message.with_ttl(None);
            }
            if self.has(Mistake::PutsAllWithoutGroups) {
                message = message.with_group(None);
            }
            answers.push(self.put(queue, message).await);
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
                Mistake::DeletesAllExpired => {
                    self.queues().delete(queue, message, ExpiredReceipt::Allow).await
                }
                _ => self.queues().delete(queue, message, expired).await,
            });
        }
        answers
    }
}

#[async_trait]
impl BlobStore for Wrong {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.below.blobs().create_container(container).await
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.below.blobs().delete_container(container).await
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        let blobs = self.below.blobs();
        if self.has(Mistake::WritesInTwoSteps) {
            let first = options.clone().with_metadata(Metadata::new());
            blobs.put_blob(blob, data.clone(), first).await?;
            tokio::task::yield_now().await;
            return blobs.put_blob(blob, data, PutBlob::new().with_metadata(options.metadata)).await;
        }
        blobs.put_blob(blob, data, options).await
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        self.below.blobs().get_blob(blob, max_bytes).await
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        self.below.blobs().blob_properties(blob).await
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        self.below.blobs().delete_blob(blob, lease).await
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        let mut listing = self.below.blobs().list_blobs(container, prefix, marker).await?;
        if self.has(Mistake::ListsOnePage) {
            listing.next = None;
        }
        Ok(listing)
    }

    fn powers(self: Arc<Self>) -> BlobPowers {
        BlobPowers { detach: Some(self), ..BlobPowers::default() }
    }
}

impl Detach<dyn BlobStore> for Wrong {
    fn detached(&self) -> Arc<dyn BlobStore> {
        match self.mistake {
            Mistake::DetachesOtherBlobs => Arc::clone(memory::open().blobs()),
            _ => Arc::clone(self.below.blobs()),
        }
    }
}

/// Returns the promises that an adapter with this mistake breaks.
async fn broken(mistake: Mistake) -> Vec<&'static str> {
    let clock = Arc::new(ManualClock::new());
    let below = memory::open_with_clock(clock.clone());
    let (newest, counted) = (Mutex::default(), Mutex::default());
    let wrong = Arc::new(Wrong { mistake, below, newest, counted });
    let storage = Storage::new(wrong.clone(), wrong, "wrong");
    let report = exercise(&Subject::virtual_time(storage, clock)).await;
    report.broken().iter().map(|(name, _)| *name).collect()
}

#[tokio::test]
async fn adapter_without_a_mistake_breaks_no_promise() {
    assert_eq!(broken(Mistake::None).await, [""; 0]);
}

#[tokio::test]
async fn each_mistake_breaks_a_promise_about_it() {
    for (mistake, promise) in [
        (Mistake::DeletesById, "receipt::of_a_predecessor_does_not_delete"),
        (Mistake::DeletesAllById, "delete::all_refuses_a_predecessor"),
        (Mistake::DeletesAllExpired, "delete::all_refuses_an_expired_one"),
        (Mistake::UpdatesById, "receipt::of_a_predecessor_does_not_update"),
        (Mistake::PutsAllWithoutDelay, "put::all_keeps_delays_and_lives"),
        (Mistake::PutsAllForEver, "put::all_keeps_delays_and_lives"),
        (Mistake::PutsAllWithoutGroups, "powers::to_order_groups_are_kept"),
        (Mistake::ForgetsGroups, "powers::to_order_groups_are_kept"),
        (Mistake::CountsDelayedAsWaiting, "powers::to_count_states_is_kept"),
        (Mistake::CountsReleasesOnly, "get::counts_after_a_timeout"),
        (Mistake::DetachesOtherBlobs, "blob::is_the_same_through_a_detached_handle"),
        (Mistake::ListsOnePage, "listing::goes_on_behind_a_marker"),
        (Mistake::WritesInTwoSteps, "blob::is_written_in_one_step"),
        (Mistake::WritesInTwoSteps, "blob::is_whole_after_a_dropped_write"),
    ] {
        let broken = broken(mistake).await;
        assert!(broken.contains(&promise), "{mistake:?} breaks {broken:?}, and not {promise}");
    }
}
