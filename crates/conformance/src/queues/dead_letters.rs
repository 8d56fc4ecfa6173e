//! Promises about native dead-letter queues.

use crate::prelude::*;
use jobqueue::storage::{DeadLetterCause, DeadLetterMessage};

promises! { "dead_letters" if |storage| storage.queues().powers().dead_letters.is_some();
    /// A leased message becomes a dead letter in one step, with a new text; a stale receipt moves nothing.
    async fn are_moved_in_one_step(subject, queue) {
        let letter = || DeadLetterMessage::new("letter", DeadLetterCause::new("rejected"));
        let message = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        queue.store.dead_letter(&queue.name, &message, letter()).await?;
        refused(queue.store.dead_letter(&queue.name, &message, letter()).await, STALE)?;
        ensure!(queue.get(1, LONG_TIMEOUT).await?.is_empty(), "it is still in its queue");
        let name = queue.name.dead_letter().map_err(|error| Broken::new(error.to_string()))?;
        let dead = TestQueue { store: queue.store.clone(), name };
        let letters = dead.get_all(LONG_TIMEOUT).await?;
        let texts: Vec<_> = letters.iter().filter_map(|letter| letter.text.as_deref().ok()).collect();
        ensure_eq!(texts, ["letter"], "texts of the letters");
    }
}
