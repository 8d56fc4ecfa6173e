//! Promises about storages that list every message.

use std::sync::Arc;

use crate::prelude::*;
use jobqueue::storage::{MessageIndex, MessageState};

fn index(queue: &TestQueue) -> Result<Arc<dyn MessageIndex>, Broken> {
    queue.store.powers().index.clone().ok_or_else(|| Broken::new("the storage has no index of messages"))
}

/// Returns the texts of all messages in a state, read in pages of `count`.
async fn texts(queue: &TestQueue, state: MessageState, count: u32) -> Result<Vec<String>, Broken> {
    let (index, mut all, mut next) = (index(queue)?, Vec::new(), None);
    loop {
        let page = index.messages(&queue.name, state, next.as_deref(), count).await?;
        ensure!(page.messages.len() <= count as usize, "a page has {} messages", page.messages.len());
        all.extend(page.messages.into_iter().filter_map(|(message, _)| message.text.ok()));
        next = page.next;
        let Some(end) = &next else { return Ok(all) };
        let is_plain = end.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        ensure!(is_plain, "the end of a page is {end:?}");
    }
}

promises! { "index" if |storage| storage.queues().powers().index.is_some();
    /// Each message is in the list of its own state, and in no other.
    async fn shows_each_message_once(subject, queue) {
        queue.put_and_get("running", LONG_TIMEOUT).await?;
        queue.put_back("backing off").await?;
        queue.put_with(PutMessage::new("delayed").with_visibility_delay(LONG_TIMEOUT)).await?;
        queue.put("waiting").await?;
        let states = [
            (MessageState::Waiting, "waiting"),
            (MessageState::Delayed, "delayed"),
            (MessageState::BackingOff, "backing off"),
            (MessageState::Running, "running"),
        ];
        for (state, text) in states {
            ensure_eq!(texts(&queue, state, 10).await?, [text], "texts of {state:?}");
        }
    }

    // The end of a page is a plain text, whatever the name of the group.
    /// Pages show all messages once, and count those that wait for another message of their group.
    async fn shows_all_page_by_page(subject, queue) {
        for number in 0..7 {
            let group = (number % 2 == 1).then(|| "a'\n;$(b)\"`".to_owned());
            queue.put_with(PutMessage::new(number.to_string()).with_group(group)).await?;
        }
        for count in [1, 2, 3, 7, 1_000] {
            let mut shown = texts(&queue, MessageState::Waiting, count).await?;
            shown.sort();
            ensure_eq!(shown, ["0", "1", "2", "3", "4", "5", "6"], "texts in pages of {count}");
        }
        let page = index(&queue)?.messages(&queue.name, MessageState::Waiting, None, 7).await?;
        ensure_eq!(page.waiting_for_group, 2, "messages that wait for another of their group");
    }

    /// A hidden message can be made visible; a leased or visible message stays as it is.
    async fn makes_hidden_messages_visible(subject, queue) {
        let index = index(&queue)?;
        let running = queue.put_and_get("running", LONG_TIMEOUT).await?.message.id;
        let back = queue.put_back("backing off").await?.id;
        let delayed = PutMessage::new("delayed").with_visibility_delay(LONG_TIMEOUT);
        let delayed = queue.put_with(delayed).await?.message.id;
        for (id, expected) in [(&running, false), (&delayed, true), (&delayed, false), (&back, true)] {
            ensure_eq!(index.make_visible(&queue.name, id).await?, expected, "answer for {id}");
        }
        ensure_eq!(queue.get_all(LONG_TIMEOUT).await?.len(), 2, "visible messages");
    }

    /// Making a message visible ends the receipt of its release, because a worker may lease it at any time.
    async fn receipt_ends_when_message_is_made_visible(subject, queue) {
        let index = index(&queue)?;
        let held = queue.put_back("backing off").await?;
        ensure!(index.make_visible(&queue.name, &held.id).await?, "the message was not hidden");
        let deleted = queue.store.delete(&queue.name, &held, ExpiredReceipt::Refuse).await;
        refused(deleted, &[K::LeaseExpired])?;
    }

    /// A page with an unknown beginning, and a page of no or too many messages, is refused.
    async fn refuses_wrong_pages(subject, queue) {
        let index = index(&queue)?;
        for (from, count) in [(Some("?"), 1), (None, 0), (None, 1_001)] {
            let page = index.messages(&queue.name, MessageState::Waiting, from, count).await;
            refused(page, &[K::InvalidInput])?;
        }
    }
}
