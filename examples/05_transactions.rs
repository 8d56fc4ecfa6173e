//! Lesson 5: a job that exists if and only if your own data does.
//!
//! Teaches `in_sqlite`: the message is part of the caller's transaction on the same SQLite file. It works on
//! SQLite only. Prints
//!
//! ```text
//! rolled back: 0 users, 0 jobs
//! committed: 1 users, 1 jobs
//! welcome, Ada!
//! ```

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

use jobqueue::{JobError, Queue, QueueMessage, Storage, Worker};
use jobqueue_examples::Failure;
use rusqlite::{Connection, TransactionBehavior};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "welcomes", kind = "welcome")]
struct Welcome {
    name: String,
}

async fn welcome(job: Welcome) -> Result<(), JobError> {
    println!("welcome, {}!", job.name);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    std::fs::create_dir_all("target")?;
    let file = "target/transactions.db";
    let storage = Storage::connect(&format!("sqlite:{file}")).await?;
    let welcomes = storage.queue::<Welcome>().await?;
    welcomes.clear().await?;
    let connection = Connection::open(file)?;
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS users (name TEXT NOT NULL);
         DELETE FROM users;",
    )?;

    let connection = register(connection, welcomes.clone(), "Ada", false).await?;
    tell("rolled back", &connection, &welcomes).await?;
    let connection = register(connection, welcomes.clone(), "Ada", true).await?;
    tell("committed", &connection, &welcomes).await?;
    let _ = Worker::builder(storage).handle(welcome).build()?.run_until_idle().await?;
    Ok(())
}

async fn register(
    mut connection: Connection,
    welcomes: Queue<Welcome>,
    name: &'static str,
    commit: bool,
) -> Result<Connection, Failure> {
    // A transaction may wait for other writers of the file, which must not block the threads of the runtime.
    let registering = move || {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute("INSERT INTO users (name) VALUES (?1)", [name])?;
        welcomes.send(&Welcome { name: name.to_owned() }).in_sqlite(&transaction)?;
        if commit {
            transaction.commit()?
        } else {
            transaction.rollback()?
        }
        Ok(connection)
    };
    tokio::task::spawn_blocking(registering).await?
}

async fn tell(what: &str, connection: &Connection, welcomes: &Queue<Welcome>) -> Result<(), Failure> {
    let users: i64 = connection.query_row("SELECT count(*) FROM users", [], |row| row.get(0))?;
    println!("{what}: {users} users, {} jobs", welcomes.approximate_len().await?);
    Ok(())
}
