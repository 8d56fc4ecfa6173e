//! The limits of one worker: how many handlers run at once, by queue and by handler, and how often they begin.
//!
//! This module knows numbers and times, and nothing of messages. The poller fetches a message only when its queue has a
//! slot, and a token if the rate is limited, so that leased messages do not wait for a limit. One exception: if a storage was slow, many
//! messages with tokens come at once. Their jobs begin at the rate all the same; each waits for a second at most, or is put back.

mod handler_count;
mod rate;
mod settings;
mod shares;
mod slots;

pub use rate::RateLimit;
pub use settings::{HandlerLimits, QueueLimits};

pub(super) use settings::LimitSettings;
pub(super) use slots::{Occupied, QueueSlots, Slot, Slots};
