//! Wraps a storage so that its operations are traced, and its load is measured.
//!
//! An observed operation is one [event](Event::StorageRequest). A traced operation is one span at DEBUG level, with OpenTelemetry's messaging names. It contains the names of queues
//! and blobs; it never contains receipts, lease ids, metadata or payloads. The [`Throttle`] of the storage takes note of
//! every answer of the queues. The wrapper changes no answer.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;
use tracing::{Instrument, Span, debug_span, field};

use super::throttle::Throttle;
use super::{
    Access, Blob, BlobListing, BlobProperties, BlobStore, Created, DeadLetterMessage, ExpiredReceipt,
    GetMessages, LeaseDuration, LeaseId, MessageRef, Operation, PeekedMessage, PutBlob, PutMessage,
    PutOutcome, QueueProperties, QueueStore, Received, StateCounts, Storage, StoreError, Subscription,
    SweepLeftovers, SweptLeftovers, UpdateMessage, Updated,
};
use crate::event::{Event, Observers};
use crate::name::{BlobName, ContainerName, QueueName};
use crate::settings::metadata::Metadata;

/// Returns `storage` with a span for each operation; `system` is the value of `messaging.system`, such as `sqlite`.
///
/// Both are one storage: when it throttles one of them, users of the other wait too.
pub fn traced(storage: &Storage, system: &'static str) -> Storage {
    storage.wrapped(
        Arc::new(Instrumented { system: Some(system), ..Instrumented::of(storage.queues()) }),
        Arc::new(Instrumented { system: Some(system), ..Instrumented::of(storage.blobs()) }),
    )
}

/// One half of a storage whose operations are observed.
#[derive(Debug)]
pub(super) struct Instrumented<S: ?Sized> {
    inner: Arc<S>,
    /// The load that takes note of the answers.
    throttle: Option<Arc<Throttle>>,
    /// The system that spans name. Without it there are no spans.
    system: Option<&'static str>,
    /// Those who hear of every operation, and the load that they are told of when the storage throttles.
    observers: Option<(Arc<Observers>, Arc<Throttle>)>,
}

/// The subject of an operation.
#[derive(Clone, Copy)]
enum Subject<'a> {
    Queue(&'a QueueName),
    Other(&'a (dyn fmt::Display + Sync)),
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(queue) => queue.fmt(f),
            Self::Other(other) => other.fmt(f),
        }
    }
}

impl Instrumented<dyn QueueStore> {
    /// Returns queues whose answers `throttle` takes note of.
    pub(super) fn measured(inner: Arc<dyn QueueStore>, throttle: Arc<Throttle>) -> Self {
        Self { throttle: Some(throttle), ..Self::of(&inner) }
    }

    /// Returns the halves of a storage whose operations the observers hear of.
    pub(super) fn observed(
        storage: &Storage,
        observers: Arc<Observers>,
    ) -> (Arc<dyn QueueStore>, Arc<dyn BlobStore>) {
        let observers = Some((observers, Arc::clone(storage.shared_throttle())));
        let blobs = Instrumented { observers: observers.clone(), ..Instrumented::of(storage.blobs()) };
        (Arc::new(Instrumented { observers, ..Instrumented::of(storage.queues()) }), Arc::new(blobs))
    }
}

impl<S: ?Sized> Instrumented<S> {
    /// Returns a wrapper that does nothing yet.
    fn of(inner: &Arc<S>) -> Self {
        Self { inner: Arc::clone(inner), throttle: None, system: None, observers: None }
    }

    fn span(&self, operation: Operation, subject: Subject<'_>) -> Span {
        let Some(system) = self.system else { return Span::none() };
        debug_span!(
            "storage",
            messaging.system = system,
            messaging.destination.name = %subject,
            messaging.operation.name = operation.as_str(),
            error.type = field::Empty,
        )
    }

    fn note<T>(&self, operation: Operation, answer: &Result<T, StoreError>) {
        if let Some(throttle) = &self.throttle {
            throttle.note(answer, operation.can_wait());
        }
    }

    /// Returns the time if somebody hears of the operation.
    fn begin(&self) -> Option<Instant> {
        self.observers.is_some().then(Instant::now)
    }

    /// Tells the observers of an operation that took as many requests.
    fn tell(
        &self,
        (operation, subject): (Operation, Subject<'_>),
        requests: usize,
        began: Option<Instant>,
        error: Option<&StoreError>,
    ) {
        let Some(((observers, throttle), began)) = self.observers.as_ref().zip(began) else { return };
        observers.tell(|| Event::StorageRequest {
            operation: operation.as_str(),
            queue: match subject {
                Subject::Queue(queue) => Some(queue.clone()),
                Subject::Other(_) => None,
            },
            requests,
            took: began.elapsed(),
            error: error.map(|error| error.kind().as_str()),
        });
        if error.is_some_and(StoreError::is_throttled) {
            observers.tell(|| Event::Throttled { wait: throttle.left() });
        }
    }

    async fn observe<T>(
        &self,
        operation: Operation,
        subject: Subject<'_>,
        answer: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let (span, began) = (self.span(operation, subject), self.begin());
        let answer = answer.instrument(span.clone()).await;
        self.note(operation, &answer);
        self.tell((operation, subject), 1, began, answer.as_ref().err());
        if let Err(error) = &answer {
            span.record("error.type", field::debug(error.kind()));
        }
        answer
    }

    /// Observes an operation on several messages, which is one request if `is_one`.
    async fn observe_all<T>(
        &self,
        operation: Operation,
        queue: &QueueName,
        is_one: bool,
        answers: impl Future<Output = Vec<Result<T, StoreError>>> + Send,
    ) -> Vec<Result<T, StoreError>> {
        let began = self.begin();
        let answers = answers.instrument(self.span(operation, Subject::Queue(queue))).await;
        answers.iter().for_each(|answer| self.note(operation, answer));
        let requests = if is_one { 1 } else { answers.len() };
        let error = answers.iter().find_map(|answer| answer.as_ref().err());
        self.tell((operation, Subject::Queue(queue)), requests, began, error);
        answers
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl QueueStore for Instrumented<dyn QueueStore> {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        self.observe(Operation::CreateQueue, Subject::Queue(queue), self.inner.create_queue(queue, metadata))
            .await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.observe(Operation::DeleteQueue, Subject::Queue(queue), self.inner.delete_queue(queue)).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        self.observe(Operation::ListQueues, Subject::Other(&prefix), self.inner.list_queues(prefix)).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.observe(Operation::QueueProperties, Subject::Queue(queue), self.inner.queue_properties(queue))
            .await
    }

    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        self.observe(Operation::QueueMetadata, Subject::Queue(queue), self.inner.queue_metadata(queue)).await
    }

    async fn counts_by_state(&self, queue: &QueueName) -> Result<Option<StateCounts>, StoreError> {
        self.observe(Operation::QueueProperties, Subject::Queue(queue), self.inner.counts_by_state(queue))
            .await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        let answer = self.inner.set_queue_metadata(queue, metadata);
        self.observe(Operation::SetQueueMetadata, Subject::Queue(queue), answer).await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        self.observe(Operation::Put, Subject::Queue(queue), self.inner.put(queue, message)).await
    }

    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Vec<PutMessage>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        self.observe_all(
            Operation::PutAll,
            queue,
            self.commits_together(),
            self.inner.put_all(queue, messages),
        )
        .await
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        self.observe(Operation::Get, Subject::Queue(queue), self.inner.get(queue, options)).await
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        self.observe(Operation::Peek, Subject::Queue(queue), self.inner.peek(queue, count)).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        self.observe(Operation::Update, Subject::Queue(queue), self.inner.update(queue, message, change))
            .await
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        self.observe(Operation::Delete, Subject::Queue(queue), self.inner.delete(queue, message, expired))
            .await
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        self.observe_all(
            Operation::DeleteAll,
            queue,
            self.commits_together(),
            self.inner.delete_all(queue, messages, expired),
        )
        .await
    }

    async fn dead_letter(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        letter: DeadLetterMessage,
    ) -> Result<(), StoreError> {
        let answer = self.inner.dead_letter(queue, message, letter);
        self.observe(Operation::DeadLetter, Subject::Queue(queue), answer).await
    }

    fn has_dead_letter_queues(&self) -> bool {
        self.inner.has_dead_letter_queues()
    }

    async fn sweep(&self, leftovers: SweepLeftovers) -> Result<SweptLeftovers, StoreError> {
        self.inner.sweep(leftovers).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.observe(Operation::Clear, Subject::Queue(queue), self.inner.clear(queue)).await
    }

    async fn check_access(&self, queue: &QueueName, access: Access) -> Result<(), StoreError> {
        self.observe(
            Operation::CheckQueueAccess,
            Subject::Queue(queue),
            self.inner.check_access(queue, access),
        )
        .await
    }

    fn subscribe(&self, queue: &QueueName) -> Option<Subscription> {
        self.inner.subscribe(queue)
    }

    fn checks_expiry(&self) -> bool {
        self.inner.checks_expiry()
    }

    fn commits_together(&self) -> bool {
        self.inner.commits_together()
    }

    fn throttles_by_shard(&self) -> bool {
        self.inner.throttles_by_shard()
    }

    fn file(&self) -> Option<&Path> {
        self.inner.file()
    }

    fn detached(self: Arc<Self>) -> Arc<dyn QueueStore> {
        let inner = Arc::clone(&self.inner).detached();
        Arc::new(Self {
            inner,
            throttle: self.throttle.clone(),
            system: self.system,
            observers: self.observers.clone(),
        })
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl BlobStore for Instrumented<dyn BlobStore> {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.observe(
            Operation::CreateContainer,
            Subject::Other(container),
            self.inner.create_container(container),
        )
        .await
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.observe(
            Operation::DeleteContainer,
            Subject::Other(container),
            self.inner.delete_container(container),
        )
        .await
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        self.observe(Operation::PutBlob, Subject::Other(blob), self.inner.put_blob(blob, data, options)).await
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        self.observe(Operation::GetBlob, Subject::Other(blob), self.inner.get_blob(blob, max_bytes)).await
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        self.observe(Operation::BlobProperties, Subject::Other(blob), self.inner.blob_properties(blob)).await
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        self.observe(Operation::DeleteBlob, Subject::Other(blob), self.inner.delete_blob(blob, lease)).await
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        let answer = self.inner.list_blobs(container, prefix, marker);
        self.observe(Operation::ListBlobs, Subject::Other(container), answer).await
    }

    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: LeaseDuration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        let answer = self.inner.acquire_lease(blob, duration, proposed);
        self.observe(Operation::AcquireLease, Subject::Other(blob), answer).await
    }

    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        self.observe(Operation::RenewLease, Subject::Other(blob), self.inner.renew_lease(blob, lease)).await
    }

    async fn change_lease(
        &self,
        blob: &BlobName,
        lease: &LeaseId,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        self.observe(
            Operation::ChangeLease,
            Subject::Other(blob),
            self.inner.change_lease(blob, lease, proposed),
        )
        .await
    }

    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        self.observe(Operation::ReleaseLease, Subject::Other(blob), self.inner.release_lease(blob, lease))
            .await
    }

    async fn break_lease(&self, blob: &BlobName, period: Option<Duration>) -> Result<Duration, StoreError> {
        self.observe(Operation::BreakLease, Subject::Other(blob), self.inner.break_lease(blob, period)).await
    }

    async fn check_access(&self, container: &ContainerName, access: Access) -> Result<(), StoreError> {
        self.observe(
            Operation::CheckBlobAccess,
            Subject::Other(container),
            self.inner.check_access(container, access),
        )
        .await
    }

    fn file(&self) -> Option<&Path> {
        self.inner.file()
    }

    fn detached(self: Arc<Self>) -> Arc<dyn BlobStore> {
        let inner = Arc::clone(&self.inner).detached();
        Arc::new(Self {
            inner,
            throttle: self.throttle.clone(),
            system: self.system,
            observers: self.observers.clone(),
        })
    }
}
