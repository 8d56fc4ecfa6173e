//! Messages that nobody has received yet: cancelling them, and recording them for a later cancellation.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::queue_core::QueueCore;
use crate::storage::{ExpiredReceipt, MessageId, MessageRef, PopReceipt, StoreError, StoreErrorKind, Tries};

/// The time after which a deletion is given up.
const BUDGET: Duration = Duration::from_secs(30);
/// The maximum number of further attempts: after a lost answer, and after a failure that certainly deleted nothing.
const RESENDS: (u32, u32) = (2, 0);

/// The assumed maximum difference between the clocks of two processes.
const SKEW: Duration = Duration::from_secs(60);

/// A stored message with its first receipt, as its sender knows it. The owner of the receipt can cancel the message
/// until somebody receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) message: MessageRef,
    /// The time until which the storage hides the message from everybody, by the sender's clock.
    pub(super) hidden_until: Option<SystemTime>,
    /// True if an earlier attempt of the send may have stored another copy.
    pub(crate) perhaps_twice: bool,
}

impl From<MessageRef> for Stored {
    fn from(message: MessageRef) -> Self {
        Self { message, hidden_until: None, perhaps_twice: false }
    }
}

/// A stored message as records beside the queue keep it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unreceived {
    id: String,
    receipt: String,
    /// In milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hidden_until: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    perhaps_twice: bool,
}

impl Unreceived {
    pub(crate) fn message(&self) -> MessageRef {
        MessageRef { id: MessageId::new(&self.id), receipt: PopReceipt::new(&self.receipt) }
    }

    pub(super) fn stored(&self) -> Stored {
        let since_1970 = |millis| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis));
        let hidden_until = self.hidden_until.and_then(since_1970);
        Stored { message: self.message(), hidden_until, perhaps_twice: self.perhaps_twice }
    }
}

impl From<&Stored> for Unreceived {
    fn from(stored: &Stored) -> Self {
        let message = &stored.message;
        Self {
            id: message.id.as_str().to_owned(),
            receipt: message.receipt.expose().to_owned(),
            hidden_until: stored.hidden_until.map(millis),
            perhaps_twice: stored.perhaps_twice,
        }
    }
}

impl From<&MessageRef> for Unreceived {
    fn from(message: &MessageRef) -> Self {
        Self::from(&Stored::from(message.clone()))
    }
}

/// Leaves out the receipt: it is secret.
impl fmt::Debug for Unreceived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unreceived").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Converts a time to the form of these records: milliseconds since 1970.
pub(super) fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Deletes a message by its first receipt. Returns false if somebody has received it or it is gone.
///
/// # Errors
/// The error of the storage. It is ambiguous if an attempt may have deleted the message.
pub(crate) async fn delete_unreceived(core: &QueueCore, stored: &Stored) -> Result<bool, StoreError> {
    let mut tries = Tries::until(Instant::now() + BUDGET, RESENDS.0, RESENDS.1);
    loop {
        match core.store().delete(&core.name, &stored.message, ExpiredReceipt::Allow).await {
            Ok(()) => return Ok(true),
            // Either our own deletion succeeded and its answer was lost, or a worker has received the message
            // since. Only while it is hidden can nobody have done the job.
            Err(e) if tries.is_in_doubt() && e.kind() == StoreErrorKind::MessageNotFound => {
                return if is_hidden(core, stored) { Ok(true) } else { Err(tries.last(e)) };
            }
            Err(e) if e.is_lease_lost() => return Ok(false),
            Err(e) => tries.failed(e).await?,
        }
    }
}

/// Returns whether the storage certainly still hides the message, despite differing clocks.
fn is_hidden(core: &QueueCore, stored: &Stored) -> bool {
    let surely_now = core.options.clock.now().checked_add(SKEW);
    stored.hidden_until.zip(surely_now).is_some_and(|(until, now)| now < until)
}
