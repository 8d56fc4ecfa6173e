//! The checkpoint of a delivery: the parsed document, and the checkpoint in the stored message.

use std::sync::Mutex;

use super::saved::Saved;
use crate::envelope::{Checkpoint, StoredReference};
use crate::sync::lock;

#[derive(Debug, Default)]
pub(super) struct CheckpointState {
    /// The parsed checkpoint, read once. Locked until a change of it is stored.
    pub(super) known: tokio::sync::Mutex<Option<KnownCheckpoint>>,
    stored: Mutex<StoredState>,
}

#[derive(Debug, Default)]
pub(super) struct KnownCheckpoint {
    /// The checkpoint with all changes, including those that the next change will save.
    pub(super) newest: Saved,
    /// The checkpoint before the first change that the storage has not accepted; `None` if it has accepted
    /// all.
    pub(super) accepted: Option<Saved>,
}

#[derive(Debug, Default)]
struct StoredState {
    checkpoint: StoredCheckpoint,
    /// Blobs of earlier checkpoints that the stored message may still refer to.
    superseded: Vec<StoredReference>,
}

/// The checkpoint in the stored message, compared to the one in the content.
#[derive(Debug, Default)]
enum StoredCheckpoint {
    #[default]
    Same,
    /// The storage may not have accepted the newest checkpoint, and the message has this one, if any.
    Older(Option<Checkpoint>),
}

impl CheckpointState {
    /// Records that the content has a new checkpoint in place of `former`, before the storage is asked to
    /// accept it.
    pub(super) fn supersede(&self, former: Option<Checkpoint>) {
        let mut stored = lock(&self.stored);
        if matches!(stored.checkpoint, StoredCheckpoint::Same) {
            stored.checkpoint = StoredCheckpoint::Older(former.clone());
        }
        if let Some(Checkpoint::Stored(former)) = former {
            stored.superseded.push(former);
        }
    }

    /// Records that the storage has accepted the newest checkpoint, or may have.
    pub(super) fn accept(&self) {
        lock(&self.stored).checkpoint = StoredCheckpoint::Same;
    }

    /// Replaces a checkpoint that the storage has not accepted by the one in the stored message, whose blob
    /// is kept.
    pub(super) fn restore(&self, checkpoint: &mut Option<Checkpoint>) {
        let mut stored = lock(&self.stored);
        let StoredCheckpoint::Older(older) = std::mem::take(&mut stored.checkpoint) else { return };
        // Preparing a dead letter may have stored the new checkpoint in a blob.
        if !matches!(checkpoint, Some(Checkpoint::Inline(_))) {
            return;
        }
        if let Some(Checkpoint::Stored(kept)) = &older {
            stored.superseded.retain(|reference| reference != kept);
        }
        *checkpoint = older;
    }

    pub(super) fn has_superseded(&self) -> bool {
        !lock(&self.stored).superseded.is_empty()
    }

    /// Takes the blobs of earlier checkpoints, to which the stored message no longer refers.
    pub(super) fn take_superseded(&self) -> Vec<StoredReference> {
        std::mem::take(&mut lock(&self.stored).superseded)
    }
}
