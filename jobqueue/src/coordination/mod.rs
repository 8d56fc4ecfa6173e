//! Coordination of several processes and jobs: leaders, schedules and batches.
//!
//! This module knows storages, queues, and the worker's hooks and background tasks. It knows nothing of adapters.

pub(crate) mod batch;
mod leader;
mod schedule;

pub use leader::{Leader, Leadership};
pub use schedule::{CatchUp, Schedule};
