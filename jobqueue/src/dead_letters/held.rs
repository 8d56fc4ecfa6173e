//! A dead letter that a pass has leased.

use std::time::SystemTime;

use tokio::time::Instant;

use super::letter::DeadLetter;
use crate::delivery::StoredLetter;
use crate::envelope::{Envelope, StoredReference};
use crate::group_log::is_in_order;
use crate::storage::{MessageId, MessageRef};

/// The action of a pass on the selected dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassAction {
    /// Reports the letters.
    Report,
    /// Reports the result of [`PutBack`](Self::PutBack), which deletes all but one of several letters of one
    /// job as copies.
    ReportPutBack,
    /// Puts the jobs back into the queue.
    PutBack,
    /// Deletes the letters with their payloads.
    Delete,
}

impl PassAction {
    pub(super) fn only_reports(self) -> bool {
        matches!(self, Self::Report | Self::ReportPutBack)
    }
}

pub(crate) struct HeldLetter {
    pub(crate) message: MessageRef,
    /// The end of the lease, after which other clients can lease the letter.
    pub(super) until: Instant,
    /// The time of the lease by the storage's clock, and the time at which this process received the letter.
    pub(super) leased_at: SystemTime,
    pub(super) received: Instant,
    /// `None` for a message of another program.
    pub(super) event: Option<Box<Envelope>>,
    pub(crate) letter: DeadLetter,
    pub(crate) inserted: SystemTime,
    /// The id that the message had in its queue, if the storage returns it.
    pub(super) original_id: Option<MessageId>,
    /// The group of the message, if the storage keeps the order.
    pub(crate) group: Option<String>,
}

impl HeldLetter {
    /// Returns the storage's time.
    pub(super) fn now(&self) -> SystemTime {
        self.leased_at + self.received.elapsed()
    }

    /// Returns the fence base of the job's message; 0 for a message of another program.
    pub(super) fn fence_base(&self) -> u64 {
        self.event.as_ref().map_or(0, |event| event.fence_base)
    }

    pub(super) fn stored(&self) -> StoredLetter<'_> {
        StoredLetter { message: &self.message.id, inserted: self.inserted, text: &self.letter.text }
    }

    /// Returns the group in which the job is ordered; `None` for a job without order.
    pub(super) fn ordering_group(&self) -> Option<String> {
        match &self.event {
            Some(event) if is_in_order(event) => event.key.clone(),
            _ => self.group.clone(),
        }
    }

    /// Returns the blobs that belong to the dead letter. Excludes blobs referenced only by a text that the
    /// letter keeps, because other letters may keep the same text.
    pub(crate) fn references(&self) -> Vec<StoredReference> {
        self.event.as_deref().map_or_else(Vec::new, Envelope::references)
    }

    /// Returns the bytes of the blobs that a redrive of the letter reads.
    pub(super) fn blob_bytes(&self) -> u64 {
        self.references().iter().fold(0, |bytes, reference| reference.size.saturating_add(bytes))
    }
}
