//! The headers of FIFO groups and batches. They belong to one job, and only the framework sets them.

/// The headers of the messages of a job in a FIFO group.
pub mod order {
    /// Marks an event of a FIFO group.
    pub const IN_ORDER: &str = "inorder";
    /// Distinguishes the messages of one job.
    pub const COPY: &str = "fifocopy";
    /// Names the page of the group's log in which the send recorded the job.
    pub const PAGE: &str = "fifopage";
}

/// The headers that make a job a child of a batch, or its continuation.
pub mod batch {
    use std::collections::BTreeMap;

    /// The batch that a child belongs to.
    pub const BATCH: &str = "batchid";
    /// The child's number.
    pub const INDEX: &str = "batchindex";
    /// The effect of the child's dead letter on the batch: `wait` or `continue`.
    pub const ON_DEAD: &str = "batchondead";
    /// `1` if the child may have been put before, `0` if not; absent if its dead letters count as ended.
    pub const COPY: &str = "batchcopy";
    /// The batch whose results a continuation reads.
    pub const OF: &str = "batchof";
    /// The proof that the batch created this child.
    pub const TOKEN: &str = "batchtoken";
    /// The proof that the batch created this continuation.
    pub const OF_TOKEN: &str = "batchoftoken";

    /// All headers of batches.
    pub const ALL: [&str; 7] = [BATCH, INDEX, ON_DEAD, COPY, OF, TOKEN, OF_TOKEN];

    /// Returns whether a job with these headers is a child or the continuation of a batch.
    pub fn is_of_batch<T>(headers: &BTreeMap<String, T>) -> bool {
        [BATCH, OF].iter().any(|header| headers.contains_key(*header))
    }
}

/// Returns whether a header belongs to FIFO groups or batches.
pub fn is_own_header(name: &str) -> bool {
    [order::IN_ORDER, order::COPY, order::PAGE].contains(&name) || batch::ALL.contains(&name)
}
