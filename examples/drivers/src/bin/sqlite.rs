//! A job that exists if and only if a row of yours does, and one that is done if and only if its effect is
//! there, each in one transaction of sqlx on SQLite.
//!
//! ```text
//! cargo run --manifest-path examples/drivers/Cargo.toml
//! ```
//!
//! Teaches to join a transaction that another library has begun: sqlx lends the handle of its connection, and
//! `in_sqlite` and `complete_in_sqlite` take any connection of `rusqlite`, also one over such a handle.
//! Prints
//!
//! ```text
//! rolled back: 0 users, 0 welcomed, 0 jobs
//! committed: 1 users, 0 welcomed, 1 jobs
//! welcome, Ada!
//! completed: 1 users, 1 welcomed, 0 jobs
//! ```

use std::time::Duration;

use jobqueue::job::Verdict;
use jobqueue::sqlite::rusqlite;
use jobqueue::{Context, Error, JobError, Queue, QueueMessage, State, Storage, Worker};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Sqlite, SqlitePool, Transaction};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "welcomes", kind = "welcome")]
struct Welcome {
    name: String,
}

/// Writes down that a user is welcome, and completes the job with the same commit.
async fn welcome(job: Welcome, ctx: Context, State(pool): State<SqlitePool>) -> Result<(), JobError> {
    println!("welcome, {}!", job.name);
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await.map_err(JobError::retry)?;
    let update = sqlx::query("UPDATE users SET welcomed = 1 WHERE name = ?").bind(job.name);
    update.execute(&mut *transaction).await.map_err(JobError::retry)?;
    join(&mut transaction, |connection| ctx.complete_in_sqlite(connection)).await.map_err(JobError::retry)?;
    transaction.commit().await.map_err(JobError::retry)
}

/// Calls a function within a transaction of sqlx, with its connection as `rusqlite` has it.
async fn join<T>(
    transaction: &mut Transaction<'_, Sqlite>,
    act: impl FnOnce(&rusqlite::Connection) -> Result<T, Error>,
) -> Result<T, Failure> {
    let mut locked = transaction.lock_handle().await?;
    // SAFETY: the handle is valid and of this process's only copy of SQLite. While it is locked, the thread
    // of sqlx does not use it, and `connection` is dropped before the lock. A connection made in this way
    // does not close the handle.
    let connection = unsafe { rusqlite::Connection::from_handle(locked.as_raw_handle().as_ptr()) }?;
    Ok(act(&connection)?)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = format!("sqlite:{}", folder.path().join("app.db").display());
    let storage = Storage::connect(&path).await?;
    let welcomes = storage.queue::<Welcome>().await?;
    // SQLite's lock has no queue: the writers of a process take turns on one connection, and wait for those
    // of other processes.
    let options = path.parse::<SqliteConnectOptions>()?.busy_timeout(Duration::from_secs(30));
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
    let table = "CREATE TABLE users (name TEXT NOT NULL, welcomed INTEGER NOT NULL DEFAULT 0)";
    sqlx::query(table).execute(&pool).await?;

    register(&pool, &welcomes, "Ada").await?.rollback().await?;
    tell("rolled back", &pool, &welcomes).await?;
    register(&pool, &welcomes, "Ada").await?.commit().await?;
    tell("committed", &pool, &welcomes).await?;
    let builder = Worker::builder(storage).state(pool.clone()).handle(welcome);
    // `database is locked` after all costs no attempt.
    let builder = builder.retry_policy(|error, _job| {
        let error = error.source().downcast_ref::<sqlx::Error>()?.as_database_error()?;
        let is_busy = error.code()?.parse::<u32>().is_ok_and(|code| code & 0xff == 5);
        is_busy.then_some(Verdict::Snooze(Duration::from_secs(5)))
    });
    let _ = builder.build()?.run_until_idle().await?;
    tell("completed", &pool, &welcomes).await?;
    pool.close().await;
    Ok(())
}

/// Adds a user and their welcome; the caller ends the transaction.
async fn register(
    pool: &SqlitePool,
    welcomes: &Queue<Welcome>,
    name: &str,
) -> Result<Transaction<'static, Sqlite>, Failure> {
    // It takes the write lock now: one that begins by reading could be overtaken, and `in_sqlite` refuses it.
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query("INSERT INTO users (name) VALUES (?)").bind(name).execute(&mut *transaction).await?;
    let job = Welcome { name: name.to_owned() };
    join(&mut transaction, |connection| welcomes.send(&job).in_sqlite(connection)).await?;
    Ok(transaction)
}

async fn tell(what: &str, pool: &SqlitePool, welcomes: &Queue<Welcome>) -> Result<(), Failure> {
    let counts = sqlx::query_as("SELECT count(*), coalesce(sum(welcomed), 0) FROM users");
    let (users, welcomed): (i64, i64) = counts.fetch_one(pool).await?;
    println!("{what}: {users} users, {welcomed} welcomed, {} jobs", welcomes.approximate_len().await?);
    Ok(())
}
