//! Promises about counting messages by state.

use crate::prelude::*;
use jobqueue::storage::StateCounts;

promises! { "counts" if |storage| storage.queues().powers().counts.is_some();
    /// Counts by state have each message in its own state, and no expired message.
    async fn are_those_of_each_state(subject, queue) {
        queue.put_with(PutMessage::new("expired").with_ttl(secs(1))).await?;
        subject.advance(secs(2)).await;
        queue.put_and_get("running", LONG_TIMEOUT).await?;
        for text in ["back", "off"] {
            queue.put_back(text).await?;
        }
        for _ in 0..3 {
            queue.put_with(PutMessage::new("delayed").with_visibility_delay(LONG_TIMEOUT)).await?;
        }
        for _ in 0..4 {
            queue.put("waiting").await?;
        }
        let expected = StateCounts { waiting: 4, delayed: 3, backing_off: 2, running: 1 };
        ensure_eq!(queue.store.counts_by_state(&queue.name).await?, Some(expected), "counts");
    }
}
