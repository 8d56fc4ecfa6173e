//! Jobs of `jobqueue` in the PostgreSQL transactions of sqlx and diesel-async.
//!
//! Each feature adds a driver, with a wrapper of its transaction for `SendRequest::in_postgres`,
//! `Context::complete_in_postgres` and `Context::once_in_postgres` of `jobqueue`:
//!
//! ```ignore
//! use jobqueue_postgres_drivers::sqlx_0_9::SqlxTransaction;
//!
//! let mut transaction = pool.begin().await?;
//! sqlx::query("INSERT INTO orders (id) VALUES (7)").execute(&mut *transaction).await?;
//! invoices.send(&Invoice { order: 7 }).in_postgres(SqlxTransaction(&mut transaction)).await?;
//! transaction.commit().await?; // the order and the job, or neither
//! ```
//!
//! These methods make the same promises as for a transaction of `tokio-postgres`. sqlx sends unnamed
//! statements, and diesel-async names each statement only while it runs. No statement stays in the cache of a
//! connection.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_docs, missing_debug_implementations, unreachable_pub, rust_2018_idioms)]

#[cfg(feature = "diesel-async")]
pub mod diesel;
#[cfg(any(feature = "sqlx-0_8", feature = "sqlx-0_9"))]
#[macro_use]
mod sqlx;

/// The transactions of sqlx 0.8.
#[cfg(feature = "sqlx-0_8")]
pub mod sqlx_0_8 {
    transactions_of_sqlx!(sqlx_core_0_8, sqlx_postgres_0_8, |statement| statement);
}

/// The transactions of sqlx 0.9.
#[cfg(feature = "sqlx-0_9")]
pub mod sqlx_0_9 {
    transactions_of_sqlx!(sqlx_core_0_9, sqlx_postgres_0_9, sqlx_core_0_9::sql_str::AssertSqlSafe);
}
