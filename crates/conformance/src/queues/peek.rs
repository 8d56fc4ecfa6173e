//! Promises about peeking at messages.

use crate::prelude::*;

promises! { "peek";
    /// A peek shows visible messages without leasing them.
    async fn leases_nothing(subject, queue) {
        let put = queue.put("text").await?;
        for _ in 0..2 {
            let peeked = queue.peek_one().await?;
            ensure_eq!(peeked.id, put.message.id, "id");
            ensure_eq!(peeked.text.as_deref(), Ok("text"), "text");
        }
        queue.get_one(LONG_TIMEOUT).await?;
    }

    /// A peek shows the dequeue count and does not raise it.
    async fn does_not_count(subject, queue) {
        queue.put("text").await?;
        ensure_eq!(queue.peek_one().await?.dequeue_count, 0, "dequeue count before a get");
        let got = queue.get_one(LONG_TIMEOUT).await?;
        ensure_eq!(got.dequeue_count, 1, "dequeue count of the get");
        queue.update(&got.message, secs(0)).await?;
        ensure_eq!(queue.peek_one().await?.dequeue_count, 1, "dequeue count after a get");
    }

    /// A peek leaves receipts as they are.
    async fn does_not_touch_receipts(subject, queue) {
        let put = queue.put("text").await?;
        queue.peek(1).await?;
        queue.delete(&put.message).await?;
    }

    /// A peek shows no delayed and no leased messages.
    async fn shows_no_invisible_messages(subject, queue) {
        queue.put_with(PutMessage::new("delayed").with_visibility_delay(LONG_TIMEOUT)).await?;
        queue.put_and_get("leased", LONG_TIMEOUT).await?;
        ensure!(queue.peek(32).await?.is_empty(), "an invisible message was shown");
    }

    /// A peek shows at most as many messages as requested.
    async fn shows_no_more_than_asked_for(subject, queue) {
        for _ in 0..3 {
            queue.put("text").await?;
        }
        ensure!(queue.peek(2).await?.len() <= 2, "more than 2");
    }

    /// A peek at no messages, or at more than 32, is refused.
    async fn takes_counts_from_1_to_32(subject, queue) {
        for count in [0, 33] {
            refused(queue.peek(count).await, &[K::InvalidInput])?;
        }
        ensure!(queue.peek(32).await?.is_empty(), "messages out of nothing");
    }
}
