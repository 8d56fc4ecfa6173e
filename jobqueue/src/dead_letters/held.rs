//! A dead letter that a pass has leased.

use std::time::SystemTime;

use tokio::time::Instant;

use super::letter::{DeadLetter, DeadLetterEntry};
use crate::delivery::{StoredLetter, event_with_blobs};
use crate::envelope::{Envelope, Payload, StoredReference, UNREADABLE_KIND};
use crate::group_log::is_in_order;
use crate::storage::{MessageId, MessageRef};

/// The action on the dead letters that are selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassAction {
    /// Reports them.
    Report,
    /// Reports what [`PutBack`](Self::PutBack) would do: of several letters of one job it deletes all but one as copies.
    ReportPutBack,
    /// Puts their jobs back into the queue.
    PutBack,
    /// Deletes them with their payloads.
    Delete,
}

impl PassAction {
    /// Returns whether it changes nothing.
    pub(super) fn only_reports(self) -> bool {
        matches!(self, Self::Report | Self::ReportPutBack)
    }
}

/// A letter that the pass has leased.
pub(crate) struct Held {
    pub(crate) message: MessageRef,
    /// The time at which others can lease it.
    pub(super) until: Instant,
    pub(super) entry: DeadLetterEntry,
    pub(crate) letter: DeadLetter,
    pub(crate) inserted: SystemTime,
    /// The id that the message had in its queue, if the storage returns it.
    pub(super) original_id: Option<MessageId>,
    /// The group of the message, where the storage keeps the order.
    pub(crate) group: Option<String>,
}

impl Held {
    /// Returns what identifies the stored letter.
    pub(super) fn stored(&self) -> StoredLetter<'_> {
        StoredLetter { message: &self.message.id, inserted: self.inserted, text: &self.letter.text }
    }

    /// Returns the group in which the job is in order, if it is.
    pub(super) fn order(&self) -> Option<String> {
        match &self.entry {
            DeadLetterEntry::Event(envelope) if is_in_order(envelope) => envelope.key.clone(),
            _ => self.group.clone(),
        }
    }

    /// Returns the blobs that the dead letter refers to, without those of an event that it keeps as a text.
    pub(crate) fn references(&self) -> Vec<StoredReference> {
        match &self.entry {
            DeadLetterEntry::Event(envelope) => envelope.references(),
            DeadLetterEntry::External => Vec::new(),
        }
    }

    /// Returns the bytes of the blobs that a redrive of the letter copies. A text that is in a blob itself may refer to a payload of any length.
    pub(super) fn copied_bytes(&self) -> u64 {
        let DeadLetterEntry::Event(letter) = &self.entry else { return 0 };
        let is_kept = *letter.kind == *UNREADABLE_KIND;
        if is_kept && matches!(letter.payload, Payload::Stored(_)) {
            return u64::MAX;
        }
        let kept = self.letter.unreadable_text().filter(|_| is_kept).and_then(event_with_blobs);
        let references = letter.references().into_iter().chain(kept.iter().flat_map(Envelope::references));
        references.fold(0, |bytes, reference| reference.size.saturating_add(bytes))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::envelope::{Parsed, parse};
    use crate::storage::PopReceipt;

    fn held(event: serde_json::Value) -> Held {
        let text = event.to_string();
        let Ok(Parsed::Event(event)) = parse(&text) else { panic!("{text}") };
        Held {
            message: MessageRef { id: MessageId::new("1"), receipt: PopReceipt::new("1") },
            until: Instant::now(),
            letter: DeadLetter::of(&event, &text),
            entry: DeadLetterEntry::Event(event),
            inserted: SystemTime::UNIX_EPOCH,
            group: None,
            original_id: None,
        }
    }

    #[test]
    fn payload_behind_a_kept_text_counts_among_those_that_are_copied_at_once() {
        let stored = |kind: &str| {
            json!({
                "specversion": "1.0", "id": "1", "source": "/s", "type": kind, "datasize": 5_000_000,
                "dataref": "20260101/tasks/0f8fad5b-d9cb-469f-a165-70867728950e", "datasha256": "0".repeat(64),
            })
        };
        let kept = |text: String| json!({ "specversion": "1.0", "id": "1", "source": "/s", "type": UNREADABLE_KIND, "data": text });
        assert_eq!(held(stored("task")).copied_bytes(), 5_000_000);
        assert_eq!(held(kept(stored("task").to_string())).copied_bytes(), 5_000_000);
        assert_eq!(held(kept("no event".to_owned())).copied_bytes(), 0);
        // Only its text shows what it refers to.
        assert_eq!(held(stored(UNREADABLE_KIND)).copied_bytes(), u64::MAX);
    }
}
