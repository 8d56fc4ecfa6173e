//! Messages that nobody has received yet: what takes them back, and what the records of them are written with.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::queue_core::QueueCore;
use crate::storage::{ExpiredReceipt, MessageId, MessageRef, PopReceipt, StoreError, StoreErrorKind, Tries};

/// How long a deletion is tried.
const BUDGET: Duration = Duration::from_secs(30);
/// The most resends after a lost answer, and after a failure that certainly deleted nothing.
const RESENDS: (u32, u32) = (2, 0);

/// A message and its first receipt, as records beside the queue keep it. Whoever has it can take the message back until
/// somebody receives it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unreceived {
    id: String,
    receipt: String,
}

impl Unreceived {
    pub(super) fn message(&self) -> MessageRef {
        MessageRef { id: MessageId::new(&self.id), receipt: PopReceipt::new(&self.receipt) }
    }
}

impl From<&MessageRef> for Unreceived {
    fn from(message: &MessageRef) -> Self {
        Self { id: message.id.as_str().to_owned(), receipt: message.receipt.expose().to_owned() }
    }
}

/// The receipt is secret.
impl fmt::Debug for Unreceived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unreceived").field("id", &self.id).finish_non_exhaustive()
    }
}

/// An instant as such records keep it: milliseconds since 1970.
pub(super) fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl QueueCore {
    /// Deletes a message by its first receipt; false if somebody has received it, or if it is gone.
    ///
    /// # Errors
    /// What the storage says; ambiguous if any try may have deleted it.
    pub(super) async fn delete_unreceived(&self, message: &MessageRef) -> Result<bool, StoreError> {
        let mut tries = Tries::until(Instant::now() + BUDGET, RESENDS.0, RESENDS.1);
        loop {
            match self.store().delete(&self.name, message, ExpiredReceipt::Allow).await {
                Ok(()) => return Ok(true),
                // Our own deletion, whose answer was lost.
                Err(e) if tries.is_in_doubt() && e.kind() == StoreErrorKind::MessageNotFound => {
                    return Ok(true);
                }
                Err(e) if e.is_lease_lost() => return Ok(false),
                Err(e) => tries.failed(e).await?,
            }
        }
    }
}
