//! Forwards the powers: each becomes an [`Intercepted`] power with the same interceptor.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use super::{Call, Intercepted, Interceptor, Subject};
use crate::name::{BlobName, ContainerName, QueueName};
use crate::{
    Access, Batches, BlobLeases, BlobPowers, BlobStore, DeadLetterMessage, Detach, ExpiredReceipt,
    JournalEntry, JournalPage, JournalQuery, JournalStore, LeaseDuration, LeaseId, MessageId, MessageIndex,
    MessagePage, MessageRef, MessageState, Metadata, MetadataReader, NativeDeadLetters, Operation,
    Permissions, PutMessage, PutOutcome, QueuePowers, QueueStore, StateCounter, StateCounts, StoreError,
};

/// The subject of the operations of a journal.
const JOURNAL: &str = "journal";

impl<S: ?Sized, I: Interceptor> Intercepted<S, I> {
    fn around<P: ?Sized>(&self, power: Arc<P>) -> Arc<Intercepted<P, I>> {
        Arc::new(Intercepted { inner: power, interceptor: Arc::clone(&self.interceptor) })
    }
}

impl<I: Interceptor> Intercepted<dyn QueueStore, I> {
    pub(super) fn queue_powers(&self) -> QueuePowers {
        let QueuePowers {
            guarantees,
            metadata,
            counts,
            index,
            batches,
            groups,
            dead_letters,
            arrivals,
            links,
            upkeep,
            permissions,
            detach,
            transaction_file,
        } = Arc::clone(&self.inner).powers();
        self.interceptor.queue_powers(QueuePowers {
            metadata: metadata.map(|metadata| self.around(metadata) as _),
            counts: counts.map(|counts| self.around(counts) as _),
            index: index.map(|index| self.around(index) as _),
            batches: batches.map(|batches| self.around(batches) as _),
            dead_letters: dead_letters.map(|dead_letters| self.around(dead_letters) as _),
            permissions: permissions.map(|permissions| self.around(permissions) as _),
            detach: detach.map(|detach| self.around(detach) as _),
            // These have no operations of their own to observe.
            guarantees,
            groups,
            arrivals,
            links,
            upkeep,
            transaction_file,
        })
    }
}

impl<I: Interceptor> Intercepted<dyn BlobStore, I> {
    pub(super) fn blob_powers(&self) -> BlobPowers {
        let BlobPowers { leases, journal, permissions, detach, transaction_file } =
            Arc::clone(&self.inner).powers();
        self.interceptor.blob_powers(BlobPowers {
            leases: leases.map(|leases| self.around(leases) as _),
            journal: journal.map(|journal| self.around(journal) as _),
            permissions: permissions.map(|permissions| self.around(permissions) as _),
            detach: detach.map(|detach| self.around(detach) as _),
            transaction_file,
        })
    }
}

#[async_trait]
impl<I: Interceptor> MetadataReader for Intercepted<dyn MetadataReader, I> {
    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        self.on_queue(Operation::QueueMetadata, queue, self.inner.queue_metadata(queue)).await
    }
}

#[async_trait]
impl<I: Interceptor> StateCounter for Intercepted<dyn StateCounter, I> {
    async fn counts_by_state(&self, queue: &QueueName) -> Result<StateCounts, StoreError> {
        self.on_queue(Operation::QueueProperties, queue, self.inner.counts_by_state(queue)).await
    }
}

#[async_trait]
impl<I: Interceptor> MessageIndex for Intercepted<dyn MessageIndex, I> {
    async fn messages(
        &self,
        queue: &QueueName,
        state: MessageState,
        from: Option<&str>,
        count: u32,
    ) -> Result<MessagePage, StoreError> {
        self.on_queue(Operation::Peek, queue, self.inner.messages(queue, state, from, count)).await
    }

    async fn make_visible(&self, queue: &QueueName, message: &MessageId) -> Result<bool, StoreError> {
        self.on_queue(Operation::Update, queue, self.inner.make_visible(queue, message)).await
    }
}

#[async_trait]
impl<I: Interceptor> Batches for Intercepted<dyn Batches, I> {
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Vec<PutMessage>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let call = Call { operation: Operation::PutAll, subject: Subject::Queue(queue) };
        let count = messages.len();
        self.interceptor.call_all(call, count, self.inner.put_all(queue, messages)).await
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        let call = Call { operation: Operation::DeleteAll, subject: Subject::Queue(queue) };
        let (count, expired) = (messages.len(), self.interceptor.expired(expired));
        self.interceptor.call_all(call, count, self.inner.delete_all(queue, messages, expired)).await
    }
}

#[async_trait]
impl<I: Interceptor> NativeDeadLetters for Intercepted<dyn NativeDeadLetters, I> {
    async fn dead_letter(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        letter: DeadLetterMessage,
    ) -> Result<(), StoreError> {
        self.on_queue(Operation::DeadLetter, queue, self.inner.dead_letter(queue, message, letter)).await
    }
}

#[async_trait]
impl<I: Interceptor> Permissions<QueueName> for Intercepted<dyn Permissions<QueueName>, I> {
    async fn check_access(&self, queue: &QueueName, access: Access) -> Result<(), StoreError> {
        self.on_queue(Operation::CheckQueueAccess, queue, self.inner.check_access(queue, access)).await
    }
}

#[async_trait]
impl<I: Interceptor> Permissions<ContainerName> for Intercepted<dyn Permissions<ContainerName>, I> {
    async fn check_access(&self, container: &ContainerName, access: Access) -> Result<(), StoreError> {
        let perform = self.inner.check_access(container, access);
        self.on_other(Operation::CheckBlobAccess, container, perform).await
    }
}

#[async_trait]
impl<I: Interceptor> BlobLeases for Intercepted<dyn BlobLeases, I> {
    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: LeaseDuration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        let perform = self.inner.acquire_lease(blob, duration, proposed);
        self.on_other(Operation::AcquireLease, blob, perform).await
    }

    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        self.on_other(Operation::RenewLease, blob, self.inner.renew_lease(blob, lease)).await
    }

    async fn change_lease(
        &self,
        blob: &BlobName,
        lease: &LeaseId,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        self.on_other(Operation::ChangeLease, blob, self.inner.change_lease(blob, lease, proposed)).await
    }

    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        self.on_other(Operation::ReleaseLease, blob, self.inner.release_lease(blob, lease)).await
    }

    async fn break_lease(&self, blob: &BlobName, period: Option<Duration>) -> Result<Duration, StoreError> {
        self.on_other(Operation::BreakLease, blob, self.inner.break_lease(blob, period)).await
    }
}

#[async_trait]
impl<I: Interceptor> JournalStore for Intercepted<dyn JournalStore, I> {
    async fn append(&self, entries: Arc<[JournalEntry]>) -> Result<(), StoreError> {
        self.on_other(Operation::AppendJournal, &JOURNAL, self.inner.append(entries)).await
    }

    async fn search(&self, query: &JournalQuery) -> Result<JournalPage, StoreError> {
        self.on_other(Operation::SearchJournal, &JOURNAL, self.inner.search(query)).await
    }

    async fn expire(&self, before: SystemTime) -> Result<(), StoreError> {
        self.on_other(Operation::ExpireJournal, &JOURNAL, self.inner.expire(before)).await
    }
}

impl<I: Interceptor> Detach<dyn QueueStore> for Intercepted<dyn Detach<dyn QueueStore>, I> {
    fn detached(&self) -> Arc<dyn QueueStore> {
        self.around(self.inner.detached())
    }
}

impl<I: Interceptor> Detach<dyn BlobStore> for Intercepted<dyn Detach<dyn BlobStore>, I> {
    fn detached(&self) -> Arc<dyn BlobStore> {
        self.around(self.inner.detached())
    }
}
