//! The clock, the random numbers and the tasks of a process, as one handle.

#[doc(inline)]
pub use jobqueue_storage::runtime::{Runtime, TaskGate};
