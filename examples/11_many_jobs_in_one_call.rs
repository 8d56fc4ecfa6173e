//! Lesson 11: many jobs in one call of a handler.
//!
//! Teaches `handle_many`: the rows of all jobs of a call, and the ends of these jobs, are one transaction. A
//! job that fails does not fail the others. `complete_in_sqlite` is for SQLite; `complete_in_postgres` does
//! the same on PostgreSQL. Prints
//!
//! ```text
//! a transaction with 19 rows
//! not colder than -273.15, but -300
//! 19 completed, 1 dead-lettered, 19 rows
//! ```

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

use std::time::Duration;

use jobqueue::chunk::{ChunkJob, ChunkOptions};
use jobqueue::{JobError, QueueMessage, State, Storage, Worker};
use jobqueue_examples::Failure;
use rusqlite::{Connection, TransactionBehavior};
use serde::{Deserialize, Serialize};

const FILE: &str = "target/readings.db";

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "readings", kind = "reading")]
struct Reading {
    celsius: f64,
}

/// The path of the database, which has the queue and the application's table.
#[derive(Clone)]
struct Database(&'static str);

async fn store(readings: Vec<ChunkJob<Reading>>, State(database): State<Database>) -> Result<(), JobError> {
    // A transaction blocks its thread. After an error or a panic all of these jobs are tried again, each
    // alone.
    tokio::task::spawn_blocking(move || insert(&database, readings)).await?.map_err(JobError::retry)
}

fn insert(database: &Database, readings: Vec<ChunkJob<Reading>>) -> Result<(), Failure> {
    let mut connection = Connection::open(database.0)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut rows = 0;
    for reading in readings {
        if reading.message.celsius < -273.15 {
            let text = format!("not colder than -273.15, but {}", reading.message.celsius);
            reading.fail(JobError::dead_letter(text));
            continue;
        }
        transaction.execute("INSERT INTO readings (celsius) VALUES (?1)", [reading.message.celsius])?;
        reading.context.complete_in_sqlite(&transaction)?;
        rows += 1;
    }
    println!("a transaction with {rows} rows");
    transaction.commit()?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    std::fs::create_dir_all("target")?;
    let storage = Storage::connect(&format!("sqlite:{FILE}")).await?;
    let queue = storage.queue::<Reading>().await?;
    queue.clear().await?;
    let connection = Connection::open(FILE)?;
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS readings (celsius REAL NOT NULL);
         DELETE FROM readings;",
    )?;
    let readings = (0..20).map(|hour| Reading { celsius: if hour == 7 { -300.0 } else { f64::from(hour) } });
    queue.send_all(readings).await?.into_result()?;

    // 20 jobs at most, and without so many those of a second.
    let chunks = ChunkOptions::new(20).linger(Duration::from_secs(1));
    let worker = Worker::builder(storage).state(Database(FILE)).handle_many(chunks, store);
    let worker = worker.on_dead_letter(|dead| async move { println!("{}", dead.error) });
    let report = worker.build()?.run_until_idle().await?;
    let rows: i64 = connection.query_row("SELECT count(*) FROM readings", [], |row| row.get(0))?;
    println!("{} completed, {} dead-lettered, {rows} rows", report.completed, report.dead_lettered);
    Ok(())
}
