//! Converts receipts and message ids between text and their form in the tables.

use jobqueue_storage::fast::hex::{read_hex, to_hex};
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{ExpiredReceipt, MessageId, MessageRef, PopReceipt};

/// The bytes of a receipt: 128 random bits, new for each put, get and update.
pub(crate) type Receipt = [u8; 16];

pub(crate) fn random(runtime: &Runtime) -> Receipt {
    runtime.random_bytes()
}

/// Returns the receipt in the caller's form.
pub(crate) fn expose(receipt: &[u8]) -> PopReceipt {
    PopReceipt::new(to_hex(receipt))
}

pub(crate) fn message_id(row: i64) -> MessageId {
    MessageId::new(row.to_string())
}

pub(crate) fn message_ref(row: i64, receipt: &[u8]) -> MessageRef {
    MessageRef { id: message_id(row), receipt: expose(receipt) }
}

/// The row and the receipt that a caller presents. Text that this adapter did not write never matches a
/// message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Presented {
    pub(crate) row: i64,
    pub(crate) receipt: Receipt,
    /// False for a receipt in another form. Then `receipt` has no meaning.
    pub(crate) is_receipt: bool,
}

impl Presented {
    pub(crate) fn of(message: &MessageRef) -> Self {
        let receipt = read_hex(message.receipt.expose().as_bytes());
        Self {
            row: parse_id(&message.id),
            receipt: receipt.unwrap_or_default(),
            is_receipt: receipt.is_some(),
        }
    }

    /// Returns the stored row and receipt as a caller would present them. Returns `None` for a receipt that
    /// this adapter did not write.
    pub(crate) fn stored(row: i64, receipt: &[u8]) -> Option<Self> {
        Some(Self { row, receipt: receipt.try_into().ok()?, is_receipt: true })
    }

    /// Returns the bytes for a comparison in SQL. For a receipt in another form they are empty, which matches
    /// no row.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.is_receipt { &self.receipt } else { &[] }
    }
}

/// Returns the row of an id, or 0, which no row has, for text that this adapter did not write.
pub(crate) fn parse_id(id: &MessageId) -> i64 {
    let row = id.as_str().parse().unwrap_or(0);
    if message_id(row) == *id { row } else { 0 }
}

/// The use of a receipt to change or delete its message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceiptUse {
    pub(crate) presented: Presented,
    pub(crate) expired: ExpiredReceipt,
}

impl ReceiptUse {
    /// Returns whether an expired receipt is accepted.
    pub(crate) fn accepts_expired(&self) -> bool {
        self.expired == ExpiredReceipt::Allow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_of_this_adapter_matches_a_message() {
        let receipt = random(&Runtime::new());
        let own = Presented::of(&message_ref(7, &receipt));
        assert_eq!(own, Presented { row: 7, receipt, is_receipt: true });
        for (id, receipt) in
            [("007", "0"), ("+7", &*"A".repeat(32)), ("x", ""), ("9223372036854775808", "' OR 1")]
        {
            let other = MessageRef { id: MessageId::new(id), receipt: PopReceipt::new(receipt) };
            let other = Presented::of(&other);
            assert_eq!(other.row, 0, "{id}");
            assert!(other.bytes().is_empty(), "{id}");
        }
    }
}
