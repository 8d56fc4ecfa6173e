//! The journal of ended jobs: opt-in, written in batches, kept for a configured time.
//!
//! ```text
//! job ends ─► memory ─► every 15 seconds ─► the storage's own journal (a table), if it has that power
//!                                       └─► otherwise blobs of JSON lines, each written by one worker
//! ```
//!
//! No job waits for the journal. Failed writes are retried; while too many entries wait, new entries are
//! dropped and counted. The waiting entries, an append and a segment are limited in number and in bytes. A
//! search returns the entries found after 5 seconds, and the time from which to continue. A search in blobs
//! that continues another reads the segments of that time again, before these 5 seconds.
//!
//! This module knows blobs and jobs. It knows nothing of queues, leases or handlers.

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

/// Returns the storage's own journal, or a journal in its blobs.
pub fn open(stores: &Stores) -> Arc<dyn JournalStore> {
    let own = stores.blob_powers.journal.clone();
    own.unwrap_or_else(|| Arc::new(BlobJournal::new(Arc::clone(&stores.blobs), stores.runtime.clone())))
}
