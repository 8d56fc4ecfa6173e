//! The counters of a link, as seen in the frames of a connection.

use std::time::SystemTime;

use super::super::nesting::Nesting;

/// The peer's channel number, and the peer's handle of the link in that channel.
pub(in super::super) type LinkKey = (u16, u32);

/// The counters of a link since its attach.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct LinkStats {
    pub(super) name: String,
    /// The end of the lock of the link's session, if the answer to the attach contains it.
    pub(in super::super) locked_until: Option<SystemTime>,
    pub(super) sends: bool,
    pub(super) deliveries: u64,
    /// The peer's delivery count, which grows by one with each delivery, and by the unused credit with a
    /// drain.
    pub(in super::super) count: u32,
    /// The part of `count` that drains have added. The client has not counted it.
    pub(in super::super) drained: u32,
    /// The delivery count and the number of deliveries at the end of the last drain.
    pub(super) drained_at: Option<(u32, u64)>,
    /// The number of the current delivery, and its message as far as it has arrived.
    pub(super) delivery: Option<u32>,
    pub(super) message: Nesting,
}

impl LinkStats {
    /// Returns how many deliveries the peer had sent when it answered a drain that was requested after its
    /// delivery count was `since`; `None` before that answer. A late answer to an earlier drain still has the
    /// count `since`.
    pub(in super::super) fn drained_since(&self, since: u32) -> Option<u64> {
        let (count, deliveries) = self.drained_at?;
        (count.wrapping_sub(since).cast_signed() > 0).then_some(deliveries)
    }
}
