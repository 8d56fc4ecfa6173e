//! The numbers of a link, as the frames of a connection show them.

use std::time::SystemTime;

use super::super::nesting::Nesting;

/// The number that the peer gave to a channel, and the one that it gave to a link there.
pub(in super::super) type LinkKey = (u16, u32);

/// The numbers of one link, from its attach on.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct LinkStats {
    pub(super) name: String,
    /// The end of the lock of its session, if the answer to its attach contains one.
    pub(in super::super) locked_until: Option<SystemTime>,
    pub(super) sends: bool,
    pub(super) deliveries: u64,
    /// The peer's delivery count: it grows by one with each delivery, and by unused credit with a drain.
    pub(in super::super) count: u32,
    /// The part of the count that drains have added. The client has not counted it.
    pub(in super::super) drained: u32,
    /// The delivery count and the deliveries at the end of the last drain.
    pub(super) drained_at: Option<(u32, u64)>,
    /// The number of the delivery under way, and its message as far as it has come.
    pub(super) delivery: Option<u32>,
    pub(super) message: Nesting,
}

impl LinkStats {
    /// Returns how many deliveries the peer had sent when it answered a drain that was asked for since its delivery count was `since`; `None`
    /// before. A late answer to an earlier drain has that count.
    pub(in super::super) fn drained_since(&self, since: u32) -> Option<u64> {
        let (count, deliveries) = self.drained_at?;
        (count.wrapping_sub(since).cast_signed() > 0).then_some(deliveries)
    }
}
