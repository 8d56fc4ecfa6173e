//! Operations on blobs, each a function inside a transaction, and the port over them.

mod read;
mod row;
mod store;
mod write;

#[cfg(test)]
pub(super) use read::LIST;
pub(super) use read::content;
pub(super) use row::BlobRow;
pub(super) use store::check_put;
pub(super) use write::{create_container, put};
