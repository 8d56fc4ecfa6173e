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
        let expected = StateCounts { waiting: 4, delayed: 3, backing_off: 2, running: 1, oldest_backing_off, ..StateCounts::default() };
        let counts = queue.store.counts_by_state(&queue.name).await?;
        let has_time = queue.store.queue_properties(&queue.name).await?.now.is_some();
        ensure_eq!(counts.is_some_and(|counts| counts.now >= Some(first.inserted)), has_time, "time of the count");
        ensure_eq!(counts.map(|counts| StateCounts { now: None, ..counts }), Some(expected), "counts");
    }

    // Only a storage that keeps the order itself can find it.
    /// The oldest message that waits for another of its group is found, also behind one that can be received.
    async fn have_the_oldest_that_waits_for_its_group(subject, queue) {
        if !queue.store.orders_groups(&queue.name).await? {
            return Ok(());
        }
        let oldest = async || -> Result<_, Broken> {
            let counts = queue.store.counts_by_state(&queue.name).await?;
            Ok(counts.and_then(|counts| counts.oldest_held_up))
        };
        let put = async |group: &str| -> Result<_, Broken> {
            let put = queue.put_with(PutMessage::new(group).with_group(Some(group.to_owned()))).await?;
            subject.advance(secs(1)).await;
            Ok(put.inserted)
        };
        put("a").await?;
        put("b").await?;
        let later = PutMessage::new("b").with_group(Some("b".to_owned())).with_visibility_delay(secs(600));
        queue.put_with(later).await?;
        ensure_eq!(oldest().await?, None, "the first of each group can be received, and the other is not due");
        let second = put("b").await?;
        put("a").await?;
        ensure_eq!(oldest().await?, Some(second), "the oldest behind another of its group");
    }
}
