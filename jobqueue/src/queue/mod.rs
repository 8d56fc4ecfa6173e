//! Typed queues: send, receive, and what can be done with a delivery.
//!
//! Knows messages, envelopes, claim checks, leases and the storage port; knows nothing of adapters, workers or handlers.

mod backlog;
mod bury;
mod channel;
mod claimed;
mod dead_letters;
mod delivery;
mod errors;
mod examine;
pub(crate) mod order;
mod progress;
mod read;
mod receive;
mod send;
mod send_all;
mod send_options;
mod settings;
mod settle;
pub(crate) mod trace;
mod typed;
mod unique;
mod unreceived;
#[cfg(feature = "testing")]
mod virtual_time;

pub use backlog::Backlog;
pub use dead_letters::{DeadLetter, DeadLetters, PastDeadLetter, Purged, RedriveOptions, Redriven};
pub use delivery::Delivery;
pub use send::Sent;
pub use send_options::SendOptions;
pub use typed::Queue;
pub use unique::Unique;

pub(crate) use bury::BURY_RETRY;
pub(crate) use channel::{Channel, ChannelOptions};
pub(crate) use claimed::Claimed;
pub(crate) use delivery::{from_json, to_json};
pub(crate) use examine::{BareAs, Examined, Rejection};
pub(crate) use settle::{Excuse, Settled};
