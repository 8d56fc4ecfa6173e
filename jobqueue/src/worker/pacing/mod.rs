//! The pace at which a worker fetches from one queue: slower while every job fails or the messages are for
//! other workers, and not at all while a handler has snoozed the queue. Also bounds the rate at which
//! messages that cannot run become dead letters.
//!
//! This module knows the results of requests and attempts. It knows nothing of messages.

mod circuit;
mod rejections;
mod unknown;

use std::sync::Arc;

use crate::delivery::Snooze;
use circuit::Circuit;
pub use circuit::CircuitBreaker;
pub(super) use circuit::{CircuitChange, Permit, Probe};
pub(super) use rejections::Rejections;
use unknown::UnknownRatio;

pub(super) struct Pacing {
    pub(super) circuit: Arc<Circuit>,
    pub(super) unknown: UnknownRatio,
    /// The rate limit that all queues of the worker share.
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
            rejections: Arc::clone(rejections),
            snooze: Arc::clone(snooze),
        }
    }
}
