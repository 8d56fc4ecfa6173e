//! Worker presence: each worker keeps a record in the storage of what it does, so that others can see it, and reads there which jobs
//! are to be cancelled.
//!
//! ```text
//! worker:   put own record ─► list requests ─► … every interval: put the record if nobody has touched it ─► … ─► delete it
//! operator: put a request ─► touch the records of present workers
//! worker:   its record was touched ─► list requests ─► put the record
//! ```
//!
//! A worker that nobody asks for anything writes one blob an interval and reads nothing. A record that was not written for three
//! intervals is stale: its worker has died, or cannot reach the storage. What fails here is logged and changes no job.
//!
//! Knows blobs and what is known of jobs; knows nothing of queues, leases or handlers.

mod host;
mod record;
mod requests;
mod store;
mod tracker;
mod writer;

pub use record::{Counters, HISTOGRAM_BOUNDS, JobProgress, ListeningQueue, RunningJob, WorkerRecord};

pub(crate) use requests::{Answer, CancelRequest, Requests};
pub(crate) use store::{Found, Records};
pub(crate) use tracker::{Run, Tracker};
pub(crate) use writer::{About, keep};
