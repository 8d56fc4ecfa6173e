//! A storage in memory: the strict reference of what the port promises, for tests, simulations and throw-away work.
//!
//! Applies every documented rule of Azure Storage, in milliseconds or finer where Azure counts in seconds. Knows
//! nothing of disks: when the last clone of the [`Storage`] is dropped, everything in it is gone. Deletions
//! take effect at once, so `QueueBeingDeleted` never occurs.
//!
//! Messages are delivered in order of the time from which they are visible, then of insertion; the port promises no
//! order, and this is only so that tests repeat.

mod blob;
mod clock;
mod message_table;
mod queue;

use std::sync::Arc;

use crate::clock::Clock;
use crate::storage::Storage;

pub use clock::TokioClock;

/// Opens an empty storage whose time is tokio's, so that it stands still and moves as a test's paused runtime does.
///
/// See [`TokioClock`] for what that means to threads outside the runtime.
pub fn open() -> Storage {
    open_with_clock(Arc::new(TokioClock::new()))
}

/// Opens an empty storage that takes the time from `clock`. Time that goes backwards is taken to stand still.
pub fn open_with_clock(clock: Arc<dyn Clock>) -> Storage {
    let clock = Arc::new(clock::Steady::new(clock));
    let queues = queue::MemoryQueues::new(Arc::clone(&clock));
    let blobs = blob::MemoryBlobs::new(clock);
    Storage::new(Arc::new(queues), Arc::new(blobs), "memory")
}
