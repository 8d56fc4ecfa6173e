//! Texts for logs and readers: one line, no control characters, bounded length.

use std::any::Any;
use std::error::Error;

/// Returns an error and all its causes in one line of at most 2,000 characters, with control characters
/// replaced.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Many errors repeat their source in their text.
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

/// Returns the message of a panic.
#[doc(hidden)]
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Returns the longest beginning of a text that has at most `bytes` bytes.
pub fn beginning(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

/// Returns whether a character is invisible or changes how its neighbours are shown: control characters, such
/// as line breaks and the beginnings of terminal commands; characters that set the direction of writing; and
/// characters without width, except the variation selectors that follow an emoji.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Returns a text of another program with its [hidden](is_hidden) characters escaped, such as `\n` and
/// `\u{202e}`, except the characters in `kept`.
pub fn visible(text: &str, kept: &[char]) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            _ if kept.contains(&c) || !is_hidden(c) => shown.push(c),
            _ if c.is_control() => shown.extend(c.escape_debug()),
            _ => shown.extend(c.escape_unicode()),
        }
    }
    shown
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_are_not_seen_are_made_visible() {
        assert_eq!(visible("a\u{202e}b\u{0}c\nd\u{200b}", &[]), "a\\u{202e}b\\0c\\nd\\u{200b}");
        assert_eq!(visible("\u{3164}\u{e0041}\u{1b}[2J", &[]), "\\u{3164}\\u{e0041}\\u{1b}[2J");
        assert_eq!(visible("Grüße, नमस्ते, it's \"ä\" \\", &[]), "Grüße, नमस्ते, it's \"ä\" \\");
        assert_eq!(visible("a\n\tb\r", &['\n', '\t']), "a\n\tb\\r");
    }
}
