//! The pace at which a worker fetches from one queue: less while every job fails, while requests for many messages
//! fail, or while
//! the messages are for other workers; nothing while a handler has snoozed the queue. It also bounds the rate at which
//! messages that cannot run become dead letters.
//!
//! It knows how requests and attempts ended, and nothing of messages.

mod circuit;
mod fallback;
mod rejections;
mod unknown;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::delivery::Snooze;
use crate::storage::StoreError;
use crate::sync::lock;
use circuit::Circuit;
pub use circuit::CircuitBreaker;
pub(super) use circuit::{Change, Permit, Probe};
use fallback::SingleMessageFallback;
pub(super) use rejections::Rejections;
use unknown::UnknownRatio;

pub(super) struct Pacing {
    pub(super) circuit: Arc<Circuit>,
    pub(super) unknown: UnknownRatio,
    fallback: Mutex<SingleMessageFallback>,
    /// The rate of all queues of the worker.
    pub(super) rejections: Arc<Rejections>,
    pub(super) snooze: Arc<Snooze>,
}

impl Pacing {
    pub(super) fn new(
        breaker: Option<CircuitBreaker>,
        rejections: &Arc<Rejections>,
        snooze: &Arc<Snooze>,
    ) -> Self {
        Self {
            circuit: Arc::new(Circuit::new(breaker)),
            unknown: UnknownRatio::default(),
            fallback: Mutex::default(),
            rejections: Arc::clone(rejections),
            snooze: Arc::clone(snooze),
        }
    }

    /// Returns the maximum number of messages of one request.
    pub(super) fn at_most(&self) -> u32 {
        lock(&self.fallback).at_most()
    }

    /// Records a failed request on a queue whose leases last `lease`.
    pub(super) fn request_failed(&self, error: &StoreError, lease: Duration) {
        lock(&self.fallback).note(error, lease);
    }
}
