//! The limits of one worker: how many handlers run at once, by queue and by handler, and how often they begin.
//!
//! This module knows numbers and times, and nothing of messages. The poller fetches a message only when its queue has a
//! slot, and a token if the rate is limited, so that no leased message waits for a limit. Only messages that come later than others, which
//! took their tokens before them, wait when they are about to begin: for a second at most, or they are put back.

mod rate;
mod settings;
mod shares;
mod slots;

pub use rate::RateLimit;
pub use settings::{HandlerLimits, QueueLimits};

pub(super) use settings::LimitSettings;
pub(super) use slots::{Occupied, QueueSlots, Slot, Slots};
