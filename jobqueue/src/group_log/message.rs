//! The attributes by which the messages of a FIFO group are known.

use super::entry::{EntryRef, Turn};
use crate::envelope::{Envelope, EnvelopeError};
use crate::runtime::Runtime;

/// The attribute that marks events of a FIFO group.
pub(crate) const HEADER: &str = "inorder";
/// The attribute that distinguishes several messages of one job.
const COPY: &str = "fifocopy";
/// The attribute that names the page in which a send has entered the job.
const PAGE: &str = "fifopage";
/// All attributes of the order.
pub(crate) const HEADERS: [&str; 3] = [HEADER, COPY, PAGE];

/// A delivered message of a FIFO group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InOrder {
    pub(crate) entry: EntryRef,
    pub(crate) turn: Turn,
}

impl InOrder {
    /// Returns the group, job and turn of a delivery; `None` if the event belongs to no FIFO group.
    pub(crate) fn of(envelope: &Envelope, delivery: u32) -> Option<Self> {
        if !is_in_order(envelope) {
            return None;
        }
        let entry = EntryRef::new(envelope.key.as_deref()?, &envelope.identity());
        let number = |name| {
            let text = serde_json::from_str::<String>(envelope.extensions.get(name)?.get()).ok()?;
            u64::from_str_radix(&text, 16).ok()
        };
        let entry = EntryRef { page: number(PAGE).filter(|page| *page != 0), ..entry };
        Some(Self { entry, turn: Turn { copy: number(COPY).unwrap_or(0), delivery } })
    }
}

/// Gives a FIFO event a copy number of its own before it is stored as a message. Returns the number.
pub(crate) fn restamp(envelope: &mut Envelope, runtime: &Runtime) -> Option<u64> {
    if !is_marked(envelope) {
        return None;
    }
    // 53 bits: every JSON reader keeps all their digits.
    let copy = runtime.random_u64() >> 11;
    envelope.insert_header(COPY, &format!("{copy:014x}")).ok()?;
    Some(copy)
}

/// Writes the page in which a job is entered into its event; before that, 0, so that the event keeps its length.
pub(crate) fn stamp_page(envelope: &mut Envelope, page: u64) -> Result<(), EnvelopeError> {
    envelope.insert_header(PAGE, &format!("{page:014x}"))
}

/// Removes the page from the event of a job that is about to join its group anew.
pub(crate) fn forget_page(envelope: &mut Envelope) {
    envelope.extensions.remove(PAGE);
}

/// Returns whether an event keeps to the order of its key.
pub fn is_in_order(envelope: &Envelope) -> bool {
    is_marked(envelope) && envelope.key.is_some()
}

/// Other producers may write the boolean.
fn is_marked(envelope: &Envelope) -> bool {
    envelope.extensions.get(HEADER).is_some_and(|raw| matches!(raw.get(), "true" | "\"true\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::{Parsed, parse};

    #[test]
    fn order_is_asked_for_by_the_value_true() {
        for (value, asks) in
            [("true", true), ("\"true\"", true), ("false", false), ("\"yes\"", false), ("1", false)]
        {
            let text = format!(
                r#"{{"specversion":"1.0","id":"1","source":"/other","type":"step","key":"a","inorder":{value},"data":{{}}}}"#
            );
            let Ok(Parsed::Event(event)) = parse(&text) else { panic!("{text}") };
            assert_eq!(is_in_order(&event), asks, "{value}");
            assert_eq!(InOrder::of(&event, 1).is_some(), asks, "{value}");
            assert_eq!(event.headers().get(HEADER).is_some_and(|header| header == "true"), asks, "{value}");
        }
    }
}
