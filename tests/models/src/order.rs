//! Messages in order: the jobs of a key run one at a time, in the order of the sends.
//!
//! | property | invariant |
//! |---|---|
//! | [`NOTHING_SWALLOWED`] | I1, I12a: an acknowledged job is in the queue, in the dead-letter queue, done, or cancelled |
//! | [`ORDER`] | order per key, beyond I1: if the second of two jobs is sent after the first was acknowledged, the first runs first |
//! | [`ALONE`] | two jobs of a key run at the same time only after the lease of one of them was lost, or its process died |
//! | [`NEVER_RUNS`] | I4: a cancelled job does not run |
//! | [`NO_WAIT`] | I12b: whatever has happened, all that waits is run once faults end |
//!
//! The model has two jobs of one key, their sender, two workers and a redrive; or one job that is cancelled.
//! It leaves out several keys in one log, logs that are full or have pages, heartbeats of long runs, `clear`,
//! and a time to live.

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::{JobError, QueueMessage, Storage, Worker};
use serde::{Deserialize, Serialize};

use crate::model::{Holds, Scenario, State};
use crate::process::{Application, Program, Run, Start};

/// Property; see the table of this module.
pub const NOTHING_SWALLOWED: &str = "no acknowledged job is swallowed";
/// Property; see the table of this module.
pub const ORDER: &str = "acknowledged sends run in their order";
/// Property; see the table of this module.
pub const ALONE: &str = "jobs of a key run one at a time";
/// Property; see the table of this module.
pub const NEVER_RUNS: &str = "what was cancelled never runs";
/// Property; see the table of this module.
pub const NO_WAIT: &str = "no key waits for ever";

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "jobs", kind = "job")]
struct Work {
    n: u8,
}

const PROPERTIES: &[(&str, Holds)] = &[
    (NOTHING_SWALLOWED, |_, state| (0..2).all(|n| state.count("sent", n) == 0 || is_accounted_for(state, n))),
    (ORDER, |model, state| {
        // A leap of time can cost a message its position, and a redriven job joins at the tail.
        let is_disturbed = state.faults.leaps < model.faults.leaps || state.count("failed", 0) > 0;
        is_disturbed || state.count("begins", 1) == 0 || state.count("done", 0) > 0
    }),
    (ALONE, |model, state| {
        let faults = (state.faults.crashes, state.faults.lost_leases, state.faults.leaps);
        let is_disturbed = faults != (model.faults.crashes, model.faults.lost_leases, model.faults.leaps);
        is_disturbed || (0..2).map(|n| running(state, n)).sum::<u8>() <= 1
    }),
    (NEVER_RUNS, |_, state| {
        // A message of an earlier send may have run before the cancelled message was sent.
        state.count("cancelled", 0) == 0 || state.count("begins", 0) < state.count("sent", 0)
    }),
    (NO_WAIT, |model, state| model.recovers(state)),
];

/// Two jobs of one key.
pub const TWO_JOBS: Scenario = Scenario {
    programs: &[
        Program { name: "sender", start: Start::Once, run: send_two },
        Program { name: "worker", start: Start::Message("jobs"), run: work },
        Program { name: "redrive", start: Start::While("jobs-poison", 1), run: redrive },
    ],
    workers: 2,
    sends_first: false,
    deliveries: 2,
    properties: PROPERTIES,
    has_ended: |state| {
        let all_done = (0..2).all(|n| state.count("done", n) > 0);
        all_done && state.has_run(0) && state.store.messages.is_empty()
    },
};

/// Two jobs of one key, from a program that forgets to ask for order.
pub const NOT_IN_ORDER: Scenario = Scenario {
    programs: &[
        Program { name: "sender", start: Start::Once, run: send_without_order },
        Program { name: "worker", start: Start::Message("jobs"), run: work },
    ],
    ..TWO_JOBS
};

/// A job that its sender cancels.
pub const CANCELLED: Scenario = Scenario {
    programs: &[
        Program { name: "sender", start: Start::Once, run: send_and_cancel },
        Program { name: "worker", start: Start::Message("jobs"), run: work },
        Program { name: "redrive", start: Start::While("jobs-poison", 1), run: redrive },
    ],
    has_ended: |state| {
        let is_over = ["done", "cancelled", "unknown"].iter().any(|word| state.count(word, 0) > 0);
        is_over && state.has_run(0) && state.store.messages.is_empty()
    },
    ..TWO_JOBS
};

fn running(state: &State, n: u8) -> u8 {
    state.count("begins", n).saturating_sub(state.count("done", n) + state.count("failed", n))
}

fn is_accounted_for(state: &State, n: u8) -> bool {
    let job = format!(r#""n":{n}"#);
    // A cancellation that has no answer yet, or whose outcome is unknown, may have removed the job that was
    // sent before it.
    let may_be_cancelled =
        state.count("kept", n) == 0 && state.count("cancelling", n) >= state.count("sent", n);
    let is_cancelled = state.count("cancelling", n) > 0 && may_be_cancelled;
    state.count("done", n) > 0
        || is_cancelled
        || state.store.holds("jobs", &job)
        || state.store.holds("jobs-poison", &job)
}

fn send_two(storage: Storage, application: Application) -> Run {
    Box::pin(async move {
        let jobs = storage.queue::<Work>().await?;
        for n in 0..2 {
            let _ = jobs.send(&Work { n }).id(n.to_string()).key("k").in_order().await?;
            application.note("sent", n).await;
        }
        Ok(())
    })
}

fn send_without_order(storage: Storage, application: Application) -> Run {
    Box::pin(async move {
        let jobs = storage.queue::<Work>().await?;
        for n in 0..2 {
            let _ = jobs.send(&Work { n }).id(n.to_string()).key("k").await?;
            application.note("sent", n).await;
        }
        Ok(())
    })
}

fn send_and_cancel(storage: Storage, application: Application) -> Run {
    Box::pin(async move {
        let jobs = storage.queue::<Work>().await?;
        let sent = jobs.send(&Work { n: 0 }).id("0").key("k").in_order().await?;
        application.note("sent", 0).await;
        application.note("cancelling", 0).await;
        let cancelled = jobs.cancel(&sent).await;
        match &cancelled {
            Ok(true) => application.note("cancelled", 0).await,
            // The job runs or not. The sender cannot find out, not even by another attempt.
            Err(error) if error.is_outcome_unknown() => {
                application.note("unknown", 0).await;
                return Ok(());
            }
            Ok(false) | Err(_) => application.note("kept", 0).await,
        }
        cancelled.map(drop)
    })
}

fn work(storage: Storage, application: Application) -> Run {
    let handler = move |job: Work| {
        let application = application.clone();
        async move {
            application.note("begins", job.n).await;
            if application.fails(job.n).await {
                application.note("failed", job.n).await;
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
