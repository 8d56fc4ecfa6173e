//! The journal of ended jobs: opt-in, written in batches, kept for a declared time.
//!
//! ```text
//! job ends ─► chunk in memory ─► segment: chunks of one worker, at most an hour ─► closed: its summary is written beside it
//! search:     list names ─► summaries of the segments in the range of time ─► segments that may hold what is wanted, the newest first
//! ```
//!
//! A segment is a blob that one worker writes: after 15 seconds with what has ended since, and again with more until it is full or an
//! hour is over. Then the worker writes a summary, whose name tells the segment's last moment, and whose content says which kinds ended
//! how, with a Bloom filter of the ids. So a search by id reads summaries and the few segments that can hold the id, and a storage needs
//! neither tables nor blobs that grow. The segment of a worker that was killed has no summary, and is always read.
//!
//! The form is binary, since a line of JSON cost a fifth of the throughput of empty jobs. What cannot be written is tried again; when too
//! much waits, the newest is dropped and counted. No job waits for it.
//!
//! Knows blobs and what is known of jobs; knows nothing of queues, leases or handlers.

mod bytes;
mod chunk;
mod filter;
mod id;
mod journal;
mod names;
mod query;
mod record;
mod search;
mod segment;
mod summary;
mod writer;

pub use record::HistoryRecord;

pub(crate) use journal::Journal;
pub(crate) use query::Query;
pub(crate) use search::search;
pub(crate) use writer::keep;

/// The container of the journals.
const CONTAINER: &str = "jobqueue-history";
/// The number of bytes with which a segment is full.
const FULL: usize = 1024 * 1024;
/// The most bytes that wait in memory.
const MOST: usize = 8 * 1024 * 1024;
/// The most bytes of a segment or a summary.
const MAX_BYTES: u64 = 2 * (MOST + FULL) as u64;
/// The time for which a segment is written.
const LIFE: std::time::Duration = std::time::Duration::from_secs(3600);
