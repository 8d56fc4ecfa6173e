//! Lesson 1: a message, a handler, a worker.
//!
//! Teaches how to send a job and how to run it. The lessons store their jobs in SQLite files in `target`, or
//! in the storage that `LESSON_STORAGE` names: some of them clear the queues that they use. Prints
//!
//! ```text
//! Hello, Ada!
//! Hello, Grace!
//! done: 2
//! ```

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

use jobqueue::{JobError, QueueMessage, Worker};
use jobqueue_examples::{Failure, lesson_storage};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "hello", kind = "hello")]
struct Hello {
    #[message(non_empty)]
    name: String,
}

async fn greet(hello: Hello) -> Result<(), JobError> {
    // `?` alone turns an error into another attempt. A boxed error, and one of `anyhow`, needs this word.
    let salute = salute(&hello.name).map_err(JobError::retry)?;
    println!("{salute}");
    Ok(())
}

/// A function of an application, which may fail for any reason.
fn salute(name: &str) -> Result<String, Failure> {
    let initial = name.chars().next().ok_or("there is nobody to greet")?;
    Ok(format!("Hello, {}{}!", initial.to_uppercase(), &name[initial.len_utf8()..]))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let storage = lesson_storage("hello").await?;
    let queue = storage.queue::<Hello>().await?;
    for name in ["Ada", "Grace"] {
        queue.send(&Hello { name: name.to_owned() }).await?;
    }
    // A service calls `.run_until(jobqueue::shutdown_signal())` and runs until it receives a signal to stop.
    let worker = Worker::builder(storage).handle(greet).concurrency(1).build()?;
    let report = worker.run_until_idle().await?;
    println!("done: {}", report.completed);
    Ok(())
}
