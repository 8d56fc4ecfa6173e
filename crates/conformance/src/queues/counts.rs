//! Promises about counting messages by state.

use crate::prelude::*;
use jobqueue::storage::StateCounts;

promises! { "counts" if |storage| storage.queues().powers().counts.is_some();
    /// Each message counts in its own state and an expired message in none; the oldest in back-off is found.
    async fn are_those_of_each_state(subject, queue) {
        queue.put_with(PutMessage::new("expired").with_ttl(secs(1))).await?;
        subject.advance(secs(2)).await;
        queue.put_and_get("running", LONG_TIMEOUT).await?;
        let first = queue.put_and_get("back", LONG_TIMEOUT).await?;
        queue.update_with(&first.message, UpdateMessage::new(LONG_TIMEOUT).ending_lease()).await?;
        subject.advance(secs(1)).await;
        queue.put_back("off").await?;
        for _ in 0..3 {
            queue.put_with(PutMessage::new("delayed").with_visibility_delay(LONG_TIMEOUT)).await?;
        }
        for _ in 0..4 {
            queue.put("waiting").await?;
        }
        let oldest_backing_off = Some(first.inserted);
        let expected = StateCounts { waiting: 4, delayed: 3, backing_off: 2, running: 1, oldest_backing_off };
        ensure_eq!(queue.store.counts_by_state(&queue.name).await?, Some(expected), "counts");
    }
}
