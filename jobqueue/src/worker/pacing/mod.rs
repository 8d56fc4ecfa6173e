//! The pace at which a worker fetches from one queue: less while every job fails, or while the messages are for other workers;
//! nothing while a handler has snoozed the queue. It also bounds the rate at which messages that cannot run become dead letters.
//!
//! It knows how requests and attempts ended, and nothing of messages.

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
            rejections: Arc::clone(rejections),
            snooze: Arc::clone(snooze),
        }
    }
}
