//! Converts receipts and ids of messages between their text and their form in the file.

use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, ValueRef};

use super::row_id;
use jobqueue_storage::fast::hex::{read_hex, write_hex};
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{MessageId, MessageRef, PopReceipt};

/// A receipt: 128 random bits, new for each get and each update.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Receipt([u8; 16]);

impl Receipt {
    pub(super) fn random(runtime: &Runtime) -> Self {
        Self(runtime.random_bytes())
    }

    /// Parses a receipt; returns `None` for text that this adapter did not write.
    pub(super) fn parse(text: &str) -> Option<Self> {
        read_hex(text.as_bytes()).map(Self)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the receipt's text for the caller.
    pub(super) fn expose(&self) -> PopReceipt {
        let mut digits = [0; 32];
        write_hex(&self.0, &mut digits);
        PopReceipt::new(std::str::from_utf8(&digits).unwrap_or_default())
    }
}

impl ToSql for Receipt {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Blob(&self.0)))
    }
}

pub(super) fn message_id(row: i64) -> MessageId {
    MessageId::new(row_id::shown(row).to_string())
}

/// The id and receipt that a caller presents, parsed before the single writing thread gets them. `None`
/// stands for text that this adapter did not write.
#[derive(Clone, Copy)]
pub(super) struct Presented {
    pub(super) id: Option<i64>,
    pub(super) receipt: Option<Receipt>,
}

impl Presented {
    pub(super) fn of(message: &MessageRef) -> Self {
        Self { id: row_id::parse(message.id.as_str()), receipt: Receipt::parse(message.receipt.expose()) }
    }
}

pub(super) fn message_ref(row: i64, receipt: &Receipt) -> MessageRef {
    MessageRef { id: message_id(row), receipt: receipt.expose() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipt_survives_its_text_form() {
        let receipt = Receipt::random(&Runtime::new());
        assert!(Receipt::parse(receipt.expose().expose()) == Some(receipt));
    }

    #[test]
    fn only_our_own_form_is_a_receipt() {
        for bad in ["", "0", "+0000000000000000000000000000001", &"A".repeat(32), &"0".repeat(33)] {
            assert!(Receipt::parse(bad).is_none(), "{bad}");
        }
    }
}
