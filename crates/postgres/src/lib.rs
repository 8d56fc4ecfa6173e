//! A storage of queues and blobs in a PostgreSQL database, shared by any number of processes on any number of
//! machines.
//!
//! ```no_run
//! # async fn open() -> Result<(), jobqueue_storage::StoreError> {
//! use jobqueue_storage::OpenStores;
//!
//! let options = jobqueue_postgres::Options::from_connection_string("postgres://app@localhost/shop")?;
//! let stores = options.open().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//! - **Durability.** An operation is answered after the server has committed it. The settings of the server
//!   decide which failures a commit survives: leave `fsync` on, and `synchronous_commit` at `on`.
//! - **Strictness.** The statement itself refuses an expired receipt, by the server's clock. The clocks of
//!   workers play no part. Receipts are 128 random bits.
//! - **No waiting for each other.** Concurrent workers get different messages, and none waits for the lock of
//!   another.
//! - **Steady cost.** The cost of a get does not grow with the number of waiting messages, nor with completed
//!   messages that PostgreSQL cannot remove because of a long transaction of another program. Renewals and
//!   deletions find their messages by number, whatever the statistics say, and a listing of blobs reads only
//!   the names of its page.
//! - **Nothing of other schemas.** Only functions and operators of PostgreSQL are called, whatever the
//!   session's `search_path`. The path is left unchanged, because a pooler and the application share the
//!   session.
//! - **One schema.** A program migrates the tables when it opens them. During a deployment the older program
//!   continues, unless it cannot use the new tables. Then its statements fail.
//! - **Certainty.** The error of a change is ambiguous unless the server reports that the statement failed
//!   and keeps the session, or the statement was not sent.
//!
//! # Limits
//! - The server must be PostgreSQL 13 or newer, the database must be encoded in UTF-8, and transactions must
//!   be `read committed`, which is the default. The tests run on 18. The statements were also tried on 13 to
//!   17, and behind PgBouncer in transaction mode.
//! - An open transaction that has put a message into a [group](jobqueue_storage::PutMessage::group) holds up
//!   the deletion of the first message of this group, unless a committed message follows that message. If the
//!   group was empty, it also holds up other puts into the group. An operation that is held up for its whole
//!   time limit fails, and has changed nothing, except that `clear` has removed the other messages. Messages
//!   of other groups are not held up, unless they are in a list with a message of this group: a list is put
//!   as a whole.
//! - An open transaction that has [changed](update_in) a message keeps it, even beyond its lease. If it is
//!   rolled back after the end of the lease, the next scan of the whole queue finds the message.
//! - While a long transaction keeps PostgreSQL from removing rows, puts and deletions in a group cost more
//!   with each message that the group has had since. Puts and deletions in other groups, or without a group,
//!   do not. Counts, pages of messages that are not visible, and the removal of expired messages also read
//!   the rows that could not be removed.
//! - If the get of another process is broken off, the next scan of the whole queue finds the messages that it
//!   had locked: after 5 seconds, or twenty times the duration of such a scan if that is longer. While a long
//!   transaction is open, that may be minutes. That scan also finds the messages of a transaction that
//!   committed late, if the get that began at their time took too long or was not answered.
//! - While so many rows cannot be removed that a scan of the whole queue takes longer than the time limit of
//!   an operation, a process that starts receives what became due in the last ten minutes, and older messages
//!   only when the rows can be removed.
//! - The contents of a deleted queue or container are removed step by step, by processes that receive
//!   messages. A transaction that puts into it and stays open for more than a day after the deletion can
//!   leave rows behind.
//! - A blob has at most 512 MiB.
//! - Counts read all messages of the queue.
//!
//! # What this crate knows
//! This crate knows the port of `jobqueue-storage`, and PostgreSQL. It knows nothing of message types, typed
//! queues and workers. The crate `jobqueue` re-exports it as `jobqueue::postgres` (feature `postgres`).

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod advice;
mod arrivals;
mod blob;
mod combine;
mod connect;
mod connection_string;
mod database;
mod driver;
#[cfg(feature = "entra")]
mod entra;
mod error;
#[cfg(test)]
mod fake_server;
mod held;
mod journal;
mod listen;
mod metadata;
mod open;
mod options;
mod pace;
mod password_file;
mod purge;
mod queue;
mod receipt;
mod scans;
mod schema;
mod servers;
mod settings;
mod store;
mod time;
mod tls;
mod transaction;

/// The version of `tokio-postgres` whose transactions this crate accepts directly.
pub use tokio_postgres;

/// The version of `azure_core` whose credentials [`Options`] accepts.
#[cfg(feature = "entra")]
pub use azure_core;

pub use driver::{Numbers, OpenTransaction, StatementError, Value};
pub use options::Options;
pub use transaction::{create_blob_in, put_in, update_in};
