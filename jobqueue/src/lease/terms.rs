//! The inputs of a new lease: the queue of its message, and its times.

use std::sync::Arc;
use std::time::Duration;

use super::renewer_thread::LeaseRenewer;
use crate::event::Observers;
use crate::storage::{QueueName, Queues};

#[derive(Debug, Clone)]
pub(crate) struct LeaseTerms {
    /// The duration of the lease and of each renewal.
    pub(crate) visibility: Duration,
    /// The maximum run time: renewals end this long after the start of the run, apart from a handler's grace.
    pub(crate) max_run_time: Duration,
}

/// The queue of leased messages, and the handles for changing them. All leases of an open queue share it.
#[derive(Debug)]
pub(crate) struct LeasedQueue {
    pub(crate) name: QueueName,
    /// The handle for the runtime that runs the handler.
    pub(crate) store: Arc<Queues>,
    /// The handle for the renewer's runtime.
    pub(crate) renewer_store: Arc<Queues>,
    pub(crate) renewer: LeaseRenewer,
    pub(crate) observers: Arc<Observers>,
}
