//! Forwards the methods of the two stores and of their powers. Each power becomes an [`Intercepted`] power
//! with the same interceptor.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{Intercepted, Interceptor, Subject};
use crate::name::{BlobName, ContainerName, QueueName};
use crate::{
    Access, Batches, Blob, BlobLeases, BlobListing, BlobPowers, BlobProperties, BlobStore, Created,
    DeadLetterMessage, Detach, ExpiredReceipt, GetMessages, JournalEntry, JournalPage, JournalQuery,
    JournalStore, LeaseId, LogPage, LoggedState, MessageId, MessageIndex, MessageLog, MessagePage,
    MessageRef, MessageState, Metadata, MetadataStore, NativeDeadLetters, Operation, PeekedMessage,
    Permissions, PutBlob, PutMessage, PutOutcome, QueuePowers, QueueProperties, QueueStore, Received,
    StateCounter, StateCounts, StoreError, UpdateMessage, Updated,
};

/// Implements a trait from a table. A row is the kind of the subject (the first argument), the operation, and
/// the method. Methods that do more than forward follow the table.
macro_rules! forward {
    (
        $trait:path {
            $($by:ident $operation:ident: $method:ident($subject:ident: $of:ty $(, $argument:ident: $type:ty)*) -> $answer:ty;)*
        }
        $($others:tt)*
    ) => {
        #[deny(clippy::missing_trait_methods)]
        #[async_trait]
        impl<I: Interceptor> $trait for Intercepted<dyn $trait, I> {
            $(async fn $method(&self, $subject: $of $(, $argument: $type)*) -> Result<$answer, StoreError> {
                // Called inside the future, so that an interceptor also catches a panic of a method that is
                // no `async fn`.
                let perform = async { self.inner.$method($subject $(, $argument)*).await };
                self.call(Operation::$operation, Subject::$by(&$subject), perform).await
            })*
            $($others)*
        }
    };
}

forward! {
    QueueStore {
        Queue CreateQueue: create_queue(queue: &QueueName, metadata: &Metadata) -> Created;
        Queue DeleteQueue: delete_queue(queue: &QueueName) -> ();
        Other ListQueues: list_queues(prefix: &str) -> Vec<QueueName>;
        Queue QueueProperties: queue_properties(queue: &QueueName) -> QueueProperties;
        Queue SetQueueMetadata: set_queue_metadata(queue: &QueueName, metadata: &Metadata) -> ();
        Queue Peek: peek(queue: &QueueName, count: u32) -> Vec<PeekedMessage>;
        Queue Clear: clear(queue: &QueueName) -> ();
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        self.interceptor.put(queue, message, |message| async move { self.inner.put(queue, message).await }).await
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        self.interceptor.get(queue, options, |options| async move { self.inner.get(queue, options).await }).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        mut change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        change.expired = self.interceptor.expired(change.expired);
        let perform = |change| async move { self.inner.update(queue, message, change).await };
        self.interceptor.update(queue, message, change, perform).await
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        let expired = self.interceptor.expired(expired);
        let perform = async { self.inner.delete(queue, message, expired).await };
        self.interceptor.remove(Operation::Delete, queue, message, perform).await
    }

    fn powers(self: Arc<Self>) -> QueuePowers {
        let QueuePowers {
            guarantees,
            peek_reach,
            metadata,
            counts,
            index,
            log,
            batches,
            groups,
            dead_letters,
            arrivals,
            links,
            upkeep,
            permissions,
            detach,
            transaction_place,
        } = Arc::clone(&self.inner).powers();
        self.interceptor.queue_powers(QueuePowers {
            metadata: metadata.map(|metadata| self.around(metadata) as _),
            counts: counts.map(|counts| self.around(counts) as _),
            index: index.map(|index| self.around(index) as _),
            log: log.map(|log| self.around(log) as _),
            batches: batches.map(|batches| self.around(batches) as _),
            dead_letters: dead_letters.map(|dead_letters| self.around(dead_letters) as _),
            permissions: permissions.map(|permissions| self.around(permissions) as _),
            detach: detach.map(|detach| self.around(detach) as _),
            // These bypass the interceptor: the order of groups is asked for once, when a queue is opened,
            // and upkeep is rare.
            guarantees,
            peek_reach,
            groups,
            arrivals,
            links,
            upkeep,
            transaction_place,
        })
    }
}

forward! {
    BlobStore {
        Other CreateContainer: create_container(container: &ContainerName) -> ();
        Other DeleteContainer: delete_container(container: &ContainerName) -> ();
        Other PutBlob: put_blob(blob: &BlobName, data: Bytes, options: PutBlob) -> BlobProperties;
        Other GetBlob: get_blob(blob: &BlobName, max_bytes: u64) -> Blob;
        Other BlobProperties: blob_properties(blob: &BlobName) -> BlobProperties;
        Other DeleteBlob: delete_blob(blob: &BlobName, lease: Option<&LeaseId>) -> ();
        Other ListBlobs: list_blobs(container: &ContainerName, prefix: &str, marker: Option<&str>) -> BlobListing;
    }

    fn powers(self: Arc<Self>) -> BlobPowers {
        let BlobPowers { leases, journal, permissions, detach, transaction_place, address, identity } =
            Arc::clone(&self.inner).powers();
        self.interceptor.blob_powers(BlobPowers {
            leases: leases.map(|leases| self.around(leases) as _),
            journal: journal.map(|journal| self.around(journal) as _),
            permissions: permissions.map(|permissions| self.around(permissions) as _),
            detach: detach.map(|detach| self.around(detach) as _),
            transaction_place,
            address,
            identity: identity.or_else(|| Some(Arc::as_ptr(&self.inner).cast::<()>().addr())),
        })
    }
}

forward! {
    MetadataStore {
        Queue QueueMetadata: queue_metadata(queue: &QueueName) -> Metadata;
        Queue SetQueueMetadata: replace_queue_metadata(queue: &QueueName, before: &Metadata, metadata: &Metadata) -> ();
    }
}

forward! {
    StateCounter {
        Queue QueueProperties: counts_by_state(queue: &QueueName) -> StateCounts;
    }
}

forward! {
    MessageIndex {
        Queue Peek: messages(queue: &QueueName, state: MessageState, from: Option<&str>, count: u32) -> MessagePage;
        Queue Update: make_visible(queue: &QueueName, message: &MessageId) -> bool;
    }
}

forward! {
    MessageLog {
        Queue Peek: logged(queue: &QueueName, state: Option<LoggedState>, from: Option<&str>, count: u32) -> LogPage;
    }
}

forward! {
    NativeDeadLetters {}

    async fn dead_letter(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        letter: DeadLetterMessage,
    ) -> Result<(), StoreError> {
        let perform = async { self.inner.dead_letter(queue, message, letter).await };
        self.interceptor.remove(Operation::DeadLetter, queue, message, perform).await
    }
}

forward! {
    Permissions<QueueName> {
        Queue CheckQueueAccess: check_access(queue: &QueueName, access: Access) -> ();
    }
}

forward! {
    Permissions<ContainerName> {
        Other CheckBlobAccess: check_access(container: &ContainerName, access: Access) -> ();
    }
}

forward! {
    BlobLeases {
        Other AcquireLease: acquire_lease(blob: &BlobName, duration: Duration, proposed: &LeaseId) -> LeaseId;
        Other RenewLease: renew_lease(blob: &BlobName, lease: &LeaseId) -> LeaseId;
        Other ReleaseLease: release_lease(blob: &BlobName, lease: &LeaseId) -> ();
    }
}

forward! {
    Batches {}

    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Arc<[PutMessage]>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let perform = async { self.inner.put_all(queue, Arc::clone(&messages)).await };
        self.interceptor.put_all(queue, &messages, perform).await
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        let expired = self.interceptor.expired(expired);
        let perform = |messages| async move { self.inner.delete_all(queue, messages, expired).await };
        self.interceptor.delete_all(queue, messages, perform).await
    }
}

/// The subject of the operations of a journal.
const JOURNAL: &str = "journal";

forward! {
    JournalStore {}

    async fn append(&self, entries: Arc<[JournalEntry]>) -> Result<(), StoreError> {
        self.call(Operation::AppendJournal, Subject::Other(&JOURNAL), async { self.inner.append(entries).await }).await
    }

    async fn search(&self, query: &JournalQuery) -> Result<JournalPage, StoreError> {
        self.call(Operation::SearchJournal, Subject::Other(&JOURNAL), async { self.inner.search(query).await }).await
    }

    async fn expire(&self, kept: Duration) -> Result<(), StoreError> {
        self.call(Operation::ExpireJournal, Subject::Other(&JOURNAL), async { self.inner.expire(kept).await }).await
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

impl<S: ?Sized, I: Interceptor> Intercepted<S, I> {
    fn around<P: ?Sized>(&self, power: Arc<P>) -> Arc<Intercepted<P, I>> {
        Arc::new(Intercepted { inner: power, interceptor: Arc::clone(&self.interceptor) })
    }
}
