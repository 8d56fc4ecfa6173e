//! Measures jobs that each insert a row into a SQLite database of the application: a transaction for each
//! job, and one for each call of a handler that takes 100 jobs.
//!
//! ```console
//! $ cargo bench -p jobqueue-bench --bench chunks
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark that fails ends")]

use std::sync::{Arc, Mutex};
use std::time::Instant;

use jobqueue::chunk::ChunkJob;
use jobqueue::{JobError, QueueMessage, State, Storage, Worker};
use jobqueue_bench_harness::median;
use rusqlite::Connection;
use serde::{Deserialize, Serialize};

/// The jobs of one call.
const CHUNK: usize = 100;

/// A job that inserts a row.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "readings", kind = "bench.reading")]
struct Reading {
    number: i64,
}

/// The application's database, whose commits are synced.
#[derive(Clone)]
struct Database(Arc<Mutex<Connection>>);

impl Database {
    fn open(folder: &tempfile::TempDir) -> Self {
        let connection = Connection::open(folder.path().join("application.db")).unwrap();
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
                 CREATE TABLE readings (number INTEGER NOT NULL)",
            )
            .unwrap();
        Self(Arc::new(Mutex::new(connection)))
    }

    /// Inserts the rows in one transaction, on a thread that may block.
    async fn insert(self, numbers: Vec<i64>) -> Result<(), JobError> {
        let insert = move || {
            let mut connection = self.0.lock().unwrap();
            let transaction = connection.transaction()?;
            let mut statement = transaction.prepare_cached("INSERT INTO readings VALUES (?1)")?;
            for number in numbers {
                statement.execute([number])?;
            }
            drop(statement);
            transaction.commit()
        };
        tokio::task::spawn_blocking(insert).await?.map_err(JobError::retry)
    }

    fn rows(&self) -> i64 {
        self.0.lock().unwrap().query_row("SELECT count(*) FROM readings", [], |row| row.get(0)).unwrap()
    }
}

async fn one(reading: Reading, State(database): State<Database>) -> Result<(), JobError> {
    database.insert(vec![reading.number]).await
}

async fn many(readings: Vec<ChunkJob<Reading>>, State(database): State<Database>) -> Result<(), JobError> {
    database.insert(readings.iter().map(|reading| reading.message.number).collect()).await
}

/// Runs jobs, with a transaction for each or for each 100 of them, and returns the jobs of a second.
async fn rate(jobs: u32, in_chunks: bool) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let storage =
        Storage::connect(&format!("sqlite:{}", folder.path().join("jobs.db").display())).await.unwrap();
    let queue = storage.queue::<Reading>().await.unwrap();
    let sent = queue.send_all((0..jobs).map(|number| Reading { number: number.into() })).await.unwrap();
    sent.into_iter().for_each(|sent| drop(sent.unwrap()));
    let database = Database::open(&folder);
    let builder = Worker::builder(storage).state(database.clone()).concurrency(2 * CHUNK);
    let builder = if in_chunks { builder.handle_many(CHUNK, many) } else { builder.handle(one) };
    let worker = builder.build().unwrap();
    let began = Instant::now();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, u64::from(jobs));
    let rate = f64::from(jobs) / began.elapsed().as_secs_f64();
    assert_eq!(database.rows(), i64::from(jobs));
    rate
}

#[tokio::main]
async fn main() {
    // `cargo bench` says so; everybody else wants to see that it runs.
    let is_full = std::env::args().any(|argument| argument == "--bench");
    let (jobs, rounds) = if is_full { (20_000, 3) } else { (300, 1) };
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        alone.push(rate(jobs, false).await);
        together.push(rate(jobs, true).await);
    }
    let (alone, together) = (median(alone), median(together));
    println!("| a transaction for | jobs/s |\n|---|--:|");
    println!("| each job | {alone:.0} |\n| each call of {CHUNK} | {together:.0} |\n");
    println!("{:.1} times as many.", together / alone);
}
