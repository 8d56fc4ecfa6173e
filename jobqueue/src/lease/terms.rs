//! The parts of a lease at its start: the queue of its message, and the time for which it lasts.

use std::sync::Arc;
use std::time::Duration;

use super::renewer_thread::LeaseRenewer;
use crate::event::Observers;
use crate::storage::{QueueName, Queues};

#[derive(Debug, Clone)]
pub(crate) struct LeaseTerms {
    /// The duration of the lease and of each renewal.
    pub(crate) visibility: Duration,
    /// The maximum time for which the lease is renewed from the begin of the run.
    pub(crate) max_run_time: Duration,
}

/// The queue of a leased message, and the handles through which it is changed.
#[derive(Debug, Clone)]
pub(crate) struct LeasedQueue {
    pub(crate) name: QueueName,
    /// The handle of the runtime that runs the handler.
    pub(crate) store: Arc<Queues>,
    /// The handle of the renewer's runtime.
    pub(crate) renewer_store: Arc<Queues>,
    pub(crate) renewer: LeaseRenewer,
    /// The observers of renewals and losses.
    pub(crate) observers: Arc<Observers>,
}
