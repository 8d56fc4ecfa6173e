//! A storage in memory: the strict reference of the port's promises, for tests, simulations and throw-away
//! work.
//!
//! The storage applies every documented rule of Azure Storage, in milliseconds or finer where Azure counts in
//! seconds. Nothing is written to disk: when the last clone of the [`Storage`] is dropped, its content is
//! gone. Deletions take effect at once, so `QueueBeingDeleted` never occurs.
//!
//! Messages are delivered in the order in which they become visible, then of insertion. The port promises no
//! order; this order makes tests repeatable.

use jobqueue_storage::memory;

use crate::runtime::Runtime;
use crate::storage::Storage;

#[doc(inline)]
pub use jobqueue_storage::clock::TokioClock;

/// Opens an empty storage that takes the time from tokio's clock: on a paused test runtime, its time stands
/// still and advances with the runtime's.
///
/// See [`TokioClock`] for threads outside the runtime. A worker uses such threads: on paused time, run it on
/// [`open_on`] with [`Runtime::paused`].
pub fn open() -> Storage {
    memory::open().into()
}

/// Opens an empty storage that takes the time and its ids from `runtime`, as do the queues and workers built
/// on it. If the clock goes backwards, the storage treats it as standing still.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// use jobqueue::{Runtime, memory};
///
/// let storage = memory::open_on(Runtime::paused());
/// # drop(storage);
/// # }
/// ```
pub fn open_on(runtime: Runtime) -> Storage {
    memory::open_on(runtime).into()
}
