//! Operations on queues, each a function inside a transaction, and the port over them.

mod admin;
mod get;
mod index;
mod leased;
mod put;
mod store;

#[cfg(test)]
pub(super) use admin::{ALL, EXPIRED, EXPIRED_VISIBLE, HIDDEN, LATER, NAMES, WAITING};
#[cfg(test)]
pub(super) use index::{FIRST, NEXT_OF_GROUPS};
pub(super) use put::put;
