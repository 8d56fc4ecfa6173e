//! Texts of senders in attributes.

use std::sync::Arc;

use opentelemetry::StringValue;

/// Returns an id as a value without control characters: line breaks of a sender would forge lines where spans are printed.
pub(crate) fn plain(id: &str) -> StringValue {
    if !id.contains(forges) {
        return Arc::<str>::from(id).into();
    }
    let escaped = |c: char| if forges(c) { c.escape_unicode().to_string() } else { c.to_string() };
    id.chars().map(escaped).collect::<String>().into()
}

/// Returns the same without copying an id that has no such character.
pub(crate) fn plain_shared(id: &Arc<str>) -> StringValue {
    if id.contains(forges) { plain(id) } else { Arc::clone(id).into() }
}

fn forges(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
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
        assert_eq!(plain_shared(&Arc::from("a\nb")).as_str(), "a\\u{a}b");
        assert_eq!(plain("a\nb\u{1b}[31m\u{202e}").as_str(), "a\\u{a}b\\u{1b}[31m\\u{202e}");
    }
}
