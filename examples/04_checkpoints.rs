//! Lesson 4: long jobs that do not start from the beginning.
//!
//! Teaches checkpoints and durable steps: a later attempt continues where the last one stopped. Prints
//!
//! ```text
//! attempt 1: fetched 6 rows
//! attempt 1: row 0
//! attempt 1: row 1
//! attempt 1: row 2
//! attempt 2: row 3
//! attempt 2: row 4
//! attempt 2: row 5
//! ```

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

use std::time::Duration;

use jobqueue::{Context, JobError, QueueMessage, Worker};
use jobqueue_examples::{Failure, lesson_storage};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "imports", kind = "import")]
struct Import {
    file: String,
}

#[derive(Default, Serialize, Deserialize)]
struct Progress {
    next_row: u32,
}

async fn import(job: Import, ctx: Context) -> Result<(), JobError> {
    let attempt = ctx.info().attempt;
    // A step runs once; later attempts get its saved result.
    let rows: u32 = ctx
        .step("fetch", || async {
            println!("attempt {attempt}: fetched {} rows", job.file.len());
            Ok::<_, JobError>(job.file.len() as u32)
        })
        .await?;
    let start = ctx.resume::<Progress>().await?.unwrap_or_default();
    for row in start.next_row..rows {
        if attempt == 1 && row == 3 {
            return Err(JobError::retry_after(Duration::ZERO, "the power went out"));
        }
        println!("attempt {attempt}: row {row}");
        ctx.checkpoint(&Progress { next_row: row + 1 }).await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let storage = lesson_storage("checkpoints").await?;
    storage.queue::<Import>().await?.send(&Import { file: "people".into() }).await?;
    let _ = Worker::builder(storage).handle(import).build()?.run_until_idle().await?;
    Ok(())
}
