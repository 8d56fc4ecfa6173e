//! Operations on queues, each a function inside a transaction, and the port over them.

mod admin;
mod count;
mod get;
mod index;
mod leased;
mod put;
mod ready;
mod store;
#[cfg(test)]
mod world_tests;

#[cfg(test)]
pub(super) use admin::NAMES;
#[cfg(test)]
pub(super) use count::{
    ALL_EXPIRED, BY_TIME, EXPIRED, FIRST_BACKING_OFF, FIRST_HELD_UP, HIDDEN, HIDDEN_EXPIRED, RUNNING, WAITING,
};
pub(super) use leased::update;
pub(super) use put::put;
