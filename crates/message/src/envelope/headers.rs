//! The headers of the order and of batches, which belong to one job. Only the framework sets them.

/// The headers by which the messages of a job in order are known.
pub mod order {
    /// Marks an event of a FIFO group.
    pub const IN_ORDER: &str = "inorder";
    /// Distinguishes several messages of one job.
    pub const COPY: &str = "fifocopy";
    /// Names the page in which a send has entered the job.
    pub const PAGE: &str = "fifopage";
}

/// The headers that make a job a child of a batch, or its continuation.
pub mod batch {
    use std::collections::BTreeMap;

    /// The batch that a child belongs to.
    pub const BATCH: &str = "batchid";
    /// The child's number.
    pub const INDEX: &str = "batchindex";
    /// The effect of a dead letter, `wait` or `continue`.
    pub const ON_DEAD: &str = "batchondead";
    /// `1` if the child may have been put before, otherwise `0`; missing if its dead letters count as ended.
    pub const COPY: &str = "batchcopy";
    /// The batch whose results a continuation reads.
    pub const OF: &str = "batchof";
    /// The proof that the batch has made this child.
    pub const TOKEN: &str = "batchtoken";
    /// The proof that the batch has made this continuation.
    pub const OF_TOKEN: &str = "batchoftoken";

    /// All headers of batches.
    pub const ALL: [&str; 7] = [BATCH, INDEX, ON_DEAD, COPY, OF, TOKEN, OF_TOKEN];

    /// Returns whether a job with these headers is a child or the continuation of a batch.
    pub fn is_of_batch<T>(headers: &BTreeMap<String, T>) -> bool {
        [BATCH, OF].iter().any(|header| headers.contains_key(*header))
    }
}

/// Returns whether a header is one of the order or of batches.
pub fn is_own_header(name: &str) -> bool {
    [order::IN_ORDER, order::COPY, order::PAGE].contains(&name) || batch::ALL.contains(&name)
}
