//! Lesson 10: many jobs, then one more when all of them are done.
//!
//! Teaches batches: a fan-out that can be interrupted and started again without doubling a child, results of
//! the children, and a continuation that runs once. Prints
//!
//! ```text
//! 1000 numbers in 10 parts
//! the first attempt was interrupted
//! sum of 10 parts: 499500
//! ```

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

use std::time::{Duration, SystemTime};

use jobqueue::{Context, JobError, QueueMessage, Worker};
use jobqueue_examples::{Failure, lesson_storage};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "sums", kind = "sum")]
struct Sum {
    report: String,
    up_to: u64,
    parts: u64,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "sum-parts", kind = "sum.part")]
struct Part {
    from: u64,
    to: u64,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "sum-totals", kind = "sum.total")]
struct Total {}

async fn fan_out(job: Sum, ctx: Context) -> Result<(), JobError> {
    let size = job.up_to / job.parts;
    let part = |number| Part { from: number * size, to: (number + 1) * size };
    // The message names the batch, so that a second attempt continues the same batch. The id of a job may
    // have characters that the id of a batch may not, such as the slashes in that of a schedule's job.
    let mut batch = ctx.batch(&job.report).await?;
    if ctx.info().attempt == 1 {
        println!("{} numbers in {} parts", job.up_to, job.parts);
        batch.send_all((0..job.parts / 2).map(part)).await?;
        println!("the first attempt was interrupted");
        return Err(JobError::retry_after(Duration::ZERO, "no coffee"));
    }
    batch.send_all((0..job.parts).map(part)).await?; // what was sent before is passed over
    Ok(batch.then(&Total {}).await?)
}

async fn part(job: Part, ctx: Context) -> Result<(), JobError> {
    Ok(ctx.set_result(&(job.from..job.to).sum::<u64>())?)
}

async fn total(_: Total, ctx: Context) -> Result<(), JobError> {
    let parts = ctx.batch_results::<u64>().await?;
    let sum: u64 = parts.iter().filter_map(|part| part.outcome.as_ref().ok()?.as_ref()).sum();
    println!("sum of {} parts: {}", parts.len(), sum);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let storage = lesson_storage("batches").await?;
    let report = format!("sum-{}", SystemTime::UNIX_EPOCH.elapsed()?.as_millis());
    storage.queue::<Sum>().await?.send(&Sum { report, up_to: 1_000, parts: 10 }).await?;
    let worker = Worker::builder(storage).handle(fan_out).handle(part).handle(total);
    let _ = worker.build()?.run_until_idle().await?;
    Ok(())
}
