//! The place of a delivery in its worker, which bounds what may happen at once.

use std::time::Duration;

use futures_util::future::BoxFuture;

/// The worker's data about a message before its handler runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageClass {
    Known,
    /// The message's handler has reached a limit.
    OverLimit,
    /// No handler of the worker knows the kind or the version.
    Unknown,
}

/// The slot of one delivery. The worker frees it when it is dropped.
pub(crate) trait DeliverySlot: Send + Sync {
    fn classify(&self, class: MessageClass);

    /// Keeps the place of a handler of `kind` until [`admit`](Self::admit), [`give_back`](Self::give_back) or the end of the delivery.
    /// Returns the time for which the message is put back if there is none.
    fn reserve(&self, kind: &str) -> Result<(), Duration>;

    /// Gives the place of a handler to other deliveries of its kind, and the test of an open circuit to another delivery: this one waits.
    /// [`admit`](Self::admit) takes a place again.
    fn give_back(&self);

    /// Returns the time after which the handler of `kind` may begin, a second at most, else the time for which the message is put back.
    fn admit(&self, kind: &str) -> Result<Duration, Duration>;

    /// Returns `Ok` if a message that did not run may be dead-lettered now, else the time for which it is put back.
    fn reject(&self) -> Result<(), Duration>;

    /// Frees the slot for another handler, if there is a place to settle in: this one has finished, and its message is about to be deleted or put back.
    /// Returns whether the slot is free.
    fn handler_is_done(&self) -> bool;

    /// Frees the slot for another delivery until [`take`](Self::take): this one waits, before its handler runs or after it.
    fn leave(&self);

    /// Returns whether the queue is left alone for a while: a handler has asked for that, or all its jobs fail.
    fn is_fetching_paused(&self) -> bool;

    /// Waits for a slot after [`leave`](Self::leave). Cancel-safe.
    fn take(&self) -> BoxFuture<'_, ()>;
}
