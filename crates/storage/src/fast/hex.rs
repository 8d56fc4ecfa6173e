//! A hand-written hexadecimal codec: every message has a trace, and many have a receipt.

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Writes two lower-case hexadecimal digits for each byte; `text` is twice as long as `bytes`.
#[inline]
pub fn write_hex(bytes: &[u8], text: &mut [u8]) {
    for (pair, byte) in text.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        *pair = [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
    }
}

/// Returns two lower-case hexadecimal digits for each byte.
pub fn to_hex(bytes: &[u8]) -> String {
    let mut text = vec![0; 2 * bytes.len()];
    write_hex(bytes, &mut text);
    text.into_iter().map(char::from).collect()
}

/// Decodes the output of [`write_hex`]; returns `None` for anything else, including upper-case digits and
/// another length.
pub fn read_hex<const BYTES: usize>(text: &[u8]) -> Option<[u8; BYTES]> {
    let (pairs, rest) = text.as_chunks::<2>();
    let mut bytes = [0; BYTES];
    if pairs.len() != BYTES || !rest.is_empty() {
        return None;
    }
    let mut all = 0;
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        let (high, low) = (VALUES[usize::from(*high)], VALUES[usize::from(*low)]);
        all |= high | low;
        *byte = high << 4 | low & 15;
    }
    (all < 16).then_some(bytes)
}

/// The value of each digit; 255 for every other byte.
const VALUES: [u8; 256] = {
    let mut values = [u8::MAX; 256];
    let mut value = 0;
    while value < HEX.len() {
        values[HEX[value] as usize] = value as u8;
        value += 1;
    }
    values
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_are_read_as_they_were_written() {
        let mut text = [0; 6];
        write_hex(&[0x00, 0xa9, 0xff], &mut text);
        assert_eq!(&text, b"00a9ff");
        assert_eq!(to_hex(&[0x00, 0xa9, 0xff]), "00a9ff");
        assert_eq!(read_hex(&text), Some([0x00, 0xa9, 0xff]));
        assert_eq!(read_hex::<2>(&text), None);
        assert_eq!(read_hex::<3>(b"00A9ff"), None);
    }
}
