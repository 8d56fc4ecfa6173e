//! The observer to which a storage reports its operations.

use std::fmt;
use std::time::Duration;

use super::{Operation, StoreErrorKind};
use crate::name::QueueName;

/// An observer of a storage's operations, for metrics and events.
///
/// `Stores::observed` sets the observer.
pub trait StorageObserver: fmt::Debug + Send + Sync {
    /// Called after each operation, on the task that requested it. Must return quickly, and must not panic.
    fn observe(&self, request: &StorageRequest<'_>);
}

/// An operation of a storage that has ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StorageRequest<'a> {
    /// The operation.
    pub operation: Operation,
    /// The queue; `None` for operations on blobs and on lists of queues.
    pub queue: Option<&'a QueueName>,
    /// The number of requests that the storage bills: 1, or the number of messages if each is a separate
    /// request.
    pub requests: usize,
    /// The time that the operation took.
    pub took: Duration,
    /// The kind of the error; the first error for an operation on several messages.
    pub error: Option<StoreErrorKind>,
    /// The time for which polling and sending now pause, if the storage throttled.
    pub throttled: Option<Duration>,
}
