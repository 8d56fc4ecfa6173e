//! The guide's table of permissions: each feature runs with exactly the letters that its row names, once its
//! queues and containers exist. Without one of them it fails with an error that names the letter.

mod coordination;
mod jobs;
mod operators;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::{Event, JobError, Queue, QueueMessage, Storage, Worker, WorkerBuilder};
use serde::{Deserialize, Serialize};

use super::start::{by_key, by_sas, by_sas_for};

const GUIDE: &str = include_str!("../../../../jobqueue/src/docs/permissions_and_costs.md");

/// The letters for queues of the guide's first table.
const PRODUCER: &str = "ra";
const WORKER: &str = "raup";

const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "steps", kind = "step")]
struct Step {
    #[message(key)]
    key: String,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "ends", kind = "end")]
struct End {}

fn step(key: &str) -> Step {
    Step { key: key.into() }
}

fn unique() -> String {
    format!("permission-{}", uuid::Uuid::new_v4().simple())
}

async fn accept(_: Step) -> Result<(), JobError> {
    Ok(())
}

/// Creates a queue with its dead-letter queue. Returns it with its name.
async fn new_queue(admin: &Storage) -> (String, Queue<Step>) {
    let name = unique();
    admin.queue_named::<Step>(&format!("{name}-poison")).await.unwrap();
    let queue = admin.queue_named(&name).await.unwrap();
    (name, queue)
}

/// Returns the texts in backticks of the second column of the row of `feature`, in their order.
fn letters(feature: &str) -> Vec<&'static str> {
    let row = GUIDE.lines().find(|line| line.starts_with(&format!("| {feature}")));
    let row = row.unwrap_or_else(|| panic!("the guide has no row for {feature}"));
    row.split(" | ").nth(1).unwrap().split('`').skip(1).step_by(2).collect()
}

/// Returns the text of an error with its causes.
fn shown<T>(result: Result<T, jobqueue::Error>) -> Result<T, String> {
    result.map_err(|error| format!("{error:?}"))
}

/// Runs a worker until it is idle. Returns the number of completed jobs, or the errors of its deliveries.
async fn run(builder: WorkerBuilder) -> Result<u64, String> {
    let errors = Arc::<Mutex<String>>::default();
    let noted = Arc::clone(&errors);
    let builder = builder.presence(None).on_event(move |event| {
        // A handler may snooze its job.
        if let Event::Finished { error: Some(error), .. } = event
            && error != "snoozed"
        {
            *noted.lock().unwrap() += &format!("{error}\n");
        }
    });
    let report = shown(builder.build().unwrap().run_until_idle().await)?;
    let errors = errors.lock().unwrap().clone();
    if errors.is_empty() { Ok(report.completed) } else { Err(errors) }
}

fn worker(storage: &Storage) -> WorkerBuilder {
    Worker::builder(storage.clone())
}

/// Checks that `feature` works with `letters`, and without each of those in `needed` fails with an error that
/// names it.
async fn needs(letters: &str, needed: &str, feature: impl AsyncFn(&str) -> Result<(), String>) {
    if let Err(error) = feature(letters).await {
        panic!("{letters}: {error}");
    }
    for missing in needed.chars() {
        assert!(letters.contains(missing), "the guide does not name {missing:?} in {letters:?}");
        let mut others = letters.replace(missing, "");
        if others.is_empty() {
            // A signature has at least one letter.
            others.push('l');
        }
        let Err(error) = feature(&others).await else { panic!("it works with {others:?}") };
        assert!(error.contains(&format!("missing: {missing:?}")), "{others}: {error}");
    }
}
