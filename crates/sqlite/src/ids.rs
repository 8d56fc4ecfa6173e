//! Reserves numbers for messages and tags in blocks, so that not every transaction has to write the next free number.
//! Numbers that a process had reserved when it ended are never used.

/// The number of numbers that a writer reserves at once.
const BLOCK: i64 = 1_024;

/// Numbers reserved for one writer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ids {
    next: i64,
    end: i64,
    block: i64,
}

impl Ids {
    /// Returns an empty source that reserves blocks.
    pub(super) fn in_blocks() -> Self {
        Self { next: 0, end: 0, block: BLOCK }
    }

    /// Returns an empty source that reserves one number at a time, for callers that need few.
    pub(super) fn one_by_one() -> Self {
        Self { next: 0, end: 0, block: 1 }
    }

    /// Returns the next number, if one is left.
    pub(super) fn allocate(&mut self) -> Option<i64> {
        (self.next < self.end).then(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// Reserves a block that starts at `sequence`; returns the first number after it, or `None` when all numbers are
    /// used up.
    pub(super) fn reserve(&mut self, sequence: i64) -> Option<i64> {
        let end = sequence.saturating_add(self.block);
        *self = Self { next: sequence, end, ..*self };
        (end > sequence).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_drawn_twice_and_the_last_one_is_the_last() {
        let mut ids = Ids::one_by_one();
        assert_eq!(ids.allocate(), None);
        assert_eq!(ids.reserve(7), Some(8));
        assert_eq!((ids.allocate(), ids.allocate()), (Some(7), None));
        let mut ids = Ids::in_blocks();
        assert_eq!(ids.reserve(i64::MAX - 1), Some(i64::MAX));
        assert_eq!((ids.allocate(), ids.allocate()), (Some(i64::MAX - 1), None));
        assert_eq!(ids.reserve(i64::MAX), None);
    }
}
