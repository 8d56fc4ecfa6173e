//! Receipts of messages.

use uuid::Uuid;

use jobqueue_storage::PopReceipt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Receipt {
    Lock(Uuid),
    Scheduled(i64),
    /// A message that was sent without a delay: the service does not return its number.
    Sent(Uuid),
}

impl Receipt {
    /// Reads a receipt; `None` if this adapter did not write it.
    pub(super) fn read(receipt: &PopReceipt) -> Option<Self> {
        let (kind, rest) = receipt.expose().split_once(':')?;
        match kind {
            "lock" => Some(Self::Lock(Uuid::try_parse(rest).ok()?)),
            "scheduled" => {
                let (number, _) = rest.split_once(':')?;
                Some(Self::Scheduled(number.parse().ok()?))
            }
            "sent" => Some(Self::Sent(Uuid::try_parse(rest).ok()?)),
            _ => None,
        }
    }

    /// Writes a receipt. `nonce` makes the receipt of a scheduled message unguessable; the service identifies
    /// the message by its number alone.
    pub(super) fn write(self, nonce: Uuid) -> PopReceipt {
        PopReceipt::new(match self {
            Self::Lock(token) => format!("lock:{token}"),
            Self::Scheduled(number) => format!("scheduled:{number}:{nonce}"),
            Self::Sent(id) => format!("sent:{id}"),
        })
    }
}
