//! Numbers and texts of variable length, as chunks hold them.

/// Appends a number in groups of seven bits, the lowest first (LEB128).
pub(super) fn write_number(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Appends a text with its length.
pub(super) fn write_text(to: &mut Vec<u8>, text: &str) {
    write_number(to, text.len() as u64);
    to.extend_from_slice(text.as_bytes());
}

/// Reads what was written. Every method returns `None` at the end, and for bytes that no writer has written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    pub(super) fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn array<const LENGTH: usize>(&mut self) -> Option<[u8; LENGTH]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.number()?).ok()?;
        std::str::from_utf8(self.bytes(length)?).ok()
    }
}

/// Returns a number without a sign: small numbers of either sign stay small.
pub(super) fn zigzag(number: i64) -> u64 {
    (number << 1) as u64 ^ (number >> 63) as u64
}

/// Returns the number of which [`zigzag`] made this one.
pub(super) fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX];
        numbers.iter().for_each(|number| write_number(&mut bytes, *number));
        write_text(&mut bytes, "größer");
        let mut reader = Reader(&bytes);
        assert!(numbers.iter().all(|number| reader.number() == Some(*number)));
        assert_eq!(reader.text(), Some("größer"));
        assert_eq!(reader.byte(), None);
        for number in [0, 1, -1, 63, -64, i64::MAX, i64::MIN] {
            assert_eq!(unzigzag(zigzag(number)), number);
        }
    }

    #[test]
    fn damaged_bytes_are_no_number_and_no_text() {
        assert_eq!(Reader(&[0x80; 20]).number(), None);
        assert_eq!(Reader(&[5, b'a']).text(), None);
        assert_eq!(Reader(&[1, 0xff]).text(), None);
    }
}
