//! Lesson 3: what happens when a handler fails.
//!
//! Teaches retries, the poison threshold, dead letters, and redriving them. Prints
//!
//! ```text
//! attempt 1 of 3
//! attempt 2 of 3
//! attempt 3 of 3
//! dead letter: attempts_exhausted, because: the printer is out of paper
//! put back: 1
//! printed
//! ```

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::{Context, JobError, QueueMessage, State, Worker};
use jobqueue_examples::{Failure, lesson_storage};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "prints", kind = "print", poison_threshold = 3)]
struct Print {
    pages: u32,
}

#[derive(Clone)]
struct Paper(Arc<AtomicBool>);

async fn print(job: Print, ctx: Context, State(paper): State<Paper>) -> Result<(), JobError> {
    if job.pages == 0 {
        return Err(JobError::dead_letter("nothing to print")); // trying again cannot help
    }
    if !paper.0.load(Ordering::Relaxed) {
        println!("attempt {} of {}", ctx.info().attempt, ctx.info().max_attempts);
        // An error by `?` waits for the type's back-off; this error names its own delay.
        return Err(JobError::retry_after(Duration::ZERO, "the printer is out of paper"));
    }
    println!("printed");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let storage = lesson_storage("retries").await?;
    let prints = storage.queue::<Print>().await?;
    let dead = prints.dead_letters()?;
    let _ = dead.purge(DeadLetterOptions::new().filter(|_| true)).await?;
    prints.send(&Print { pages: 2 }).await?;

    let paper = Paper(Arc::default());
    let worker = || Worker::builder(storage.clone()).state(paper.clone()).handle(print).build();
    let _ = worker()?.run_until_idle().await?;
    for letter in dead.peek().await? {
        println!("dead letter: {}, because: {}", letter.reason, letter.error.unwrap_or_default());
    }

    paper.0.store(true, Ordering::Relaxed);
    println!("put back: {}", dead.redrive(DeadLetterOptions::new()).await?.moved.len());
    let _ = worker()?.run_until_idle().await?;
    Ok(())
}
