//! What several processes have to agree on: who leads, and what is due when.
//!
//! Knows storages and queues; knows nothing of adapters, and of the worker only the builder that schedules are
//! registered on.

mod leader;
mod schedule;

pub use leader::{Leader, Leadership};
pub use schedule::{Missed, Schedule};
