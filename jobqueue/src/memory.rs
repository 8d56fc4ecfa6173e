//! A storage in memory: the strict reference of the port's promises, for tests, simulations and throw-away work.
//!
//! It applies every documented rule of Azure Storage, in milliseconds or finer where Azure counts in seconds. Nothing
//! is written to disk: when the last clone of the [`Storage`] is dropped, its content is gone. Deletions take effect at
//! once, so `QueueBeingDeleted` never occurs.
//!
//! Messages are delivered in the order in which they become visible, then of insertion. The port promises no order;
//! this order makes tests repeatable.

mod blob;
mod clock;
mod message_table;
mod queue;

use std::sync::Arc;

use crate::clock::Clock;
use crate::storage::Storage;

pub use clock::TokioClock;

/// Opens an empty storage that takes the time from tokio's clock, which stands still and moves as a test's paused
/// runtime does.
///
/// See [`TokioClock`] for what that means to threads outside the runtime.
pub fn open() -> Storage {
    open_with_clock(Arc::new(TokioClock::new()))
}

/// Opens an empty storage that takes the time from `clock`. A time that goes backwards is treated as standing still.
pub fn open_with_clock(clock: Arc<dyn Clock>) -> Storage {
    let clock = Arc::new(clock::Steady::new(clock));
    let queues = queue::MemoryQueues::new(Arc::clone(&clock));
    let blobs = blob::MemoryBlobs::new(clock);
    Storage::new(Arc::new(queues), Arc::new(blobs), "memory")
}
