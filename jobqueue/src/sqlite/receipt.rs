//! Receipts and identities of messages, between text and what the file holds.

use crate::storage::{MessageId, MessageRef, PopReceipt};

/// A receipt: 128 random bits, drawn anew for each get and each update.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Receipt([u8; 16]);

impl Receipt {
    /// A receipt nobody can guess.
    pub(super) fn random() -> Self {
        Self(rand::random())
    }

    /// The receipt behind its text; `None` for what we never wrote.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut bytes = [0; 16];
        if pairs.len() != bytes.len() || !rest.is_empty() {
            return None;
        }
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(Self(bytes))
    }

    /// As the file holds it.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// As the caller holds it.
    pub(super) fn expose(&self) -> PopReceipt {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // By hand, since the one thread that writes does it for every message.
        let mut text = String::with_capacity(32);
        for byte in self.0 {
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        PopReceipt::new(text)
    }
}

fn digit(text: u8) -> Option<u8> {
    match text {
        b'0'..=b'9' => Some(text - b'0'),
        b'a'..=b'f' => Some(text - b'a' + 10),
        _ => None,
    }
}

/// The identity of the message in row `id`.
pub(super) fn message_id(id: i64) -> MessageId {
    MessageId::new(id.to_string())
}

/// The row of a message; `None` for an identity that we never wrote.
pub(super) fn row_id(id: &MessageId) -> Option<i64> {
    id.as_str().parse().ok().filter(|row: &i64| *row > 0)
}

/// One delivery, as the caller holds it.
pub(super) fn message_ref(id: i64, receipt: &Receipt) -> MessageRef {
    MessageRef { id: message_id(id), receipt: receipt.expose() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_survives_being_text() {
        let receipt = Receipt::random();
        assert!(Receipt::parse(receipt.expose().expose()) == Some(receipt));
    }

    #[test]
    fn only_our_own_form_is_a_receipt() {
        for bad in ["", "0", "+0000000000000000000000000000001", &"A".repeat(32), &"0".repeat(33)] {
            assert!(Receipt::parse(bad).is_none(), "{bad}");
        }
    }
}
