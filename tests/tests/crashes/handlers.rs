//! The handlers. A job's id says what its handler does.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::batch::OnDeadLetters;
use jobqueue::settings::SettingOverrides;
use jobqueue::worker::CheckpointOutcome;
use jobqueue::{Context, Event, JobError, State, Worker, WorkerBuilder};
use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::effects;
use super::jobs::{Freight, Join, Order, Slice, Task, Todo, children, children_of, goes_on, inner_batch};
use super::process::Process;

/// The progress of a job. The second form is too large for a message.
#[derive(Default, Serialize, Deserialize)]
struct Progress {
    stage: u32,
    freight: String,
}

impl Progress {
    fn new(stage: u32) -> Self {
        Self { stage, freight: if stage == 2 { "p".repeat(70_000) } else { String::new() } }
    }
}

/// Returns a worker that records its runs.
pub fn worker(process: &Arc<Process>) -> WorkerBuilder {
    let mut terms = SettingOverrides::default();
    terms.timeout = Some(Duration::from_secs(5));
    terms.max_deliveries = Some(10_000);
    let listener = Arc::clone(process);
    let listen = move |event: &Event| {
        // What ended without a run, as a copy does that waits, says nothing of the run of another.
        if let Event::Finished { job: Some(job), outcome, ran, .. } = event
            && !ran.is_zero()
        {
            listener.ledger.note(outcome.as_str(), 0, &job.id);
        }
    };
    let worker = Worker::builder(process.storage.clone()).concurrency(16).overrides(terms);
    let worker = worker.state(Arc::clone(process)).on_event(listen);
    worker.handle(task).handle(order).handle(slice).handle(join)
}

type Here = State<Arc<Process>>;

async fn task(Task(freight): Task, ctx: Context, State(process): Here) -> Result<(), JobError> {
    run(&freight, &ctx, &process).await
}

async fn order(Order(freight): Order, ctx: Context, State(process): Here) -> Result<(), JobError> {
    run(&freight, &ctx, &process).await
}

async fn slice(Slice(freight): Slice, ctx: Context, State(process): Here) -> Result<(), JobError> {
    ctx.set_result(&*ctx.info().id)?;
    run(&freight, &ctx, &process).await
}

async fn join(Join(freight): Join, ctx: Context, State(process): Here) -> Result<(), JobError> {
    ctx.set_result(&*ctx.info().id)?;
    run(&freight, &ctx, &process).await
}

async fn run(freight: &Freight, ctx: &Context, process: &Process) -> Result<(), JobError> {
    let (job, ledger) = (&*ctx.info().id, &process.ledger);
    let Ok(resumed) = ctx.resume::<Progress>().await else { return Err(soon()) };
    let from = resumed.unwrap_or_default().stage;
    ledger.note("start", from, job);
    ledger.note("attempt", ctx.info().attempt, job);
    // A unique job that was sent in the place of a dead sender has its id and the other's freight.
    if !freight.is_whole(if job.contains("-u") { "" } else { job }) {
        ledger.note("damaged", 0, job);
    }
    match Todo::of(job) {
        Todo::Short => {}
        Todo::Staged => {
            for stage in from + 1..=3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
                save(ctx, process, stage).await;
            }
        }
        Todo::Snooze if from == 0 => {
            save(ctx, process, 1).await;
            ledger.note("snoozed", 0, job);
            return Err(JobError::snooze(Duration::from_millis(100)));
        }
        Todo::Snooze => {}
        Todo::Fail if ctx.info().attempt == 1 => return Err(failed(process, job)),
        Todo::Poison if !process.is_mended() && process.random().random_bool(0.8) => {
            return Err(failed(process, job));
        }
        Todo::Fail | Todo::Poison => {}
        Todo::Commit => return effects::commit(ctx, process).map_err(|_| soon()),
        Todo::Fan => fan_out(ctx, process, job).await?,
        Todo::Join => read_results(ctx, process, job).await?,
    }
    ledger.note("end", 0, job);
    Ok(())
}

/// Puts the job back after an error of the storage, without costing an attempt.
fn soon() -> JobError {
    JobError::snooze(Duration::from_millis(200))
}

fn failed(process: &Process, job: &str) -> JobError {
    process.ledger.note("failed", 0, job);
    JobError::retry_after(Duration::from_millis(50), "planted")
}

/// Saves the progress. The job continues if it cannot save it, or does not know whether it has.
async fn save(ctx: &Context, process: &Process, stage: u32) {
    if let Ok(CheckpointOutcome::Saved) = ctx.checkpoint(&Progress::new(stage)).await {
        process.ledger.note("saved", stage, &ctx.info().id);
    }
}

async fn fan_out(ctx: &Context, process: &Process, child: &str) -> Result<(), JobError> {
    let id = inner_batch(child);
    process.ledger.note("begin", 0, &id);
    let send = async {
        let mut batch = ctx.batch(&id).await?;
        if goes_on(&id) {
            batch.on_dead_letters(OnDeadLetters::Continue);
        }
        batch.send_all(children_of(&id).map(|child| Slice(Freight::of(&child)))).await?;
        batch.then(&Join(Freight::small(&id))).await
    };
    send.await.map_err(|_| soon())?;
    process.ledger.note("sealed", 0, &id);
    Ok(())
}

/// Compares the results with those that the children returned.
async fn read_results(ctx: &Context, process: &Process, batch: &str) -> Result<(), JobError> {
    let Ok(results) = ctx.batch_results::<String>().await else { return Err(soon()) };
    let expected = |(child, id): (&jobqueue::batch::ChildResult<String>, String)| match &child.outcome {
        // A child that fans out ends with the result of its own continuation.
        Ok(result) => result.as_deref() == Some(&*id) || result.as_deref() == Some(&*inner_batch(&id)),
        Err(_) => goes_on(batch),
    };
    let whole = results.len() as u64 == children(batch);
    if !whole || !results.iter().zip(children_of(batch)).all(expected) {
        process.ledger.note("wrong", results.len() as u32, batch);
    }
    Ok(())
}
