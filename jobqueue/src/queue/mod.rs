//! Typed queues: send, receive, and settle deliveries by hand.
//!
//! This module knows messages, envelopes, claim checks, leases and the storage port. It knows nothing of adapters,
//! workers or handlers.

mod backlog;
mod blobs;
mod dead_letter;
pub(crate) mod dead_letters;
mod decode;
mod deferral;
mod delivery;
mod errors;
mod history;
mod leased_job;
mod progress;
mod put;
mod queue_core;
mod read;
mod receive;
mod request;
mod resend;
mod room;
mod send;
mod send_all;
mod send_options;
mod settings;
mod settle;
mod spare;
pub(crate) mod trace;
mod typed;
mod unique;
mod unreceived;
#[cfg(feature = "testing")]
mod virtual_time;

pub use backlog::Backlog;
pub use delivery::Delivery;
pub use request::{All, One, SendFuture, SendRequest, Unique};
pub use send::Sent;
pub use send_all::SendItem;
pub use send_options::SendOptions;
pub use typed::Queue;
pub use unique::SendUniqueOutcome;

pub(crate) use dead_letter::DEAD_LETTER_RETRY;
pub(crate) use dead_letter::unwrap_unreadable;
pub(crate) use dead_letters::past_dead_letters;
pub(crate) use dead_letters::{DeadLetterQueue, PassAction};
pub(crate) use decode::{Decoded, Incoming, Kinds, Rejection};
pub(crate) use deferral::{Cause, Deferred};
pub(crate) use delivery::{from_json, to_json};
pub(crate) use leased_job::LeasedJob;
pub(crate) use queue_core::{QueueCore, QueueCoreOptions};
pub(crate) use read::payload_error;
pub(crate) use receive::Idle;
pub(crate) use send::new_id;
pub(crate) use unique::CONTAINER as UNIQUE;
pub(crate) use unreceived::{Stored, Unreceived};

pub(crate) use crate::envelope::{EventDigest, Identity, IdentityDigest};
