//! Finds values that are nested too deeply in the bytes of a message.
//!
//! The client decodes recursively, without a limit: a body of 90 kB can overflow the stack of a thread, which
//! ends the process. A walk without recursion finds the place before the client reaches it. Like the client,
//! it counts the values of a container, and ignores the container's size.

#[cfg(test)]
mod tests;

/// The maximum number of open containers: sections, described values, lists and maps. Answers of the service
/// need four (section, map, list, map), the body of a job needs one. A level uses less than a kilobyte of
/// stack.
const MAX_DEPTH: usize = 32;
pub(crate) const TOO_DEEP: &str = "its values are nested too deeply";
/// An invalid type code, at which the client stops reading.
pub(super) const NO_TYPE: u8 = 0xFF;

const DESCRIBED: u8 = 0x00;
/// The maximum number of bytes before the content of a value: code, size and count.
const MAX_HEAD_BYTES: usize = 9;

/// A walk through a message, whose bytes may arrive in pieces.
#[derive(Debug, Clone, Default)]
pub(crate) struct Nesting {
    /// The number of remaining values in each open container.
    open: Vec<u32>,
    head: [u8; MAX_HEAD_BYTES],
    known: usize,
    /// The remaining bytes of values that contain no other values.
    skipped: u64,
    /// The type and the number of the remaining values in an array.
    array: Option<(u8, u32)>,
    step: Step,
}

#[derive(Debug, Clone, Copy, Default)]
enum Step {
    #[default]
    Values,
    /// The next byte is the type of an array with this many values.
    ElementType(u32),
    /// The client would misread the following bytes.
    Misread,
    /// The client reads no further.
    Over,
}

impl Nesting {
    /// Processes bytes. Returns, at most once, the index of a type code that the client must not reach.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() && !matches!(self.step, Step::Over) {
            if self.skipped > 0 {
                let rest = bytes.len() - at;
                let skipped = usize::try_from(self.skipped).map_or(rest, |skipped| skipped.min(rest));
                self.skipped -= skipped as u64;
                at += skipped;
            } else if self.known == 0
                && let Some((code, count)) = self.array.take()
            {
                self.array = (count > 1).then_some((code, count - 1));
                (self.head[0], self.known) = (code, 1);
            } else if self.allows(bytes[at]) {
                at += 1;
            } else {
                self.step = Step::Over;
                return Some(at);
            }
        }
        None
    }

    /// Processes a byte of a head. Returns `false` if the client must not reach it.
    fn allows(&mut self, byte: u8) -> bool {
        match self.step {
            Step::ElementType(count) => return self.begin_elements(byte, count),
            Step::Misread => return false,
            Step::Values | Step::Over => {}
        }
        if self.known == 0 && self.open.len() > MAX_DEPTH {
            return false;
        }
        self.head[self.known] = byte;
        self.known += 1;
        if self.known == head_length(self.head[0]) {
            self.known = 0;
            self.begin();
        }
        true
    }

    /// Begins the value whose head is complete.
    fn begin(&mut self) {
        let (code, width) = (self.head[0], width(self.head[0]));
        let (first, second) = (number(&self.head[1..=width]), number(&self.head[width + 1..=2 * width]));
        match code >> 4 {
            0x0 if code == DESCRIBED => self.open(2),
            0x4 => self.end(),
            0x5..=0x9 => self.skip(fixed_width(code)),
            0xA | 0xB => self.skip(first.into()),
            0xC | 0xD => {
                self.open(second);
                let is_map = code & 0x0F == 1;
                if is_map && second % 2 == 1 {
                    // The client's count goes below zero.
                    self.step = Step::Misread;
                }
            }
            // For an empty array, the client leaves the type to be read as the next value.
            0xE | 0xF if second > 0 || first as usize > width => self.step = Step::ElementType(second),
            0xE | 0xF => self.end(),
            _ => self.step = Step::Over,
        }
    }

    /// Begins the values of an array. Returns `false` if they contain other values: the client takes the type
    /// of the outer values for the inner ones, and would open containers that do not exist.
    fn begin_elements(&mut self, code: u8, count: u32) -> bool {
        self.step = Step::Values;
        self.end();
        match code >> 4 {
            _ if count == 0 => return false,
            0x0 | 0xC..=0xF => return false,
            0xA | 0xB => self.array = Some((code, count)),
            _ => self.skipped = fixed_width(code) * u64::from(count),
        }
        true
    }

    fn skip(&mut self, length: u64) {
        self.skipped = length;
        self.end();
    }

    fn open(&mut self, count: u32) {
        match count {
            0 => self.end(),
            _ => self.open.push(count),
        }
    }

    /// Ends a value, and every container that ends with it.
    fn end(&mut self) {
        while let Some(left) = self.open.last_mut() {
            *left -= 1;
            if *left > 0 {
                return;
            }
            self.open.pop();
        }
    }
}

/// Returns the width of a value's size field, and of its count field.
fn width(code: u8) -> usize {
    if code & 0x10 == 0 { 1 } else { 4 }
}

fn head_length(code: u8) -> usize {
    match code >> 4 {
        0xA | 0xB => 1 + width(code),
        0xC..=0xF => 1 + 2 * width(code),
        _ => 1,
    }
}

fn fixed_width(code: u8) -> u64 {
    match code >> 4 {
        category @ 0x5..=0x9 => 1 << (category - 5),
        _ => 0,
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Returns the start of the message in the bytes of a transfer.
pub(super) fn payload_start(transfer: &[u8]) -> Option<usize> {
    let list = if *transfer.get(1)? == 0x53 { 3 } else { 10 };
    let code = *transfer.get(list)?;
    let size = transfer.get(list + 1..=list + width(code))?;
    Some(list + 1 + width(code) + number(size) as usize)
}
