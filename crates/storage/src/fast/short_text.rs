//! A string type for texts that are mostly short, such as ids and receipts. Every message has two; a short
//! text needs no allocation.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The capacity in bytes: enough for a UUID, and for the ids of the adapters in this repository.
const INLINE_BYTES: usize = 38;

/// A text, stored inline if it is short, and otherwise shared by its clones.
#[derive(Clone)]
pub(crate) struct ShortText(Form);

#[derive(Clone)]
enum Form {
    InPlace { length: u8, bytes: [u8; INLINE_BYTES] },
    Shared(Arc<str>),
}

impl ShortText {
    #[inline]
    pub(crate) fn new(text: &str) -> Self {
        let mut bytes = [0; INLINE_BYTES];
        match bytes.get_mut(..text.len()) {
            Some(place) => {
                place.copy_from_slice(text.as_bytes());
                Self(Form::InPlace { length: text.len() as u8, bytes })
            }
            None => Self(Form::Shared(text.into())),
        }
    }

    #[inline]
    pub(crate) fn as_str(&self) -> &str {
        match &self.0 {
            // The whole text was copied, so the bytes are valid UTF-8.
            Form::InPlace { length, bytes } => {
                std::str::from_utf8(&bytes[..usize::from(*length)]).unwrap_or_default()
            }
            Form::Shared(text) => text,
        }
    }
}

impl PartialEq for ShortText {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for ShortText {}

impl Hash for ShortText {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl PartialOrd for ShortText {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ShortText {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_any_length_is_kept() {
        for length in [0, 1, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 300] {
            let text = "ü".repeat(length / 2) + &"x".repeat(length % 2);
            assert_eq!(ShortText::new(&text).as_str(), text);
        }
    }
}
