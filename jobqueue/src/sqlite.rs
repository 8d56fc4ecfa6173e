//! A storage of queues and blobs in one SQLite file on one machine, shared by any number of processes.
//!
//! Re-exports the crate [`jobqueue_sqlite`], whose page lists its promises and limits.

pub use jobqueue_sqlite::rusqlite;
#[doc(inline)]
pub use jobqueue_sqlite::{Options, Synchronous, backup, put_blob_in, put_in};
