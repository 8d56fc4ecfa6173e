//! Operations on queues, each a function around a statement, and the queue half of the port.

mod admin;
mod count;
mod get;
mod index;
mod leased;
mod put;
mod refusal;
mod renew;
mod shared;
mod store;
mod update;

pub(crate) use put::{PUT_ONE, Put};
pub(crate) use refusal::{INSPECT_ONE, inspect_one, reason};
pub(crate) use update::{UPDATE, Update};
