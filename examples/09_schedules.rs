//! Lesson 9: work at given times.
//!
//! Teaches schedules: cron expressions with a time zone, and plain intervals. The worker that leads sends the
//! messages. Start the program twice on one storage (`JOBQUEUE_STORAGE`), and each report is still made once. Prints
//!
//! ```text
//! report 1, due at …
//! report 2, due at …
//! report 3, due at …
//! ```

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jobqueue::{Context, JobError, QueueMessage, State, Worker};
use jobqueue_examples::{Failure, open_storage};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// The number of reports after which the lesson ends.
const ENOUGH: u32 = 3;

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "reports", kind = "report")]
struct Report {}

#[derive(Clone, Default)]
struct Made(Arc<(AtomicU32, Notify)>);

async fn report(_: Report, ctx: Context, State(made): State<Made>) -> Result<(), JobError> {
    let number = made.0.0.fetch_add(1, Ordering::Relaxed) + 1;
    // The id contains the schedule's name and the slot's time: it does not depend on the sender.
    println!("report {number}, due at {}", ctx.info().id);
    if number == ENOUGH {
        made.0.1.notify_one();
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let storage = open_storage(None, "schedules").await?;
    let made = Made::default();
    let worker = Worker::builder(storage)
        .state(made.clone())
        .handle(report)
        // At six in the morning in Berlin, in summer and winter time: probably not while you watch.
        .schedule("0 6 * * *", "Europe/Berlin", || Report {})
        .every(Duration::from_secs(1), || Report {});
    // A service runs until `jobqueue::shutdown_signal()`.
    let _ = worker.build()?.run_until(async { made.0.1.notified().await }).await?;
    Ok(())
}
