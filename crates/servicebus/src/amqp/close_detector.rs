//! Watches the outgoing frames for the close of the connection, which is the last frame.
//!
//! After its close, the client keeps a processor busy until the peer answers, or until its idle timeout. The
//! answer to `Close` is not needed, so the client gets the end of the stream as soon as it has sent its own
//! close.

/// The bytes before the body of a frame, plus the bytes of the body that identify its type.
const TYPED_HEADER_BYTES: usize = 11;
const HEADER_BYTES: usize = 8;
const CLOSE: u8 = 0x18;

/// Follows the frames of a stream as they are written.
#[derive(Debug, Default)]
pub(super) struct CloseDetector {
    head: [u8; TYPED_HEADER_BYTES],
    known: usize,
    /// The bytes of the current frame that are still to be written after its head.
    rest: usize,
    /// True once the close was written completely.
    pub(super) is_sent: bool,
    is_close: bool,
}

impl CloseDetector {
    pub(super) fn written(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.rest > 0 {
                let skipped = self.rest.min(bytes.len());
                self.rest -= skipped;
                bytes = &bytes[skipped..];
                self.is_sent |= self.is_close && self.rest == 0;
                continue;
            }
            let (byte, others) = (bytes[0], &bytes[1..]);
            self.head[self.known] = byte;
            self.known += 1;
            bytes = others;
            self.begun();
        }
    }

    fn begun(&mut self) {
        if self.known < HEADER_BYTES {
            return;
        }
        let length = u32::from_be_bytes([self.head[0], self.head[1], self.head[2], self.head[3]]) as usize;
        // A protocol header, or an empty frame.
        if &self.head[..4] == b"AMQP" || length <= HEADER_BYTES {
            self.known = 0;
            return;
        }
        if self.known == TYPED_HEADER_BYTES.min(length) {
            self.is_close =
                self.known == TYPED_HEADER_BYTES && self.head[5] == 0 && self.head[8..] == [0, 0x53, CLOSE];
            self.rest = length - self.known;
            self.is_sent |= self.is_close && self.rest == 0;
            self.known = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(code: u8, more: usize) -> Vec<u8> {
        let length = u32::try_from(TYPED_HEADER_BYTES + more).unwrap();
        let head = length.to_be_bytes().into_iter().chain([2, 0, 0, 0, 0, 0x53, code]);
        head.chain(std::iter::repeat_n(0x18, more)).collect()
    }

    #[test]
    fn close_is_detected_in_pieces_of_any_size() {
        let before =
            [b"AMQP\0\x01\0\0".to_vec(), vec![0, 0, 0, 8, 2, 0, 0, 0], frame(0x14, 300), frame(0x17, 0)];
        let close = frame(CLOSE, 5);
        for piece in 1..40 {
            let mut close_detector = CloseDetector::default();
            before.concat().chunks(piece).for_each(|bytes| close_detector.written(bytes));
            assert!(!close_detector.is_sent);
            close_detector.written(&close[..close.len() - 1]);
            assert!(!close_detector.is_sent, "its last byte is missing");
            close_detector.written(&close[close.len() - 1..]);
            assert!(close_detector.is_sent, "pieces of {piece}");
        }
    }
}
