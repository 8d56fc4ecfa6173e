//! A dead letter that a pass has leased.

use std::time::SystemTime;

use tokio::time::Instant;

use super::letter::{DeadLetter, DeadLetterEntry};
use crate::delivery::StoredLetter;
use crate::envelope::StoredReference;
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
pub(crate) struct HeldLetter {
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

impl HeldLetter {
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

    /// Returns the blobs of the dead letter. Those of an event that it keeps as a text are not its own: other letters may keep the same text.
    pub(crate) fn references(&self) -> Vec<StoredReference> {
        match &self.entry {
            DeadLetterEntry::Event(envelope) => envelope.references(),
            DeadLetterEntry::External => Vec::new(),
        }
    }

    /// Returns the bytes of the blobs that a redrive of the letter reads.
    pub(super) fn blob_bytes(&self) -> u64 {
        self.references().iter().fold(0, |bytes, reference| reference.size.saturating_add(bytes))
    }
}
