//! Operations on blobs, and the blob half of the port.
//!
//! A change reads the row, decides by the rules of the port, and writes only if the row is unchanged: its
//! `revision` is the same, and whether it has an active lease has not changed. No lock is held between
//! statements.

mod row;
mod size;
mod store;

pub(crate) use size::check_put;
pub(crate) use store::{CREATE, CREATE_CONTAINER};
