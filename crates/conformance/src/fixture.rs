//! Short helpers for the queue and blob operations of promises.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::Broken;
use jobqueue::storage::{
    BlobLeases, BlobName, BlobProperties, BlobStore, ExpiredReceipt, GetMessages, LeaseId, LeasedMessage,
    MessageRef, PeekedMessage, PopReceipt, PutBlob, PutMessage, PutOutcome, Queues, Storage, StoreError,
    StoreErrorKind, UpdateMessage, Updated,
};
use jobqueue::{QueueName, Runtime};

/// A visibility timeout or delay that does not run out while a promise is checked, not even in real time.
pub(super) const LONG_TIMEOUT: Duration = secs(600);

/// The kinds with which a stale receipt, or the receipt of another message, may be refused. Azure's own
/// documentation of them changed over time.
pub(super) const STALE: &[StoreErrorKind] =
    &[StoreErrorKind::PopReceiptMismatch, StoreErrorKind::MessageNotFound];

pub(super) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn lease_id() -> LeaseId {
    LeaseId::random(&Runtime::new())
}

/// Returns whether two instants are at most `tolerance` apart.
pub(super) fn near(left: SystemTime, right: SystemTime, tolerance: Duration) -> bool {
    let apart = left.duration_since(right).or_else(|_| right.duration_since(left));
    apart.is_ok_and(|apart| apart <= tolerance)
}

#[derive(Debug, Clone)]
pub(super) struct TestQueue {
    pub(super) store: Arc<Queues>,
    pub(super) name: QueueName,
}

impl TestQueue {
    pub(super) fn new(storage: &Storage, name: QueueName) -> Self {
        Self { store: Arc::clone(storage.queues()), name }
    }

    pub(super) async fn put(&self, text: &str) -> Result<PutOutcome, StoreError> {
        self.put_with(PutMessage::new(text)).await
    }

    pub(super) async fn put_with(&self, message: PutMessage) -> Result<PutOutcome, StoreError> {
        self.store.put(&self.name, message).await
    }

    pub(super) async fn get(
        &self,
        count: u32,
        visibility: Duration,
    ) -> Result<Vec<LeasedMessage>, StoreError> {
        let received = self.store.get(&self.name, GetMessages::new(count, visibility)).await?;
        Ok(received.messages)
    }

    /// Gets one message. If there is none, the promise is broken.
    pub(super) async fn get_one(&self, visibility: Duration) -> Result<LeasedMessage, Broken> {
        let mut messages = self.get(1, visibility).await?;
        messages.pop().ok_or_else(|| Broken::new("a message should be visible, and is not"))
    }

    /// Gets all visible messages, with as many gets as necessary.
    pub(super) async fn get_all(&self, visibility: Duration) -> Result<Vec<LeasedMessage>, StoreError> {
        let mut all = Vec::new();
        loop {
            let some = self.get(32, visibility).await?;
            if some.is_empty() {
                return Ok(all);
            }
            all.extend(some);
        }
    }

    pub(super) async fn put_and_get(
        &self,
        text: &str,
        visibility: Duration,
    ) -> Result<LeasedMessage, Broken> {
        self.put(text).await?;
        self.get_one(visibility).await
    }

    /// Puts a message, receives it, and releases it with a delay. Returns its newest receipt.
    pub(super) async fn put_back(&self, text: &str) -> Result<MessageRef, Broken> {
        let message = self.put_and_get(text, LONG_TIMEOUT).await?.message;
        let updated = self.update_with(&message, UpdateMessage::new(LONG_TIMEOUT).ending_lease()).await?;
        Ok(MessageRef { receipt: updated.receipt, ..message })
    }

    pub(super) async fn peek(&self, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        self.store.peek(&self.name, count).await
    }

    /// Peeks at one message. If there is none, the promise is broken.
    pub(super) async fn peek_one(&self) -> Result<PeekedMessage, Broken> {
        let mut messages = self.peek(1).await?;
        messages.pop().ok_or_else(|| Broken::new("a message should be visible, and is not"))
    }

    pub(super) async fn update(
        &self,
        message: &MessageRef,
        visibility: Duration,
    ) -> Result<Updated, StoreError> {
        self.update_with(message, UpdateMessage::new(visibility)).await
    }

    pub(super) async fn update_text(&self, message: &MessageRef, text: &str) -> Result<Updated, StoreError> {
        self.update_with(message, UpdateMessage::new(LONG_TIMEOUT).with_text(text.to_owned())).await
    }

    pub(super) async fn update_with(
        &self,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        self.store.update(&self.name, message, change).await
    }

    pub(super) async fn delete(&self, message: &MessageRef) -> Result<(), StoreError> {
        self.store.delete(&self.name, message, ExpiredReceipt::Refuse).await
    }

    pub(super) async fn delete_late(&self, message: &MessageRef) -> Result<(), StoreError> {
        self.store.delete(&self.name, message, ExpiredReceipt::Allow).await
    }

    pub(super) async fn count(&self) -> Result<u64, StoreError> {
        Ok(self.store.queue_properties(&self.name).await?.approximate_count)
    }
}

pub(super) fn with_receipt(message: &MessageRef, receipt: &PopReceipt) -> MessageRef {
    MessageRef { id: message.id.clone(), receipt: receipt.clone() }
}

#[derive(Debug, Clone)]
pub(super) struct TestBlob {
    pub(super) store: Arc<dyn BlobStore>,
    storage: Storage,
    pub(super) name: BlobName,
}

impl TestBlob {
    pub(super) fn new(storage: &Storage, name: BlobName) -> Self {
        Self { store: Arc::clone(storage.blobs()), storage: storage.clone(), name }
    }

    pub(super) fn sibling(&self, name: &str) -> Result<Self, Broken> {
        let name = BlobName::new(self.name.container().clone(), name);
        let name = name.map_err(|error| Broken::new(error.to_string()))?;
        Ok(Self { name, ..self.clone() })
    }

    pub(super) async fn write(&self, data: &'static str) -> Result<BlobProperties, StoreError> {
        self.write_with(data, PutBlob::new()).await
    }

    pub(super) async fn write_as(
        &self,
        lease: LeaseId,
        data: &'static str,
    ) -> Result<BlobProperties, StoreError> {
        self.write_with(data, PutBlob::new().with_lease(lease)).await
    }

    pub(super) async fn write_with(
        &self,
        data: impl Into<Bytes>,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        self.store.put_blob(&self.name, data.into(), options).await
    }

    pub(super) async fn read(&self) -> Result<Bytes, StoreError> {
        Ok(self.store.get_blob(&self.name, 1 << 20).await?.data)
    }

    pub(super) async fn properties(&self) -> Result<BlobProperties, StoreError> {
        self.store.blob_properties(&self.name).await
    }

    pub(super) async fn is_leased(&self) -> Result<bool, StoreError> {
        Ok(self.properties().await?.is_leased)
    }

    pub(super) fn leases(&self) -> Result<&dyn BlobLeases, StoreError> {
        Ok(&**self.storage.leases()?)
    }

    pub(super) async fn acquire(&self, seconds: u64, id: LeaseId) -> Result<LeaseId, StoreError> {
        self.leases()?.acquire_lease(&self.name, secs(seconds), &id).await
    }

    pub(super) async fn renew(&self, id: LeaseId) -> Result<LeaseId, StoreError> {
        self.leases()?.renew_lease(&self.name, &id).await
    }

    pub(super) async fn release(&self, id: LeaseId) -> Result<(), StoreError> {
        self.leases()?.release_lease(&self.name, &id).await
    }

    /// Acquires the lease for a minute and returns its id.
    pub(super) async fn leased(&self) -> Result<LeaseId, Broken> {
        let id = lease_id();
        self.acquire(60, id).await?;
        Ok(id)
    }
}
