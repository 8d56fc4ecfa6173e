//! The pace at which a worker fetches from one queue: slower while every job fails or the messages are for
//! other workers, and not at all while a handler has snoozed the queue. Also bounds the rate at which
//! messages that cannot run become dead letters.
//!
//! This module knows the results of requests and attempts. It knows nothing of messages.

mod circuit;
mod rejections;
mod unknown;

pub use circuit::CircuitBreaker;
pub(super) use circuit::{Circuit, CircuitChange, Permit, Probe};
pub(super) use rejections::Rejections;
pub(super) use unknown::UnknownRatio;
