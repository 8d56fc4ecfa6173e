//! A storage of queues and blobs in a PostgreSQL database, shared by any number of processes on any number of
//! machines.
//!
//! Re-exports the crate [`jobqueue_postgres`], whose page lists its promises and limits. [The
//! guide](crate::guide::postgres) says how to run it.

#[cfg(feature = "postgres-entra")]
pub use jobqueue_postgres::azure_core;
pub use jobqueue_postgres::tokio_postgres;
#[doc(inline)]
pub use jobqueue_postgres::{
    Numbers, OpenTransaction, Options, StatementError, Value, create_blob_in, put_in,
};
