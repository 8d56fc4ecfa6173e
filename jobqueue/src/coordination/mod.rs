//! Coordination of several processes and jobs: leaders, schedules and batches.
//!
//! This module knows storages, queues, and the worker's hooks and background tasks. It knows nothing of
//! adapters.

pub mod batch;
pub mod leader;
#[cfg(feature = "schedule")]
pub mod schedule;
