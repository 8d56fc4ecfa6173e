//! The headers that make a job a child of a batch, or its continuation. The batch sets them, and no other sender.

use crate::envelope::Envelope;

/// Header: the batch that a child belongs to.
pub(crate) const BATCH: &str = "batchid";
/// Header: the child's number.
pub(crate) const INDEX: &str = "batchindex";
/// Header: the effect of a dead letter, `wait` or `continue`.
pub(crate) const ON_DEAD: &str = "batchondead";
/// Header: whether the child may have been put before, `0` or `1`; missing if its dead letters count as ended.
pub(crate) const COPY: &str = "batchcopy";
/// Header of a continuation: the batch whose results it reads.
pub(crate) const OF: &str = "batchof";
/// Header: the proof that the batch has made this child.
pub(crate) const TOKEN: &str = "batchtoken";
/// Header of a continuation: the proof that the batch has made it.
pub(crate) const OF_TOKEN: &str = "batchoftoken";

/// All of them.
pub(crate) const BATCH_HEADERS: [&str; 7] = [BATCH, INDEX, ON_DEAD, COPY, OF, TOKEN, OF_TOKEN];

/// Returns whether a job is a child of a batch, or its continuation.
pub(crate) fn is_of_batch(event: &Envelope) -> bool {
    event.extensions.contains_key(BATCH) || event.extensions.contains_key(OF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::is_own_header;

    #[test]
    fn headers_of_batches_are_set_by_no_sender() {
        assert!(BATCH_HEADERS.iter().all(|name| is_own_header(name)));
    }
}
