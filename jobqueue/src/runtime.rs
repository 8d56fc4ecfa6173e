//! A handle to the clock, the random numbers and the tasks of a process.

#[doc(inline)]
pub use jobqueue_storage::runtime::{Runtime, TaskGate};
