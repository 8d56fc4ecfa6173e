//! Checks the characters and the size of a message's text, which Azure carries in an XML document.

/// The maximum size in bytes of a text once escaped for XML: the service's limit of 131,584 for a request,
/// less the elements around the text.
pub const MAX_ESCAPED_BYTES: usize = 131_000;

/// Returns the first character that XML 1.0 cannot carry in any form, with its byte offset.
///
/// Legal are tab, line feed, carriage return and everything from U+0020 except U+FFFE and U+FFFF
/// ([XML 1.0, production 2](https://www.w3.org/TR/xml/#NT-Char)).
pub fn illegal_character(text: &str) -> Option<(usize, char)> {
    // Every message is checked, and few have a suspect byte: U+FFFE and U+FFFF begin with 0xEF. The compiler
    // can vectorise a loop over all bytes without a break.
    let suspect = text.bytes().fold(false, |suspect, byte| suspect | (byte < b' ') | (byte == 0xEF));
    if !suspect {
        return None;
    }
    text.char_indices().find(|(_, c)| !is_legal(*c))
}

fn is_legal(c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' => true,
        '\u{FFFE}' | '\u{FFFF}' => false,
        c => c >= ' ',
    }
}

/// Returns the size in bytes of `text` as the content of an XML element: `&`, `<`, `>` and carriage returns
/// are escaped.
pub(super) fn escaped_bytes(text: &str) -> usize {
    let extra = |byte: u8| match byte {
        b'&' | b'\r' => 4, // &amp; &#13;
        b'<' | b'>' => 3,  // &lt; &gt;
        _ => 0,
    };
    text.len() + text.bytes().map(extra).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_xml_cannot_carry_are_found() {
        for good in ["", "a\tb\r\nc", "ü€😀", "\u{D7FF}\u{E000}\u{FFFD}", "\u{7F}\u{85}"] {
            assert_eq!(illegal_character(good), None, "{good:?}");
        }
        assert_eq!(illegal_character("a\0"), Some((1, '\0')));
        assert_eq!(illegal_character("ü\u{1B}[2J"), Some((2, '\u{1B}')));
        assert_eq!(illegal_character("\u{FFFE}"), Some((0, '\u{FFFE}')));
        assert_eq!(illegal_character("\u{FFFF}"), Some((0, '\u{FFFF}')));
    }

    #[test]
    fn escaping_is_counted_by_the_byte() {
        assert_eq!(escaped_bytes("a&b<c>d\r"), "a&amp;b&lt;c&gt;d&#13;".len());
    }
}
