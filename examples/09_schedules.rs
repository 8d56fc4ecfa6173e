//! Lesson 9: work at given times.
//!
//! Teaches schedules: cron expressions with a time zone, and plain intervals, whose closures may have state.
//! The worker that leads sends the messages. Start the program twice in one folder, and each report is still
//! made once. Prints
//!
//! ```text
//! report 1 for Ada, due at …
//! report 2 for Ada, due at …
//! report 3 for Ada, due at …
//! ```

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jobqueue::{Context, JobError, QueueMessage, State, Worker};
use jobqueue_examples::{Failure, lesson_storage};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// The number of reports after which the lesson ends.
const ENOUGH: u32 = 3;

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "reports", kind = "report")]
struct Report {
    reader: String,
}

#[derive(Clone, Default)]
struct Made(Arc<(AtomicU32, Notify)>);

async fn report(report: Report, ctx: Context, State(made): State<Made>) -> Result<(), JobError> {
    let number = made.0.0.fetch_add(1, Ordering::Relaxed) + 1;
    // The id contains the schedule's name and the slot's time: it does not depend on the sender.
    println!("report {number} for {}, due at {}", report.reader, ctx.info().id);
    if number == ENOUGH {
        made.0.1.notify_one();
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let storage = lesson_storage("schedules").await?;
    let made = Made::default();
    // What a closure needs, it owns. It makes the message of each slot anew, so it sees what has changed
    // since.
    let reader = Arc::new(RwLock::new("Ada".to_owned()));
    let daily = Arc::clone(&reader);
    let report_for = |reader: &RwLock<String>| Report {
        reader: reader.read().unwrap_or_else(PoisonError::into_inner).clone(),
    };
    let worker = Worker::builder(storage)
        .state(made.clone())
        .handle(report)
        // At six in the morning in Berlin, in summer and winter time: probably not while you watch.
        .schedule("0 6 * * *", "Europe/Berlin", move || report_for(&daily))
        .every(Duration::from_secs(1), move || report_for(&reader));
    // A service runs until `jobqueue::shutdown_signal()`.
    let _ = worker.build()?.run_until(async { made.0.1.notified().await }).await?;
    Ok(())
}
