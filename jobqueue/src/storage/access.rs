//! What a process is going to do with a storage, so that a missing permission can be told before it does.

/// What a process does with a queue or with blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Access {
    /// It sends messages, and writes large payloads.
    Send,
    /// It runs jobs, and puts those that fail on the dead-letter queue.
    Process,
}
