//! Wraps a store to add behaviour to each of its operations.
//!
//! This is the only place that forwards the port and its powers by hand. A wrapper implements
//! [`Interceptor`], which sees the operations of the store and of most powers, and their messages if needed;
//! [`Intercepted`] does the rest. A new power does not compile until it is forwarded here.

mod forward;
mod of_part;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

pub use of_part::OfPart;

use super::{
    BlobPowers, BlobStore, ExpiredReceipt, GetMessages, MessageRef, Operation, PutMessage, PutOutcome,
    QueuePowers, QueueStore, Received, StoreError, UpdateMessage, Updated,
};
use crate::name::QueueName;

/// The behaviour around the operations of a store and of its powers. By default all operations pass
/// unchanged. Requests of [`OrderedGroups`](crate::OrderedGroups), [`LeaseLinks`](crate::LeaseLinks) and
/// [`Upkeep`](crate::Upkeep) bypass it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::{Arc, atomic::{AtomicU32, Ordering}};
/// use jobqueue::Storage;
/// use jobqueue::storage::{Call, Intercepted, Interceptor, StoreError};
///
/// /// Counts all requests except requests for lists, which [`call_all`](Interceptor::call_all) gets.
/// #[derive(Debug, Default)]
/// struct Counted(AtomicU32);
///
/// impl Interceptor for Counted {
///     async fn call<T: Send>(
///         &self,
///         _: Call<'_>,
///         perform: impl Future<Output = Result<T, StoreError>> + Send,
///     ) -> Result<T, StoreError> {
///         self.0.fetch_add(1, Ordering::Relaxed);
///         perform.await
///     }
/// }
///
/// let (below, counted) = (Storage::memory(), Arc::new(Counted::default()));
/// let queues = Intercepted::queues(Arc::clone(below.queues().store()), &counted);
/// let storage = Storage::new(queues, Arc::clone(below.blobs()), "counted");
/// storage.queues().list_queues("").await?;
/// assert_eq!(counted.0.load(Ordering::Relaxed), 1);
/// # Ok(()) }
/// ```
pub trait Interceptor: fmt::Debug + Send + Sync + 'static {
    /// Performs an operation with one answer, or returns another answer in its place. The operation is
    /// `perform`; it has not begun, and dropping it cancels it.
    fn call<T: Send>(
        &self,
        call: Call<'_>,
        perform: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> impl Future<Output = Result<T, StoreError>> + Send {
        let _ = call;
        perform
    }

    /// Performs an operation that returns an answer for each of `count` messages.
    fn call_all<T: Send>(
        &self,
        call: Call<'_>,
        count: usize,
        perform: impl Future<Output = Vec<Result<T, StoreError>>> + Send,
    ) -> impl Future<Output = Vec<Result<T, StoreError>>> + Send {
        let _ = (call, count);
        perform
    }

    /// Performs a put, which begins when `perform` is called. The defaults of this method, `get`, `update`
    /// and `remove` are a [`call`](Self::call).
    fn put<F: Future<Output = Result<PutOutcome, StoreError>> + Send>(
        &self,
        queue: &QueueName,
        message: PutMessage,
        perform: impl FnOnce(PutMessage) -> F + Send,
    ) -> impl Future<Output = Result<PutOutcome, StoreError>> + Send {
        self.call(Call::of(Operation::Put, queue), perform(message))
    }

    /// Performs a get.
    fn get<F: Future<Output = Result<Received, StoreError>> + Send>(
        &self,
        queue: &QueueName,
        options: GetMessages,
        perform: impl FnOnce(GetMessages) -> F + Send,
    ) -> impl Future<Output = Result<Received, StoreError>> + Send {
        self.call(Call::of(Operation::Get, queue), perform(options))
    }

    /// Performs an update of a leased message.
    fn update<F: Future<Output = Result<Updated, StoreError>> + Send>(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
        perform: impl FnOnce(UpdateMessage) -> F + Send,
    ) -> impl Future<Output = Result<Updated, StoreError>> + Send {
        let _ = message;
        self.call(Call::of(Operation::Update, queue), perform(change))
    }

    /// Performs a removal of a leased message: a [`Delete`](Operation::Delete) or a
    /// [`DeadLetter`](Operation::DeadLetter).
    fn remove(
        &self,
        operation: Operation,
        queue: &QueueName,
        message: &MessageRef,
        perform: impl Future<Output = Result<(), StoreError>> + Send,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        let _ = message;
        self.call(Call::of(operation, queue), perform)
    }

    /// Performs puts of several messages. The defaults of this method and of `delete_all` are a
    /// [`call_all`](Self::call_all).
    fn put_all(
        &self,
        queue: &QueueName,
        messages: &[PutMessage],
        perform: impl Future<Output = Vec<Result<PutOutcome, StoreError>>> + Send,
    ) -> impl Future<Output = Vec<Result<PutOutcome, StoreError>>> + Send {
        self.call_all(Call::of(Operation::PutAll, queue), messages.len(), perform)
    }

    /// Performs deletions of several messages.
    fn delete_all<F: Future<Output = Vec<Result<(), StoreError>>> + Send>(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        perform: impl FnOnce(Vec<MessageRef>) -> F + Send,
    ) -> impl Future<Output = Vec<Result<(), StoreError>>> + Send {
        self.call_all(Call::of(Operation::DeleteAll, queue), messages.len(), perform(messages))
    }

    /// Returns how the store treats an expired receipt, given the caller's wish `asked`.
    fn expired(&self, asked: ExpiredReceipt) -> ExpiredReceipt {
        asked
    }

    /// Returns the powers of the wrapped queues, given the powers of the store, whose operations already pass
    /// this interceptor.
    fn queue_powers(&self, powers: QueuePowers) -> QueuePowers {
        powers
    }

    /// Returns the powers of the wrapped blobs, given the powers of the store, whose operations already pass
    /// this interceptor.
    fn blob_powers(&self, powers: BlobPowers) -> BlobPowers {
        powers
    }
}

/// An operation that passes an [`Interceptor`].
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The operation.
    pub operation: Operation,
    /// The queue, container or blob, or a prefix of queue names.
    pub subject: Subject<'a>,
}

impl<'a> Call<'a> {
    fn of(operation: Operation, queue: &'a QueueName) -> Self {
        Self { operation, subject: Subject::Queue(queue) }
    }
}

/// The subject of an operation.
#[derive(Clone, Copy)]
pub enum Subject<'a> {
    /// A queue.
    Queue(&'a QueueName),
    /// A container, a blob, or a prefix of queue names.
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

impl fmt::Debug for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A store, or one of its powers, whose operations pass an [`Interceptor`].
#[derive(Debug)]
pub struct Intercepted<S: ?Sized, I> {
    inner: Arc<S>,
    interceptor: Arc<I>,
}

impl<I: Interceptor> Intercepted<dyn QueueStore, I> {
    /// Returns queues whose operations pass `interceptor`.
    pub fn queues(queues: Arc<dyn QueueStore>, interceptor: &Arc<I>) -> Arc<dyn QueueStore> {
        Arc::new(Self { inner: queues, interceptor: Arc::clone(interceptor) })
    }
}

impl<I: Interceptor> Intercepted<dyn BlobStore, I> {
    /// Returns blobs whose operations pass `interceptor`.
    pub fn blobs(blobs: Arc<dyn BlobStore>, interceptor: &Arc<I>) -> Arc<dyn BlobStore> {
        Arc::new(Self { inner: blobs, interceptor: Arc::clone(interceptor) })
    }
}

impl<S: ?Sized, I: Interceptor> Intercepted<S, I> {
    async fn call<T: Send>(
        &self,
        operation: Operation,
        subject: Subject<'_>,
        perform: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.interceptor.call(Call { operation, subject }, perform).await
    }
}
