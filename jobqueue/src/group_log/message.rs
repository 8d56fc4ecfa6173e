//! The attributes of the messages of a FIFO group.

use super::entry::{EntryRef, Turn};
use crate::envelope::headers::order::{COPY, IN_ORDER, PAGE};
use crate::envelope::{Envelope, EnvelopeError, Sha256Digest};
use crate::runtime::Runtime;
use crate::storage::MessageId;

/// Leaves 53 bits of a random number: every JSON reader keeps all their digits.
const COPY_SHIFT: u32 = 11;

/// A delivered message of a FIFO group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InOrder {
    pub(crate) entry: EntryRef,
    pub(crate) turn: Turn,
}

impl InOrder {
    /// Returns the group, job and turn of a delivery; `None` if the event belongs to no FIFO group. A message
    /// of another producer has no copy number: its number is derived from its id in the storage, so that two
    /// such messages are two copies. `lock`: as in [`Turn`].
    pub(crate) fn of(envelope: &Envelope, message: &MessageId, delivery: u32, lock: u64) -> Option<Self> {
        if !is_in_order(envelope) {
            return None;
        }
        let entry = EntryRef::new(envelope.key.as_deref()?, &envelope.identity());
        let number = |name| {
            let text = serde_json::from_str::<String>(envelope.extensions.get(name)?.get()).ok()?;
            u64::from_str_radix(&text, 16).ok()
        };
        let entry = EntryRef { page: number(PAGE).filter(|page| *page != 0), ..entry };
        let copy = number(COPY).unwrap_or_else(|| copy_of(message));
        Some(Self { entry, turn: Turn { copy, delivery, lock } })
    }
}

fn copy_of(message: &MessageId) -> u64 {
    let digest = Sha256Digest::of(message.as_str().as_bytes());
    digest.as_bytes().iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte)) >> COPY_SHIFT
}

/// Gives a FIFO event a new copy number before it is stored as a message. Returns the number.
pub(crate) fn restamp(envelope: &mut Envelope, runtime: &Runtime) -> Option<u64> {
    if !is_marked(envelope) {
        return None;
    }
    let copy = runtime.random_u64() >> COPY_SHIFT;
    envelope.insert_header(COPY, &format!("{copy:014x}")).ok()?;
    Some(copy)
}

/// Gives an event that becomes another message of its job a new copy number, if it has a number. Returns
/// whether it has. A message without a number is a copy anyway.
pub(crate) fn renumber(envelope: &mut Envelope, runtime: &Runtime) -> bool {
    envelope.extensions.contains_key(COPY) && restamp(envelope, runtime).is_some()
}

/// Writes into an event the page that has its job's entry; before that is known, 0, so that the event keeps
/// its length.
pub(crate) fn stamp_page(envelope: &mut Envelope, page: u64) -> Result<(), EnvelopeError> {
    envelope.insert_header(PAGE, &format!("{page:014x}"))
}

/// Removes the copy number and the page from an event that becomes another message, whose job joins its group
/// again.
pub(crate) fn forget_message(envelope: &mut Envelope) {
    envelope.extensions.remove(COPY);
    envelope.extensions.remove(PAGE);
}

/// Returns whether an event keeps the order of its key.
pub fn is_in_order(envelope: &Envelope) -> bool {
    is_marked(envelope) && envelope.key.is_some()
}

/// Other producers may write a JSON boolean instead of a text.
fn is_marked(envelope: &Envelope) -> bool {
    envelope.extensions.get(IN_ORDER).is_some_and(|raw| matches!(raw.get(), "true" | "\"true\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::{Parsed, parse};

    #[test]
    fn order_is_requested_by_the_value_true() {
        for (value, is_requested) in
            [("true", true), ("\"true\"", true), ("false", false), ("\"yes\"", false), ("1", false)]
        {
            let text = format!(
                r#"{{"specversion":"1.0","id":"1","source":"/other","type":"step","key":"a","inorder":{value},"data":{{}}}}"#
            );
            let Ok(Parsed::Event(event)) = parse(&text) else { panic!("{text}") };
            assert_eq!(is_in_order(&event), is_requested, "{value}");
            let turn =
                |id: &str| InOrder::of(&event, &MessageId::new(id), 1, 0).map(|position| position.turn);
            assert_eq!(turn("1").is_some(), is_requested, "{value}");
            assert_eq!(turn("1"), turn("1"), "{value}");
            assert_eq!(turn("1") != turn("2"), is_requested, "{value}");
            let header = event.headers().get(IN_ORDER).is_some_and(|header| header == "true");
            assert_eq!(header, is_requested, "{value}");
        }
    }
}
