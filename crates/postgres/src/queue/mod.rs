//! Operations on queues, each a function around one statement, and the port over them.

mod admin;
mod count;
mod get;
mod index;
mod leased;
mod put;
mod shared;
mod store;

pub(crate) use put::Put;
