//! Lesson 6: what handlers share, and what wraps them.
//!
//! Teaches `State`, an extractor of your own, `Extension`, and tower layers: they add database pools,
//! per-tenant settings, timeouts and metrics without changing the handlers. Prints
//!
//! ```text
//! greet for blue: hello, Ada (1 sent)
//! greet for red: hello, Grace (2 sent)
//! ```

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jobqueue::handler::{ExtractError, FromJob};
use jobqueue::{Extension, Job, JobError, QueueMessage, SendOptions, State, Worker};
use jobqueue_examples::{Failure, lesson_storage};
use serde::{Deserialize, Serialize};
use tower::timeout::TimeoutLayer;
use tower::util::MapRequestLayer;

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "greetings", kind = "greet")]
struct Greet {
    name: String,
}

/// Anything that can be cloned may be state: a pool, a client, a counter.
#[derive(Clone, Default)]
struct Sent(Arc<AtomicU32>);

/// The tenant of the job. This extractor reads a header that the sender has set.
struct Tenant(String);

impl FromJob for Tenant {
    fn from_job(job: &Job) -> Result<Self, ExtractError> {
        let tenant = job.info().headers.get("tenant");
        tenant.cloned().map(Self).ok_or_else(|| ExtractError::new("the job has no header `tenant`"))
    }
}

/// The value that a layer adds to the job.
#[derive(Clone)]
struct Label(String);

async fn greet(
    job: Greet,
    Tenant(tenant): Tenant,
    Extension(Label(label)): Extension<Label>,
    State(sent): State<Sent>,
) -> Result<(), JobError> {
    let sent = sent.0.fetch_add(1, Ordering::Relaxed) + 1;
    println!("{label} for {tenant}: hello, {} ({sent} sent)", job.name);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let storage = lesson_storage("layers").await?;
    let greetings = storage.queue::<Greet>().await?;
    for (name, tenant) in [("Ada", "blue"), ("Grace", "red")] {
        let options = SendOptions::new().header("tenant", tenant);
        greetings.send(&Greet { name: name.to_owned() }).with(options).await?;
    }
    let worker = Worker::builder(storage)
        .state(Sent::default())
        .handle(greet)
        .concurrency(1)
        // The first layer is the innermost. A timeout is a failed attempt, like any other error.
        .layer(TimeoutLayer::new(Duration::from_secs(5)))
        .layer(MapRequestLayer::new(|mut job: Job| {
            let label = Label(job.info().kind.to_string());
            job.insert(label);
            job
        }));
    let _ = worker.build()?.run_until_idle().await?;
    Ok(())
}
