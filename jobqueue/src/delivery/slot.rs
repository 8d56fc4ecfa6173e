//! The slot of a delivery in its worker, which bounds concurrent work.

use std::time::Duration;

use futures_util::future::BoxFuture;

/// The class of a message before its handler runs, for the worker's statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageClass {
    Known,
    /// The handler has reached a limit.
    OverLimit,
    /// The worker has no handler for the kind or the version, or cannot decode the payload now.
    Unknown,
    /// As [`Unknown`](Self::Unknown), and the message has been delivered before.
    UnknownAgain,
}

/// The slot of one delivery. Dropping it frees it for another delivery.
pub(crate) trait DeliverySlot: Send + Sync {
    fn classify(&self, class: MessageClass);

    /// Reserves a permit for a handler of `kind` until [`admit`](Self::admit),
    /// [`give_back_permit`](Self::give_back_permit) or the end of the delivery. If none is free, returns how
    /// long to put the message back.
    fn reserve(&self, kind: &str) -> Result<(), Duration>;

    /// Releases the handler's permit to other deliveries of its kind, because this delivery waits.
    /// [`admit`](Self::admit) takes a permit again.
    fn give_back_permit(&self);

    /// Releases the handler's permit, and the probe of an open circuit to another delivery. Nothing takes a
    /// probe again: only for a delivery that does not run, or that checks
    /// [`is_fetching_paused`](Self::is_fetching_paused) before it runs.
    fn give_back(&self);

    /// Returns how long the handler of `kind` must wait before it begins (1 second at most), or else how long
    /// to put the message back.
    fn admit(&self, kind: &str) -> Result<Duration, Duration>;

    /// Returns `Ok` if a message that did not run may be dead-lettered now, or else how long to put it back,
    /// at most `longest`.
    fn reject(&self, longest: Duration) -> Result<(), Duration>;

    /// Frees the slot for another handler, if a place to settle is free: the handler has finished, and the
    /// message is about to be deleted or put back. Returns whether the slot was freed.
    fn handler_is_done(&self) -> bool;

    /// Frees the slot for another handler, if the delivery has one and a place to settle is free.
    fn give_away(&self);

    /// Frees the slot for another delivery until [`take`](Self::take), because this delivery waits, before
    /// its handler runs or after it.
    fn leave(&self);

    /// Waits for a place to settle if the delivery has left its slot. Cancel-safe.
    fn take_place_to_settle(&self) -> BoxFuture<'_, ()>;

    /// Returns whether the worker fetches nothing from the queue for now: a handler has snoozed the queue, or
    /// its circuit breaker is not closed.
    fn is_fetching_paused(&self) -> bool;

    /// Waits for a slot after [`leave`](Self::leave). Cancel-safe.
    fn take(&self) -> BoxFuture<'_, ()>;
}
