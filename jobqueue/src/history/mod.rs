//! The journal of ended jobs: opt-in, written in batches, kept for a declared time.
//!
//! ```text
//! job ends ─► memory ─► every 15 seconds ─► the storage's own journal (a table), where it has that power
//!                                       └─► blobs of JSON lines, one worker's each, otherwise
//! ```
//!
//! No job waits for the journal. Entries that cannot be written are tried again; while too many wait, the newest are dropped and
//! counted. The entries that wait, an append and a segment are limited in number and in bytes. A search begins no further request after 5 seconds, and returns what it has found and the time from which to continue.
//!
//! Knows blobs and jobs; knows nothing of queues, leases or handlers.

mod blobs;
mod buffer;
mod line;
mod search;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;

pub(crate) use buffer::JournalBuffer;
pub(crate) use writer::run_journal_writer;

use crate::storage::{JournalStore, Stores};
use blobs::BlobJournal;

/// Returns the journal of a storage: its own, or one in its blobs.
pub fn open(stores: &Stores) -> Arc<dyn JournalStore> {
    let own = stores.blob_powers.journal.clone();
    own.unwrap_or_else(|| Arc::new(BlobJournal::new(Arc::clone(&stores.blobs), stores.runtime.clone())))
}
