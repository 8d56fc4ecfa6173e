//! Promises about storages that list every message, but do not show which are leased.

use std::sync::Arc;

use crate::prelude::*;
use jobqueue::storage::{LoggedState, MessageLog};

fn log_of(queue: &TestQueue) -> Result<Arc<dyn MessageLog>, Broken> {
    queue.store.powers().log.clone().ok_or_else(|| Broken::new("the storage has no log of messages"))
}

/// Returns the texts and states of all messages, or of those in one state, read in pages of `count`.
async fn walk(
    queue: &TestQueue,
    state: Option<LoggedState>,
    count: u32,
) -> Result<Vec<(String, LoggedState)>, Broken> {
    let (log, mut all, mut next) = (log_of(queue)?, Vec::new(), None::<String>);
    loop {
        let page = log.logged(&queue.name, state, next.as_deref(), count).await?;
        ensure!(page.messages.len() <= count as usize, "a page has {} messages", page.messages.len());
        ensure!(!page.is_partial, "the queue may have messages that no page shows");
        for logged in page.messages {
            all.push((logged.message.text.map_err(Broken::new)?, logged.state));
        }
        next = page.next;
        let Some(end) = &next else { return Ok(all) };
        let is_plain = end.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        ensure!(is_plain, "the end of a page is {end:?}");
    }
}

promises! { "log" if |storage| storage.queues().powers().log.is_some();
    /// Each message is shown once, in its state; a leased message is active.
    async fn shows_each_message_once(subject, queue) {
        queue.put_and_get("running", LONG_TIMEOUT).await?;
        queue.put_back("backing off").await?;
        queue.put_with(PutMessage::new("delayed").with_visibility_delay(LONG_TIMEOUT)).await?;
        queue.put("waiting").await?;
        let states = [
            ("backing off", LoggedState::BackingOff),
            ("delayed", LoggedState::Delayed),
            ("running", LoggedState::Active),
            ("waiting", LoggedState::Active),
        ];
        let states = states.map(|(text, state)| (text.to_owned(), state));
        for count in [1, 2, 10] {
            let mut shown = walk(&queue, None, count).await?;
            shown.sort_by(|(one, _), (other, _)| one.cmp(other));
            ensure_eq!(shown, states, "messages in pages of {count}");
        }
        for state in LoggedState::ALL {
            let mut shown = walk(&queue, Some(state), 10).await?;
            shown.sort_by(|(one, _), (other, _)| one.cmp(other));
            let expected = states.iter().filter(|(_, of)| *of == state).cloned().collect::<Vec<_>>();
            ensure_eq!(shown, expected, "messages of {state:?}");
        }
    }

    /// Pages show all messages once, in the order in which they were put.
    async fn shows_all_page_by_page(subject, queue) {
        for number in 0..7 {
            queue.put(&number.to_string()).await?;
        }
        for count in [1, 2, 3, 7, 1_000] {
            let shown = walk(&queue, None, count).await?;
            let texts = shown.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>();
            ensure_eq!(texts, ["0", "1", "2", "3", "4", "5", "6"], "texts in pages of {count}");
        }
    }

    /// A page with an unknown beginning, of no or too many messages, or of a missing queue is refused.
    async fn refuses_wrong_pages(subject, queue) {
        let log = log_of(&queue)?;
        for (from, count) in [(Some("?"), 1), (None, 0), (None, 1_001)] {
            let page = log.logged(&queue.name, None, from, count).await;
            refused(page, &[K::InvalidInput])?;
        }
        let missing = subject.missing_queue().await?;
        refused(log.logged(&missing.name, None, None, 1).await, &[K::QueueNotFound])?;
    }
}
