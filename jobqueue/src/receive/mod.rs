//! Receives messages without a worker, and inspects queues.

mod backlog;
mod by_hand;
mod manual_delivery;
mod peek;

pub use backlog::Backlog;
pub use manual_delivery::Delivery;
#[cfg(feature = "schedule")]
pub(crate) use peek::is_waiting;
pub(crate) use peek::{is_of_another_kind, read_text};
