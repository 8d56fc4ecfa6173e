//! A storage in memory: the strict reference of the port's promises, for tests, simulations and throw-away
//! work.
//!
//! It applies every documented rule of Azure Storage, in milliseconds or finer where Azure counts in seconds.
//! Nothing is written to disk: when the last clone of the [`Stores`] is dropped, the content is gone.
//! Deletions take effect at once, so `QueueBeingDeleted` never occurs.
//!
//! Messages are delivered in the order in which they become visible, then of insertion. The port promises no
//! order; this order makes tests repeatable.

mod blob;
mod clock;
mod message_table;
mod queue;

use std::sync::Arc;

use crate::Stores;
use crate::runtime::Runtime;

pub use crate::clock::TokioClock;

/// Opens an empty storage that takes the time from tokio's clock, which a test with a paused runtime
/// controls.
///
/// See [`TokioClock`] for threads outside the runtime.
pub fn open() -> Stores {
    open_on(Runtime::new().with_clock(Arc::new(TokioClock::new())))
}

/// Opens an empty storage that takes the time and its ids from `runtime`, as does everything built on it. If
/// the clock goes backwards, the storage's time stands still.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// use jobqueue::{Runtime, memory};
///
/// let storage = memory::open_on(Runtime::paused());
/// # drop(storage);
/// # }
/// ```
pub fn open_on(runtime: Runtime) -> Stores {
    let clock = Arc::new(clock::SteadyClock::new(runtime.clone()));
    let queues = queue::MemoryQueues::new(Arc::clone(&clock));
    let blobs = blob::MemoryBlobs::new(clock);
    Stores::new(Arc::new(queues), Arc::new(blobs), "memory").with_runtime(runtime)
}
