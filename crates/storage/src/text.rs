//! Texts for logs and for people: in one line, without control characters, and of a bounded length.

use std::error::Error;

/// Returns an error and all its causes in one line of at most 2,000 characters, with control characters replaced.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Many errors repeat their source in their own text.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        if text.len() > 8_000 {
            break;
        }
        next = cause.source();
    }
    printable(&text, 2_000)
}

/// Returns `text` in one line without control characters, cut to `limit` characters.
pub fn printable(text: &str, limit: usize) -> String {
    let clean = |c: char| if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') { ' ' } else { c };
    let mut kept: String = text.chars().take(limit).map(clean).collect();
    if text.chars().nth(limit).is_some() {
        kept.push('…');
    }
    kept
}
