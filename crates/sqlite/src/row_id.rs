//! The row ids of messages. A row id consists of the queue, a bit that says whether the message could be
//! received as soon as it was put, and a number that grows with every message of the file.
//!
//! The messages that could be received at once are adjacent, in the order of their puts. A get takes them by
//! their numbers, without an index. All other messages are found by the index of times, even once they can be
//! received.

use std::ops::Range;

/// The first number that no message can have.
pub(super) const NUMBERS: i64 = 1 << NUMBER_BITS;
/// The first id that no queue can have.
pub(super) const QUEUES: i64 = (1 << (62 - NUMBER_BITS)) - 1;

const NUMBER_BITS: u32 = 41;

/// Returns the row id of a new message.
pub(super) fn of(queue: i64, number: i64, at_once: bool) -> i64 {
    of_shown(queue, i64::from(at_once) << NUMBER_BITS | number)
}

/// Returns the row id of a message from the part that callers see.
pub(super) fn of_shown(queue: i64, shown: i64) -> i64 {
    queue << (NUMBER_BITS + 1) | shown
}

/// Parses the part that callers see; `None` if no message can have it.
pub(super) fn parse(text: &str) -> Option<i64> {
    text.parse().ok().filter(|shown| (1..2 * NUMBERS).contains(shown))
}

pub(super) fn shown(row: i64) -> i64 {
    row & (2 * NUMBERS - 1)
}

/// Returns the number, which orders messages that become visible at the same time.
pub(super) fn number(row: i64) -> i64 {
    row & (NUMBERS - 1)
}

/// Returns the row ids of a queue.
pub(super) fn all(queue: i64) -> Range<i64> {
    of_shown(queue, 0)..of_shown(queue + 1, 0)
}

/// Returns the row ids of the messages of a queue that are received by their numbers, from the queue's head
/// on.
pub(super) fn from_head(queue: i64, head: i64) -> Range<i64> {
    head.max(of(queue, 0, true))..all(queue).end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_queue_are_apart_from_those_of_others() {
        for queue in [1, 2, QUEUES - 1] {
            let (first, last) = (of(queue, 1, false), of(queue, NUMBERS - 1, true));
            assert!(last > first);
            assert!(all(queue).contains(&first));
            assert!(all(queue).contains(&last));
            assert!(!all(queue - 1).contains(&first));
            assert_eq!(number(last), NUMBERS - 1);
            assert_eq!(of_shown(queue, shown(last)), last);
            assert!(from_head(queue, 0).contains(&last));
            assert!(!from_head(queue, 0).contains(&of(queue, 7, false)), "found by the index of times");
        }
        assert_eq!(parse("7"), Some(7));
        for wrong in ["", "0", "-7", "4398046511104", "x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
