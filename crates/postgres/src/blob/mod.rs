//! Operations on blobs, and the port over them.
//!
//! A change reads the row, decides by the rules of the port, and writes on condition that the row has not changed: its `revision` is the same, and its lease has not
//! ended. No lock is held from one statement to the next.

mod row;
mod size;
mod store;

pub(crate) use size::check_put;
pub(crate) use store::{CREATE, CREATE_CONTAINER};
