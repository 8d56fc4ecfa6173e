//! Writes numbers as digits by hand: every message has several, and the formatting machinery takes ten times as long.

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The greatest number of digits of a `u64`.
const MAX_DECIMAL: usize = 20;

/// Writes two lower-case hexadecimal digits for each byte; `text` is twice as long as `bytes`.
pub(crate) fn write_hex(bytes: &[u8], text: &mut [u8]) {
    for (pair, byte) in text.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        *pair = [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
    }
}

/// Reads digits that [`write_hex`] wrote; returns `None` for anything else, including upper-case digits and another
/// length.
pub(crate) fn read_hex<const BYTES: usize>(text: &[u8]) -> Option<[u8; BYTES]> {
    let (pairs, rest) = text.as_chunks::<2>();
    let mut bytes = [0; BYTES];
    if pairs.len() != BYTES || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = value(*high)? << 4 | value(*low)?;
    }
    Some(bytes)
}

fn value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// A number in decimal digits, without an allocation.
pub(crate) struct Decimal {
    digits: [u8; MAX_DECIMAL],
    begin: usize,
}

impl Decimal {
    pub(crate) fn of(mut number: u64) -> Self {
        let (mut digits, mut begin) = ([b'0'; MAX_DECIMAL], MAX_DECIMAL - 1);
        loop {
            digits[begin] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return Self { digits, begin };
            }
            begin -= 1;
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.digits[self.begin..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_standard_library() {
        for number in [0, 7, 10, 99, 1_024, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            assert_eq!(Decimal::of(number).as_bytes(), number.to_string().as_bytes());
        }
        let mut text = [0; 6];
        write_hex(&[0x00, 0xa9, 0xff], &mut text);
        assert_eq!(&text, b"00a9ff");
        assert_eq!(read_hex(&text), Some([0x00, 0xa9, 0xff]));
        assert_eq!(read_hex::<2>(&text), None);
        assert_eq!(read_hex::<3>(b"00A9ff"), None);
    }
}
