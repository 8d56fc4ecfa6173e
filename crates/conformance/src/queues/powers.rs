//! Promises of what a storage says that it does by itself: it keeps the order of groups, it has dead-letter queues.

use crate::prelude::*;
use jobqueue::storage::{DeadLetterCause, DeadLetterMessage, StateCounts};

promises! { "powers";
    /// A storage that keeps the order of groups delivers a message only after those before it in its group are deleted.
    async fn to_order_groups_are_kept(subject) {
        for together in [false, true] {
            let queue = subject.queue().await?;
            if !queue.store.orders_groups(&queue.name).await? {
                return Ok(());
            }
            let grouped = |(text, group): (&str, &str)| PutMessage::new(text).with_group(group.to_owned());
            let messages = [("a1", "a"), ("a2", "a"), ("b1", "b")].map(grouped);
            if together {
                for put in queue.store.put_all(&queue.name, messages.to_vec().into()).await {
                    put?;
                }
            } else {
                for message in messages {
                    queue.put_with(message).await?;
                }
            }
            let mut first = queue.get_all(LONG).await?;
            first.sort_by_key(|leased| leased.text.clone().ok());
            let texts: Vec<_> = first.iter().filter_map(|leased| leased.text.as_deref().ok()).collect();
            ensure_eq!(texts, ["a1", "b1"], "the first of each group, put together: {together}");
            queue.update(&first[0].message, secs(0)).await?;
            let again = queue.get_one(LONG).await?;
            ensure_eq!(again.text.as_deref(), Ok("a1"), "the first of its group, after it was given back");
            queue.delete(&again.message).await?;
            ensure_eq!(queue.get_one(LONG).await?.text.as_deref(), Ok("a2"), "the next of its group");
        }
    }

    /// A storage that counts by state counts each message in its state, and no expired one.
    async fn to_count_states_is_kept(subject, queue) {
        if queue.store.powers().counts.is_none() {
            return Ok(());
        }
        queue.put_with(PutMessage::new("expired").with_ttl(secs(1))).await?;
        subject.advance(secs(2)).await;
        queue.put_and_get("running", LONG).await?;
        for text in ["back", "off"] {
            queue.put_back(text).await?;
        }
        for _ in 0..3 {
            queue.put_with(PutMessage::new("delayed").with_visibility_delay(LONG)).await?;
        }
        for _ in 0..4 {
            queue.put("waiting").await?;
        }
        let expected = StateCounts { waiting: 4, delayed: 3, backing_off: 2, running: 1 };
        ensure_eq!(queue.store.counts_by_state(&queue.name).await?, Some(expected), "counts");
    }

    /// A storage with dead-letter queues moves a leased message there in one step, with the new text; a stale receipt moves nothing.
    async fn to_dead_letter_is_kept(subject, queue) {
        if queue.store.powers().dead_letters.is_none() {
            return Ok(());
        }
        let letter = || DeadLetterMessage::new("letter", DeadLetterCause::new("rejected"));
        let message = queue.put_and_get("text", LONG).await?.message;
        queue.store.dead_letter(&queue.name, &message, letter()).await?;
        refused(queue.store.dead_letter(&queue.name, &message, letter()).await, STALE)?;
        ensure!(queue.get(1, LONG).await?.is_empty(), "it is still in its queue");
        let name = queue.name.dead_letter().map_err(|error| Broken::new(error.to_string()))?;
        let dead = TestQueue { store: queue.store.clone(), name };
        ensure_eq!(dead.get_one(LONG).await?.text.as_deref(), Ok("letter"), "text of the letter");
    }
}
