//! Defines what several processes have to agree on, and work that several jobs do together: who leads, what is due when, and
//! whether all children of a fan-out are done.
//!
//! Knows storages, queues and the worker's hooks and background tasks; knows nothing of adapters.

pub(crate) mod batch;
mod leader;
mod schedule;

pub use leader::{Leader, Leadership};
pub use schedule::{CatchUp, Schedule};
