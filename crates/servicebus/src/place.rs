//! Maps a queue of the port to an entity of the service: a queue, or the dead-letter subqueue that each queue
//! has.

use std::borrow::Cow;

use jobqueue_storage::{DEAD_LETTER_SUFFIX, QueueName};

/// The suffix of the address of a dead-letter queue.
pub(super) const DEAD_LETTERS: &str = "/$DeadLetterQueue";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place<'n> {
    pub(super) queue: &'n str,
    pub(super) is_dead_letters: bool,
}

impl<'n> Place<'n> {
    /// Returns the entity of a queue: `orders-poison` is the dead-letter queue of `orders`.
    pub(super) fn of(name: &'n QueueName) -> Self {
        match name.as_str().strip_suffix(DEAD_LETTER_SUFFIX) {
            Some(queue) => Self { queue, is_dead_letters: true },
            None => Self { queue: name.as_str(), is_dead_letters: false },
        }
    }

    /// Returns the address to which links are attached.
    pub(super) fn address(self) -> Cow<'n, str> {
        if self.is_dead_letters { format!("{}{DEAD_LETTERS}", self.queue).into() } else { self.queue.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_letter_queue_is_addressed_as_a_subqueue() {
        let queue = QueueName::new("orders").unwrap();
        assert_eq!(Place::of(&queue).address(), "orders");
        assert_eq!(Place::of(&queue.dead_letter().unwrap()).address(), "orders/$DeadLetterQueue");
    }
}
