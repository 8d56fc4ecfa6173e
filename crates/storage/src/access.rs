//! The kinds of access that a process needs, so that a missing permission is reported before the first
//! operation.

/// The access that a process needs to a queue or to blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Access {
    /// Access to send messages and to write large payloads.
    Send,
    /// Access to run jobs, and to move failed ones to the dead-letter queue.
    Process,
}
