//! Promises about the time to live.

use crate::prelude::*;

fn living(ttl: u64) -> PutMessage {
    PutMessage::new("text").with_ttl(Some(secs(ttl)))
}

promises! { "ttl";
    /// A message without a time to live never expires.
    async fn may_be_endless(subject, queue) {
        ensure_eq!(queue.put("text").await?.expires, None, "expiry by put");
        ensure_eq!(queue.peek(1).await?.first().map(|m| m.expires), Some(None), "expiry by peek");
        ensure_eq!(queue.get_one(LONG_TIMEOUT).await?.expires, None, "expiry by get");
    }

    /// A time to live of more than 7 days is accepted.
    async fn may_be_longer_than_7_days(subject, queue) {
        let put = queue.put_with(living(30 * 86_400)).await?;
        ensure!(put.expires.is_some_and(|at| at > put.inserted + secs(29 * 86_400)), "{put:?}");
    }

    /// The longest time to live is accepted.
    async fn may_be_of_any_length(_subject, queue) {
        queue.put_with(living(u64::MAX)).await?;
        queue.get_one(LONG_TIMEOUT).await?;
    }

    /// A time to live of zero is refused.
    async fn may_not_be_zero(subject, queue) {
        refused(queue.put_with(living(0)).await, &[K::InvalidInput])?;
    }

    /// A delay as long as the time to live, or longer, is refused; a shorter delay is accepted.
    async fn is_longer_than_the_delay(subject, queue) {
        for delay in [60, 61] {
            refused(queue.put_with(living(60).with_visibility_delay(secs(delay))).await, &[K::InvalidInput])?;
        }
        queue.put_with(living(60).with_visibility_delay(secs(59))).await?;
        ensure_eq!(queue.count().await?, 1, "messages");
    }

    /// A message whose time to live is over appears neither in a get nor in a peek.
    async fn ends_a_waiting_message(subject, queue) {
        queue.put_with(living(1)).await?;
        queue.put("stays").await?;
        subject.advance(secs(2)).await;
        ensure_eq!(queue.peek(32).await?.len(), 1, "messages peeked at");
        ensure_eq!(queue.get_all(LONG_TIMEOUT).await?.len(), 1, "messages got");
    }

    /// A message whose time to live ends while it is leased does not come back.
    async fn ends_a_leased_message(subject, queue) {
        queue.put_with(living(2)).await?;
        queue.get_one(secs(1)).await?;
        subject.advance(secs(3)).await;
        ensure!(queue.get(1, LONG_TIMEOUT).await?.is_empty(), "an expired message came back");
    }

    /// A lease may outlast the time to live, but an expired message can be neither changed nor deleted.
    async fn ends_receipts(subject, queue) {
        queue.put_with(living(2)).await?;
        let message = queue.get_one(LONG_TIMEOUT).await?.message;
        subject.advance(secs(3)).await;
        refused(queue.update(&message, LONG_TIMEOUT).await, &[K::MessageNotFound])?;
        refused(queue.delete(&message).await, &[K::MessageNotFound])?;
    }

    /// Get and peek return the same insertion and expiry times; those of the put agree with them.
    async fn is_told_by_get_and_peek(subject, queue) {
        let put = queue.put_with(living(1000)).await?;
        let Some(peeked) = queue.peek(1).await?.pop() else {
            return Err(Broken::new("no message"));
        };
        ensure!(near(peeked.inserted, put.inserted, subject.tolerance()), "insertion by peek: {peeked:?}");
        ensure_eq!(peeked.expires, put.expires, "expiry by peek");
        let got = queue.get_one(LONG_TIMEOUT).await?;
        ensure_eq!(got.inserted, peeked.inserted, "insertion by get");
        ensure_eq!(got.expires, put.expires, "expiry by get");
    }
}
