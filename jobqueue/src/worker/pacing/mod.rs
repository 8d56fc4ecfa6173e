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

use tokio::time::Instant;

use crate::delivery::{MessageClass, Snooze};
use crate::job::outcome::Outcome;
use crate::runtime::Runtime;
use crate::storage::StoreError;
use crate::sync::lock;
use circuit::Circuit;
pub use circuit::CircuitBreaker;
pub(super) use circuit::{Change, Permit, Probe};
use fallback::SingleMessageFallback;
pub(super) use rejections::Rejections;
use unknown::UnknownRatio;

pub(super) struct Pacing {
    circuit: Arc<Circuit>,
    unknown: UnknownRatio,
    fallback: Mutex<SingleMessageFallback>,
    /// The rate of all queues of the worker.
    rejections: Arc<Rejections>,
    snooze: Arc<Snooze>,
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

    /// Returns the end of the snooze, if a handler has snoozed the queue.
    pub(super) fn snoozed_until(&self) -> Option<Instant> {
        self.snooze.until()
    }

    /// Returns the circuit's permission to fetch.
    pub(super) fn permit(&self) -> Permit {
        self.circuit.permit()
    }

    /// Records that the message of a probe was fetched.
    pub(super) fn probe(&self) -> Probe {
        self.circuit.probe()
    }

    /// Resolves when a delivery has ended since the last call.
    pub(super) async fn delivery_ended(&self) {
        self.circuit.ended().await;
    }

    /// Records how a delivery ended, and whether it was the probe.
    pub(super) fn record(
        &self,
        job: Option<&Arc<str>>,
        outcome: &Outcome,
        probe: Option<&Probe>,
    ) -> Option<Change> {
        self.circuit.record(job, outcome, probe)
    }

    /// Returns the maximum number of messages of one request.
    pub(super) fn at_most(&self) -> u32 {
        lock(&self.fallback).at_most()
    }

    /// Records a failed request on a queue whose leases last `lease`.
    pub(super) fn request_failed(&self, error: &StoreError, lease: Duration) {
        lock(&self.fallback).note(error, lease);
    }

    pub(super) fn classify(&self, class: MessageClass) {
        self.unknown.note(class);
    }

    /// Returns the pause before the next fetch, which leaves the queue to other workers. `may_be_long` is false if the
    /// last fetch was full: messages that this worker knows may wait behind unknown ones.
    pub(super) fn pause(&self, may_be_long: bool, runtime: &Runtime) -> Duration {
        self.unknown.pause(may_be_long, runtime)
    }

    /// Takes a permit to dead-letter one message that did not run. Without one, returns for how long to put it back.
    pub(super) fn reject(&self) -> Result<(), Duration> {
        self.rejections.permit()
    }
}
