//! What several processes have to agree on: who leads, what is due when, and when many jobs are
//! all done.
//!
//! Knows storages and queues; knows nothing of adapters, and of the worker only the builder that schedules are
//! registered on and the hooks it calls around deliveries.

pub(crate) mod batch;
mod leader;
mod schedule;

pub use leader::{Leader, Leadership};
pub use schedule::{Missed, Schedule};
