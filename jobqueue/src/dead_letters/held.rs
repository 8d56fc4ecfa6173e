//! A dead letter that a pass has leased.

use std::time::SystemTime;

use super::letter::{DeadLetter, DeadLetterEntry};
use crate::envelope::StoredReference;
use crate::queue_core::references;
use crate::storage::MessageRef;

/// The action on the dead letters that are selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassAction {
    /// Reports them.
    Tell,
    /// Puts their jobs back into the queue.
    PutBack,
    /// Deletes them with their payloads.
    Delete,
}

/// A letter that the pass has leased.
pub(crate) struct Held {
    pub(crate) message: MessageRef,
    pub(super) entry: DeadLetterEntry,
    pub(crate) letter: DeadLetter,
    pub(crate) inserted: SystemTime,
    /// The group of the message, where the storage keeps the order.
    pub(crate) group: Option<String>,
}

impl Held {
    /// Returns the blobs that the dead letter refers to.
    pub(crate) fn references(&self) -> Vec<StoredReference> {
        match &self.entry {
            DeadLetterEntry::Event(envelope) => references(envelope),
            DeadLetterEntry::External => Vec::new(),
        }
    }
}
