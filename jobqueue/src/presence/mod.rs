//! Worker presence: each worker keeps a record in the storage, for operators. Operators store requests to
//! cancel jobs.
//!
//! ```text
//! worker:   put own record ─► list requests ─► … every interval: put the record, conditionally ─► … ─► delete it
//! operator: put a request ─► count a notification in the records of present workers
//! worker:   sees one more notification ─► list requests
//! ```
//!
//! Without requests, a worker writes one blob per interval and reads nothing. A record that was not written
//! for three intervals is stale: its worker has died, or cannot reach the storage. Errors in this module are
//! logged and affect no job.
//!
//! This module knows blobs and the metadata of jobs. It knows nothing of queues, leases or handlers.

mod document;
mod record;
mod requests;
mod store;
mod tracker;
mod writer;

pub use record::{
    Counters, HISTOGRAM_BOUNDS, JobProgress, KindLimits, ListeningQueue, RunningJob, WorkerRecord,
};

pub(crate) use record::EVERY_KIND;
pub use requests::{Answer, CancelRequest, Requests, StoredRequest, is_of_this_life};
pub use store::{CONTAINER, FoundWorker, Records, storage_time};
pub(crate) use tracker::{Run, TrackedRun, Tracker};
pub(crate) use writer::{WorkerFacts, read_once, run_record_writer};
