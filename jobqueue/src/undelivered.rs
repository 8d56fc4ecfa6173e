//! Messages that no receiver has leased yet: their deletion by their senders, and their form in the records
//! that a later cancellation reads.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::clock::unix_millis;
use crate::envelope::StoredReference;
use crate::runtime::Runtime;
use crate::storage::{
    ExpiredReceipt, MessageId, MessageRef, PopReceipt, QueueName, Queues, StoreError, StoreErrorKind, Tries,
};

/// The maximum number of further attempts after a lost answer.
const RESENDS_IN_DOUBT: u32 = 2;
/// The maximum number of further attempts after a failure that certainly deleted nothing.
const RESENDS_AFTER_REFUSAL: u32 = 0;

/// The maximum difference between the clocks of two processes that the guarantees allow.
pub(crate) const SKEW: Duration = Duration::from_secs(300);

/// A stored message with its first receipt. The owner of the receipt can cancel the message until its first
/// delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredMessage {
    pub(crate) message: MessageRef,
    /// The time until which the storage hides the message, by the sender's clock.
    pub(crate) hidden_until: Option<SystemTime>,
    /// True if an earlier attempt of the send may have stored another copy.
    pub(crate) may_be_duplicated: bool,
    /// True if an earlier canceller that died or got no answer may have deleted the message.
    pub(crate) may_be_deleted: bool,
    /// The payload, if it is in a blob: a cancellation deletes only the blob of its message. Boxed because it
    /// is rare.
    pub(crate) payload: Option<Box<StoredReference>>,
}

/// The form of a [`StoredMessage`] in records, such as a group log or the record of a unique key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UndeliveredRef {
    id: String,
    receipt: String,
    /// Milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hidden_until: Option<u64>,
    #[serde(rename = "perhaps_twice", default, skip_serializing_if = "std::ops::Not::not")]
    may_be_duplicated: bool,
    #[serde(rename = "perhaps_deleted", default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) may_be_deleted: bool,
    /// The name, size and SHA-256 of the payload's blob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<Box<(String, u64, String)>>,
}

impl UndeliveredRef {
    /// Returns the reference for a record that says whether an earlier canceller may have deleted the
    /// message.
    pub(crate) fn deleted_perhaps(self, may_be_deleted: bool) -> Self {
        Self { may_be_deleted, ..self }
    }

    /// Returns whether this is the message of that put.
    pub(crate) fn is_of(&self, stored: &StoredMessage) -> bool {
        self.id == stored.message.id.as_str() && self.receipt == stored.message.receipt.expose()
    }

    pub(crate) fn stored(&self) -> StoredMessage {
        let since_1970 = |millis| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis));
        let hidden_until = self.hidden_until.and_then(since_1970);
        let payload = self.payload.as_deref().and_then(|(name, size, sha256)| {
            StoredReference::parse(name, Some(*size), Some(sha256)).ok().map(Box::new)
        });
        StoredMessage {
            message: MessageRef { id: MessageId::new(&self.id), receipt: PopReceipt::new(&self.receipt) },
            hidden_until,
            may_be_duplicated: self.may_be_duplicated,
            may_be_deleted: self.may_be_deleted,
            payload,
        }
    }
}

impl From<&StoredMessage> for UndeliveredRef {
    fn from(stored: &StoredMessage) -> Self {
        let message = &stored.message;
        Self {
            id: message.id.as_str().to_owned(),
            receipt: message.receipt.expose().to_owned(),
            hidden_until: stored.hidden_until.map(unix_millis),
            may_be_duplicated: stored.may_be_duplicated,
            may_be_deleted: stored.may_be_deleted,
            payload: stored
                .payload
                .as_ref()
                .map(|payload| Box::new((payload.to_string(), payload.size, payload.sha256.to_string()))),
        }
    }
}

jobqueue_storage::debug_fields! {
    /// Leaves out the receipt: it is secret.
    UndeliveredRef { id }
}

/// Deletes a message of `queue` by its first receipt. Returns false if the message was received, or is gone
/// for a reason other than a cancellation.
///
/// # Errors
/// The error of the storage. It is ambiguous if an attempt or an earlier canceller may have deleted the
/// message, or if the message may wait under another receipt.
pub(crate) async fn delete_undelivered(
    store: &Queues,
    queue: &QueueName,
    runtime: &Runtime,
    stored: &StoredMessage,
) -> Result<bool, StoreError> {
    let mut tries =
        Tries::brief(runtime, RESENDS_IN_DOUBT, RESENDS_AFTER_REFUSAL).in_doubt_if(stored.may_be_deleted);
    loop {
        match store.delete(queue, &stored.message, ExpiredReceipt::Allow).await {
            Ok(()) => return Ok(true),
            Err(e) if e.kind() == StoreErrorKind::MessageNotFound => {
                let absence = absence(is_hidden(runtime, stored), tries.is_in_doubt(), stored);
                return match absence {
                    Absence::Cancelled if !e.is_ambiguous() => Ok(true),
                    Absence::NotCancelled if !e.is_ambiguous() => Ok(false),
                    _ => Err(e.with_ambiguous(true)),
                };
            }
            Err(e) if e.is_lease_lost() => return Ok(false),
            Err(e) => tries.failed(e).await?,
        }
    }
}

/// The reason why a deletion does not find its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Absence {
    /// A canceller has deleted the message: this call, or an earlier canceller.
    Cancelled,
    /// The message was received, or is gone for a reason other than a cancellation.
    NotCancelled,
    Unknown,
}

fn absence(is_hidden: bool, in_doubt: bool, stored: &StoredMessage) -> Absence {
    match (is_hidden, in_doubt) {
        // No worker can have received a hidden message. But a storage that drops a repeated put answers with
        // a receipt that names no message.
        (true, _) if stored.may_be_duplicated => Absence::Unknown,
        (true, true) => Absence::Cancelled,
        // A canceller has deleted the message, or a worker has received it since.
        (false, true) => Absence::Unknown,
        (_, false) => Absence::NotCancelled,
    }
}

/// Returns whether the storage certainly still hides the message, even if clocks differ by [`SKEW`].
fn is_hidden(runtime: &Runtime, stored: &StoredMessage) -> bool {
    let surely_now = runtime.now().checked_add(SKEW);
    stored.hidden_until.zip(surely_now).is_some_and(|(until, now)| now < until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_means_what_is_certain() {
        for (hidden, in_doubt, twice, expected) in [
            (true, true, false, Absence::Cancelled),
            (true, true, true, Absence::Unknown),
            (true, false, true, Absence::Unknown),
            (true, false, false, Absence::NotCancelled),
            (false, true, false, Absence::Unknown),
            (false, true, true, Absence::Unknown),
            (false, false, true, Absence::NotCancelled),
            (false, false, false, Absence::NotCancelled),
        ] {
            let message = MessageRef { id: MessageId::new("1"), receipt: PopReceipt::new("secret") };
            let stored = StoredMessage {
                message,
                hidden_until: None,
                may_be_duplicated: twice,
                may_be_deleted: false,
                payload: None,
            };
            assert_eq!(absence(hidden, in_doubt, &stored), expected, "{hidden} {in_doubt} {twice}");
        }
    }
}
