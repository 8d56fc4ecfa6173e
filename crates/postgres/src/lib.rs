//! A storage of queues and blobs in a PostgreSQL database, shared by any number of processes on any number of machines.
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
//! - **Durability.** An operation is answered after the server has committed it. What a commit survives is the server's matter: leave
//!   `fsync` on, and `synchronous_commit` at `on`.
//! - **Strictness.** An expired receipt is refused in the statement itself, by the server's clock; receipts are 128 random bits. Clocks of
//!   workers play no part.
//! - **No waiting for each other.** Of many workers each gets messages of its own; none waits for the lock of another.
//! - **Steady cost.** What a get costs does not grow with the messages that wait, nor with those that are done and that a long transaction
//!   of another program keeps PostgreSQL from removing. Renewals and deletions find their messages by their numbers, whatever the statistics say, and a
//!   listing of blobs reads the names of its page.
//! - **Nothing of other schemas.** Functions and operators are PostgreSQL's own, whatever the session's `search_path` has, which is left as it is: a pooler and
//!   the application share the session.
//! - **One schema.** A program migrates the tables when it opens them. During a deployment the older program goes on; tables that it cannot use refuse it.
//! - **Certainty.** An error is ambiguous unless the server says that the statement failed and goes on.
//!
//! # Limits
//! - The server is PostgreSQL 13 or newer, its database encoded in UTF-8, and its transactions `read committed`, as
//!   they are by default. The tests run on 18; the statements were also tried on 13 to 17, and behind PgBouncer in transaction mode.
//! - A transaction that has put a message of a [group](jobqueue_storage::PutMessage::group), and is still open, holds up the deletion of the
//!   first message of this group, unless another one that is committed follows it; if the group was empty, also other puts into it. An operation that is held up for its whole time limit fails, and has changed
//!   nothing, except that `clear` has removed the others. Other groups are not held up, except in a list with one that is: it is put as a whole.
//! - A transaction that has [changed](update_in) a message, and is still open, keeps it, also beyond its lease. If it is rolled back after that, the message is
//!   found by the next scan of the whole queue.
//! - While a long transaction keeps PostgreSQL from removing rows, puts and deletions in one group cost more with each message that it has had
//!   meanwhile; those of other groups, or of none, do not. Counts, pages of messages that are not received, and the removal of expired messages read what is
//!   not removed too.
//! - If the server breaks off the get of another process, the messages that it had locked are found by the next scan of the whole queue: after 5
//!   seconds, or twenty times as long as such a scan takes. While a long transaction is open, that may be minutes.
//! - What was in a queue or a container that is deleted is removed bit by bit, by processes that receive. A transaction that puts into it and is open for a day longer can leave
//!   rows behind.
//! - A blob has at most 512 MiB.
//! - Counts read all messages of a queue.
//!
//! # What this crate knows
//! The port of `jobqueue-storage`, and PostgreSQL. It knows nothing of messages, queues of types and workers; the crate `jobqueue` re-exports
//! it as `jobqueue::postgres` (feature `postgres`).

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

/// The `tokio-postgres` whose transactions this crate accepts as they are.
pub use tokio_postgres;

/// The `azure_core` of which [`Options`] takes credentials.
#[cfg(feature = "entra")]
pub use azure_core;

pub use driver::{Numbers, OpenTransaction, StatementError, Value};
pub use options::Options;
pub use transaction::{create_blob_in, put_in, update_in};
