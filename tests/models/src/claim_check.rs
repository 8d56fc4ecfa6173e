//! Claim checks: blobs to which messages refer, from their creation to their deletion.
//!
//! | property | invariant |
//! |---|---|
//! | [`NO_MISSING_BLOB`] | I15, I12a: no message and no letter refers to a blob that is missing |
//! | [`NO_ORPHAN`] | I15: once the job has ended, a sweep leaves no blob |
//! | [`NOTHING_LOST`] | I1, I12a: a job that was sent is stored, done or purged |
//!
//! The model has one job with a large payload and a large checkpoint, its sender, two workers, a redrive, a
//! purge and a sweep. After its checkpoint, the job may continue in another delivery. The model leaves out
//! blobs with an expiry, sweeps while other processes run, queues on several accounts, and blobs that cannot
//! be read for a long time.

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::{Context, JobError, QueueMessage, Storage, Worker};
use serde::{Deserialize, Serialize};

use crate::model::{Scenario, State};
use crate::process::{Application, Program, Run, Start};

/// Property; see the table of this module.
pub const NO_MISSING_BLOB: &str = "no message refers to a missing blob";
/// Property; see the table of this module.
pub const NO_ORPHAN: &str = "no blob is left at the end";
/// Property; see the table of this module.
pub const NOTHING_LOST: &str = "no job is lost";

/// A size that does not fit into a message.
const LARGE_PAYLOAD: usize = 70_000;
const BLOBS: &str = "jobqueue-payloads/";

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "jobs", kind = "job")]
struct Work {
    text: String,
}

const PROPERTIES: &[(&str, crate::model::Holds)] = &[
    (NO_MISSING_BLOB, |_, state| has_all_blobs(state)),
    (NO_ORPHAN, |model, state| model.recovers(state)),
    (NOTHING_LOST, |_, state| {
        let is_stored = !state.store.messages.is_empty() || state.count("purge", 0) > 0;
        state.count("sent", 0) == 0 || state.count("done", 0) > 0 || is_stored
    }),
];

/// A job that writes a checkpoint.
pub const CHECKPOINTS: Scenario = Scenario {
    programs: &[
        Program { name: "sender", start: Start::Once, run: send },
        Program { name: "worker", start: Start::Message("jobs"), run: checkpoint },
        Program { name: "redrive", start: Start::While("jobs-poison", 1), run: redrive },
        Program { name: "purge", start: Start::While("jobs-poison", 1), run: purge },
        Program { name: "sweep", start: Start::Quiet(1), run: run_sweep },
    ],
    workers: 2,
    sends_first: false,
    deliveries: 2,
    properties: PROPERTIES,
    has_ended,
};

/// A job that has a payload and writes no checkpoint.
pub const PAYLOADS: Scenario = Scenario {
    programs: &[
        Program { name: "sender", start: Start::Once, run: send },
        Program { name: "worker", start: Start::Message("jobs"), run: work },
        Program { name: "redrive", start: Start::While("jobs-poison", 1), run: redrive },
        Program { name: "purge", start: Start::While("jobs-poison", 1), run: purge },
        Program { name: "sweep", start: Start::Quiet(1), run: run_sweep },
    ],
    ..CHECKPOINTS
};

fn has_ended(state: &State) -> bool {
    state.has_run(0) && state.store.messages.is_empty() && state.store.blobs(BLOBS).next().is_none()
}

fn has_all_blobs(state: &State) -> bool {
    state.store.messages.iter().all(|message| {
        [r#""dataref":""#, r#""checkpointref":""#].iter().all(|member| {
            let Some((_, rest)) = message.text.split_once(member) else { return true };
            let reference = rest.split('"').next().unwrap_or_default();
            state.store.blobs(BLOBS).any(|(name, _)| reference.ends_with(&name[BLOBS.len()..]))
        })
    })
}

fn send(storage: Storage, application: Application) -> Run {
    Box::pin(async move {
        let jobs = storage.queue::<Work>().await?;
        let _ = jobs.send(&Work { text: "p".repeat(LARGE_PAYLOAD) }).id("job").await?;
        application.note("sent", 0).await;
        Ok(())
    })
}

async fn end(application: &Application) -> Result<(), JobError> {
    if application.fails(0).await {
        return Err(JobError::dead_letter("it fails for good"));
    }
    application.note("done", 0).await;
    Ok(())
}

fn work(storage: Storage, application: Application) -> Run {
    let handler = move |_: Work| {
        let application = application.clone();
        async move { end(&application).await }
    };
    Box::pin(async move {
        Worker::builder(storage).concurrency(1).handle(handler).build()?.run_until_idle().await.map(drop)
    })
}

fn checkpoint(storage: Storage, application: Application) -> Run {
    let handler = move |_: Work, context: Context| {
        let application = application.clone();
        async move {
            let earlier: Option<String> = context.resume().await?;
            let next = if earlier.is_some() { "d" } else { "c" };
            context.checkpoint(&next.repeat(LARGE_PAYLOAD)).await?;
            end(&application).await
        }
    };
    Box::pin(async move {
        Worker::builder(storage).concurrency(1).handle(handler).build()?.run_until_idle().await.map(drop)
    })
}

fn redrive(storage: Storage, _: Application) -> Run {
    Box::pin(async move {
        let jobs = storage.queue::<Work>().await?;
        jobs.dead_letters()?.redrive(DeadLetterOptions::new()).await.map(drop)
    })
}

fn purge(storage: Storage, application: Application) -> Run {
    Box::pin(async move {
        let jobs = storage.queue::<Work>().await?;
        application.note("purge", 0).await;
        jobs.dead_letters()?.purge(DeadLetterOptions::new().filter(|_| true)).await.map(drop)
    })
}

fn run_sweep(storage: Storage, _: Application) -> Run {
    Box::pin(async move { sweep(&storage, SweepOptions::new().drained_queues(true)).await.map(drop) })
}
