//! A storage of queues and blobs in one SQLite file on one machine, shared by any number of processes.
//!
//! ```no_run
//! # async fn open() -> Result<(), jobqueue::Error> {
//! let storage = jobqueue::Storage::open(jobqueue::sqlite::Options::new("jobs.db")).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//! - **Durability.** An operation is answered after its transaction is committed with `synchronous=FULL`: it
//!   survives a crash of the process and, unless the disk loses synced data, a power cut.
//!   [`Synchronous::Normal`] trades the latter for speed.
//! - **Strictness.** An expired receipt is refused in the statement itself; receipts are 128 random bits.
//! - **Several processes.** Any number of processes may open the file at once. A commit in one process wakes
//!   the subscriptions of the others. While another process holds the write lock, operations that write wait
//!   for up to [`Options::busy_timeout`]; reads do not wait, nor does opening a file whose tables are there.
//! - **Visible failures.** On a full disk the operation fails and is not applied. Leases, renewals and
//!   deletions have reserved room, as long as the log can start over where other programs fill the disk.
//!   Damage in the file, or a failed write or sync, stops the store until it is opened again
//!   ([`Stopped`](jobqueue_storage::StoreErrorKind::Stopped)). A failed sync is never repeated as if it had
//!   not failed, and damage is never read as an empty queue.
//! - **One schema.** A program that opens an older file migrates its tables in one transaction, unless it
//!   [must not](Options::migrate). When a newer program migrates them while this one has the file open, the
//!   next operation is refused. A program never writes to tables of a schema that it does not know.
//! - **Time never runs backwards**, whatever the system's clock does.
//!
//! # How it works
//! Each open store has one thread that writes. It takes all waiting operations, and the operations that
//! arrive during their transaction, and runs them in one transaction, so that many tasks share one sync. Two
//! other threads read from their own snapshots, and never wait for writes. Checkpoints run between
//! transactions. While several processes write all the time, one of them takes the write lock from time to
//! time, so that the log starts over instead of growing. Expired messages are removed a few at a time.
//!
//! # Limits
//! - The file must be on a local disk: SQLite's log needs shared memory. Network file systems are refused.
//! - The file must have only one name, because SQLite derives the names of the log and of the locks from it.
//!   A file with a second hard link is refused, and on Linux also a file that is mounted apart from its
//!   folder.
//! - The folder of the file must not let every user create files: `/tmp` is refused, a folder in it is not.
//!   The folders above are not checked.
//! - A write-ahead log that was cut off or deleted while no process had the file open reads as if its last
//!   commits had not happened: SQLite cannot distinguish this from a crash. Keep `-wal` and `-shm` beside the
//!   file.
//! - After `fork`, a child can neither use the parent's handle nor open a store as long as the parent had one
//!   open; both are refused. Start processes with `exec` (as `std::process::Command` does), or fork before
//!   the first store is opened.
//! - A queue's length (`Queue::approximate_len`) is exact while the queue has at most 131,071 messages. Beyond
//!   that, those that can be received are estimated by samples, as a rule within a tenth. Counts, pages, listings and
//!   searches have a separate thread.
//! - In its lifetime a file has room for two million queues and two million million messages, deleted ones
//!   included; a cleared queue counts as a new one. After these, puts fail with `Full`.
//! - Analyse only your own tables (`ANALYZE orders`). The statistics that `ANALYZE` stores about the tables
//!   of this crate make it slow; they are removed when the file is opened, and within a minute while a store
//!   has it open.
//! - Use [`backup`] (or `VACUUM INTO`) for copies. Never copy a file in use, or open it by other means than
//!   SQLite: closing it would end SQLite's locks on it in this process.
//! - The application may keep its own tables in the file and join transactions with [`put_in`]. The file's
//!   `application_id`, `user_version` and all names that begin with `jobqueue_` belong to this crate.
//!
//! # What this crate knows
//! The port of `jobqueue-storage`, and SQLite. It does not know messages, queues of types and workers. The
//! crate `jobqueue` re-exports it as `jobqueue::sqlite` (feature `sqlite`).

#![forbid(unsafe_code)]

mod backup;
mod batch;
mod blob;
mod checkpoint;
mod clock;
mod error;
#[cfg(test)]
mod full_tests;
mod groups;
mod health;
mod inbox;
mod journal;
mod known;
mod metadata;
mod new_row;
mod notifiers;
mod open;
mod options;
#[cfg(test)]
mod plan_tests;
mod process_guard;
mod purge;
mod queue;
mod reader;
mod receipt;
mod row_id;
mod schema;
mod space;
mod statements;
mod store;
mod task;
#[cfg(test)]
mod tests;
mod transaction;
mod upkeep;
mod watch;
mod writer;

/// The `rusqlite` whose connections and transactions this crate accepts.
///
/// This crate accepts a range of its versions, and Cargo links one of them. An application that also depends
/// on `rusqlite` must get the same version; with this re-export it needs no separate dependency.
pub use rusqlite;

pub use backup::backup;
pub use options::{Options, Synchronous};
pub use transaction::{WITHOUT_LOCK, get_blob_in, holds_write_lock, put_blob_in, put_in, update_in};
