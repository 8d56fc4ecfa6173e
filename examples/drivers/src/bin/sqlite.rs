//! A job that exists if and only if a row of yours does, in one transaction of sqlx.
//!
//! ```text
//! cargo run --manifest-path examples/drivers/Cargo.toml
//! ```
//!
//! Teaches to join a transaction that another library has begun: sqlx lends the handle of its connection, and `in_transaction`
//! takes any connection of `rusqlite`, also one over such a handle. Prints
//!
//! ```text
//! rolled back: 0 users, 0 jobs
//! committed: 1 users, 1 jobs
//! welcome, Ada!
//! ```

use jobqueue::sqlite::rusqlite;
use jobqueue::{JobError, Queue, QueueMessage, Sent, Storage, Worker};
use serde::{Deserialize, Serialize};
use sqlx::{Sqlite, SqlitePool, Transaction};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "welcomes", kind = "welcome")]
struct Welcome {
    name: String,
}

async fn welcome(job: Welcome) -> Result<(), JobError> {
    println!("welcome, {}!", job.name);
    Ok(())
}

/// Sends a job within a transaction of sqlx.
async fn send_in<M: QueueMessage>(
    transaction: &mut Transaction<'_, Sqlite>,
    queue: &Queue<M>,
    message: &M,
) -> Result<Sent, Failure> {
    let mut locked = transaction.lock_handle().await?;
    // SAFETY: the handle is valid and of this process's only copy of SQLite. While it is locked, the thread of sqlx does not use
    // it, and `connection` is dropped before the lock. A connection made in this way does not close the handle.
    let connection = unsafe { rusqlite::Connection::from_handle(locked.as_raw_handle().as_ptr()) }?;
    Ok(queue.send(message).in_transaction(&connection)?)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = format!("sqlite:{}", folder.path().join("app.db").display());
    let storage = Storage::connect(&path).await?;
    let welcomes = storage.queue::<Welcome>().await?;
    let pool = SqlitePool::connect(&path).await?;
    sqlx::query("CREATE TABLE users (name TEXT NOT NULL)").execute(&pool).await?;

    register(&pool, &welcomes, "Ada").await?.rollback().await?;
    tell("rolled back", &pool, &welcomes).await?;
    register(&pool, &welcomes, "Ada").await?.commit().await?;
    tell("committed", &pool, &welcomes).await?;
    let _ = Worker::builder(storage).handle(welcome).build()?.run_until_idle().await?;
    pool.close().await;
    Ok(())
}

/// Adds a user and their welcome; the caller ends the transaction.
async fn register(
    pool: &SqlitePool,
    welcomes: &Queue<Welcome>,
    name: &str,
) -> Result<Transaction<'static, Sqlite>, Failure> {
    // It takes the write lock now: one that begins by reading could be overtaken, and `in_transaction` refuses it.
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query("INSERT INTO users (name) VALUES (?)").bind(name).execute(&mut *transaction).await?;
    send_in(&mut transaction, welcomes, &Welcome { name: name.to_owned() }).await?;
    Ok(transaction)
}

async fn tell(what: &str, pool: &SqlitePool, welcomes: &Queue<Welcome>) -> Result<(), Failure> {
    let users: i64 = sqlx::query_scalar("SELECT count(*) FROM users").fetch_one(pool).await?;
    println!("{what}: {users} users, {} jobs", welcomes.approximate_len().await?);
    Ok(())
}
