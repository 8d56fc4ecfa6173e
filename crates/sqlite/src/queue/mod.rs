//! Operations on queues, each a function inside a transaction, and the port over them.

mod admin;
mod delete;
mod get;
mod index;
mod lease;
mod peek;
mod put;
mod store;
mod update;

#[cfg(test)]
pub(super) use admin::{ALL, EXPIRED, EXPIRED_VISIBLE, HIDDEN, LATER, NAMES, WAITING};
#[cfg(test)]
pub(super) use peek::{FIRST, NEXT_OF_GROUPS};
pub(super) use put::put;
