//! The limits of one worker: how many handlers run at once, by queue and by handler, and how often they
//! begin.
//!
//! This module knows numbers and times, and nothing of messages. The poller fetches a message only when its
//! queue has a slot and, if the rate is limited, a token, so that leased messages do not wait for a limit.
//! There is one exception: after a delay in the storage, many messages with tokens may arrive at once. Their
//! jobs still begin at the rate; each message waits for at most a second, or is put back.

mod handler_count;
mod rate;
mod settings;
mod shares;
mod slots;

pub use rate::RateLimit;
pub use settings::{HandlerLimits, QueueLimits};

pub(super) use settings::LimitSettings;
pub(super) use slots::{Occupied, QueueSlots, Slot};
