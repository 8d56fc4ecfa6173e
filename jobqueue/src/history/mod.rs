//! The journal of ended jobs: opt-in, written in batches, kept for a declared time.
//!
//! A worker gathers what has ended, and writes it as lines of JSON into a blob of its own, which it writes again with more lines until
//! the blob is full or an hour is over. So a search reads few blobs, no two workers write one, and a storage needs neither tables nor
//! blobs that grow. What cannot be written is tried again; when too much waits, the newest is dropped and counted. No job waits for it.
//!
//! Knows blobs and what is known of jobs; knows nothing of queues, leases or handlers.

mod record;
mod search;
mod writer;

pub use record::HistoryRecord;

pub(crate) use search::{Query, search};
pub(crate) use writer::{Journal, keep};

/// The container of the journals.
const CONTAINER: &str = "jobqueue-history";
/// The most bytes of a journal's blob, and a little more.
const MAX_BYTES: u64 = 2 * 1024 * 1024;
