//! Dead letters and their redrive, which always copy first and delete later.
//!
//! | property | invariant |
//! |---|---|
//! | [`NEVER_IN_NEITHER`] | I12, I1: a job that was sent is in the queue, in the dead-letter queue or done |
//! | [`ALL_END`] | I12b, I13: whatever has happened, redriven jobs are done once faults end, and both queues are empty |
//! | [`WITH_A_CAUSE`] | I2: a handler succeeds again only after a fault |
//!
//! The model has two jobs, two workers, and two redrives one after the other. It leaves out concurrent
//! redrives, purges (the model [`claim_check`](crate::claim_check) has them), letters that the library did
//! not write, and the reports of a redrive.

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::{JobError, QueueMessage, Storage, Worker};
use serde::{Deserialize, Serialize};

use crate::model::{Scenario, State};
use crate::process::{Application, Program, Run, Start};

/// Property; see the table of this module.
pub const NEVER_IN_NEITHER: &str = "no job is in neither queue";
/// Property; see the table of this module.
pub const ALL_END: &str = "redriven jobs end";
/// Property; see the table of this module.
pub const WITH_A_CAUSE: &str = "a job is done again only with a cause";

const JOBS: u8 = 2;

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "jobs", kind = "job")]
struct Work {
    n: u8,
}

/// The scenario.
pub const DEAD_LETTERS: Scenario = Scenario {
    programs: &[
        Program { name: "sender", start: Start::Once, run: send },
        Program { name: "worker", start: Start::Message("jobs"), run: work },
        Program { name: "redrive", start: Start::While("jobs-poison", 2), run: redrive },
    ],
    workers: 2,
    sends_first: false,
    deliveries: 3,
    properties: &[
        (NEVER_IN_NEITHER, |_, state| (0..JOBS).all(|n| state.count("sent", n) == 0 || is_kept(state, n))),
        (ALL_END, |model, state| model.recovers(state)),
        (WITH_A_CAUSE, |model, state| (0..JOBS).all(|n| state.count("done", n) <= 1 + model.causes(state))),
    ],
    has_ended: |state| {
        let all_done = (0..JOBS).all(|n| state.count("done", n) > 0);
        all_done && state.has_run(0) && state.store.messages.is_empty()
    },
};

fn is_kept(state: &State, n: u8) -> bool {
    let job = format!(r#""n":{n}"#);
    state.count("done", n) > 0 || state.store.holds("jobs", &job) || state.store.holds("jobs-poison", &job)
}

fn send(storage: Storage, application: Application) -> Run {
    Box::pin(async move {
        let jobs = storage.queue::<Work>().await?;
        for n in 0..JOBS {
            let _ = jobs.send(&Work { n }).id(n.to_string()).await?;
            application.note("sent", n).await;
        }
        Ok(())
    })
}

fn work(storage: Storage, application: Application) -> Run {
    let handler = move |job: Work| {
        let application = application.clone();
        async move {
            if application.fails(job.n).await {
                return Err(JobError::dead_letter("it fails for good"));
            }
            application.note("done", job.n).await;
            Ok(())
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
