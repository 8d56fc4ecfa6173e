//! Attributes that spans and metrics share.

use std::sync::Arc;

use jobqueue::__internals::{is_hidden, visible};
use jobqueue::QueueName;
use opentelemetry::{KeyValue, StringValue};

use crate::conventions as names;

pub(crate) fn destination(queue: &QueueName) -> KeyValue {
    KeyValue::new(names::DESTINATION, Arc::<str>::from(queue))
}

pub(crate) fn error_type(code: &'static str) -> KeyValue {
    KeyValue::new(names::ERROR_TYPE, code)
}

pub(crate) fn outcome_of(name: &'static str) -> KeyValue {
    KeyValue::new(names::OUTCOME, name)
}

/// Returns an id without control characters, because line breaks from a sender would forge lines where spans
/// are printed.
pub(crate) fn plain(id: &str) -> StringValue {
    visible(id, &[]).into()
}

/// Like [`plain`], but does not copy an id that has no control characters.
pub(crate) fn plain_shared(id: &Arc<str>) -> StringValue {
    if id.contains(is_hidden) { plain(id) } else { Arc::clone(id).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_nothing_else() {
        assert_eq!(
            plain("01890a5d-ac96-774b-bcce-b302099a8057 ä").as_str(),
            "01890a5d-ac96-774b-bcce-b302099a8057 ä"
        );
        assert_eq!(plain_shared(&Arc::from("a\nb")).as_str(), "a\\nb");
        assert_eq!(plain("a\nb\u{1b}[31m\u{202e}").as_str(), "a\\nb\\u{1b}[31m\\u{202e}");
    }
}
