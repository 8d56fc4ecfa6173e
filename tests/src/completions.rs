//! Shared tests of jobs that are completed in a transaction of their handler, for every database.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jobqueue::settings::SettingOverrides;
use jobqueue::{Context, Error, JobError, QueueMessage, Storage, Worker};
use serde::{Deserialize, Serialize};

use crate::jobs::{Task, task};
use crate::running::Running;

/// The end of a handler's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The transaction commits.
    Commit,
    /// The transaction is rolled back.
    Rollback,
}

/// The database of a storage, with a table of effects.
pub trait Effects: Clone + Send + Sync + 'static {
    /// Writes an effect, namely the id of the job, and completes the job, in one transaction.
    fn act(&self, ctx: &Context, end: End) -> impl Future<Output = Result<(), Error>> + Send;

    /// Records the effect `fee` in a transaction, and returns whether the effect should happen.
    fn record(&self, ctx: &Context, end: End) -> impl Future<Output = bool> + Send;

    /// Returns the effects in order.
    fn effects(&self) -> impl Future<Output = Vec<String>> + Send;
}

async fn send(storage: &Storage, names: &[&str]) {
    let queue = storage.queue::<Task>().await.unwrap();
    for name in names {
        let _ = queue.send(&task(*name)).id(*name).await.unwrap();
    }
}

/// A job is done once the transaction commits, whatever its handler returns.
pub async fn done_after_the_commit(storage: &Storage, effects: impl Effects) {
    send(storage, &["error", "letter", "panic"]).await;
    let acting = effects.clone();
    let handler = move |task: Task, ctx: Context| {
        let acting = acting.clone();
        async move {
            acting.act(&ctx, End::Commit).await?;
            match task.name.as_str() {
                "error" => Err(JobError::retry("too late")),
                "letter" => Err(JobError::dead_letter("too late")),
                _ => panic!("too late"),
            }
        }
    };
    let worker = Worker::builder(storage.clone()).handle(handler).build().unwrap();
    let report = worker.run_until_idle().await.unwrap();
    assert_eq!(report.completed, 3);
    assert_eq!(report.retried, 0);
    assert_eq!(report.dead_lettered, 0);
    assert_eq!(effects.effects().await, ["error", "letter", "panic"]);
    assert_eq!(storage.queue::<Task>().await.unwrap().approximate_len().await.unwrap(), 0);
}

/// A job whose transaction does not commit runs again.
pub async fn runs_again_after_a_rollback(storage: &Storage, effects: impl Effects) {
    send(storage, &["a"]).await;
    let (acting, runs) = (effects.clone(), Arc::new(AtomicU32::new(0)));
    let handler = move |_: Task, ctx: Context| {
        let end = if runs.fetch_add(1, Ordering::Relaxed) == 0 { End::Rollback } else { End::Commit };
        let acting = acting.clone();
        async move { Ok::<_, JobError>(acting.act(&ctx, end).await?) }
    };
    let mut worker = Running::start(Worker::builder(storage.clone()).handle(handler)).await;
    let ended = worker.ended().await;
    assert_eq!(ended.name(), "retried");
    assert!(ended.error.unwrap().contains("did not commit"));
    assert_eq!(worker.ended().await.name(), "completed");
    assert_eq!(worker.stop().await.completed, 1);
    assert_eq!(effects.effects().await, ["a"]);
}

/// A handler can retry its transaction until it commits, and can do nothing after that.
pub async fn tried_until_one_has_committed(storage: &Storage, effects: impl Effects) {
    send(storage, &["a"]).await;
    let acting = effects.clone();
    let handler = move |_: Task, ctx: Context| {
        let acting = acting.clone();
        async move {
            acting.act(&ctx, End::Rollback).await?;
            ctx.checkpoint(&"between").await?;
            acting.act(&ctx, End::Commit).await?;
            let again = acting.act(&ctx, End::Commit).await.unwrap_err();
            assert!(again.is_lease_lost(), "{again}");
            let saved = ctx.checkpoint(&"behind").await.unwrap_err();
            assert!(saved.is_lease_lost(), "{saved}");
            // The failed checkpoint found out that the transaction has committed.
            for end in [End::Commit, End::Rollback] {
                let again = acting.act(&ctx, end).await.unwrap_err();
                assert!(again.is_lease_lost(), "{again}");
            }
            Ok::<_, JobError>(())
        }
    };
    let worker = Worker::builder(storage.clone()).handle(handler).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 1);
    assert_eq!(effects.effects().await, ["a"]);
}

/// A job that expires before its lease can be completed: a storage hides no message beyond its time to live.
pub async fn completed_before_it_expires(storage: &Storage, effects: impl Effects) {
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).id("a").ttl(Duration::from_secs(20)).await.unwrap();
    let acting = effects.clone();
    let handler = move |_: Task, ctx: Context| {
        let acting = acting.clone();
        async move { Ok::<_, JobError>(acting.act(&ctx, End::Commit).await?) }
    };
    let worker = Worker::builder(storage.clone()).handle(handler).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 1);
    assert_eq!(effects.effects().await, ["a"]);
}

/// An effect that is recorded in a committed transaction does not happen again. The record of the first run
/// is rolled back, the record of the second run stays.
pub async fn recorded_effect_happens_once(storage: &Storage, effects: impl Effects) {
    send(storage, &["a"]).await;
    let runs = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&runs);
    let handler = move |_: Task, ctx: Context| {
        let (effects, run) = (effects.clone(), count.fetch_add(1, Ordering::Relaxed));
        async move {
            let end = if run == 0 { End::Rollback } else { End::Commit };
            assert_eq!(effects.record(&ctx, end).await, run < 2);
            if run < 3 { Err(JobError::retry_after(Duration::ZERO, "again")) } else { Ok(()) }
        }
    };
    let mut overrides = SettingOverrides::default();
    overrides.poison_threshold = Some(10);
    let worker = Worker::builder(storage.clone()).overrides(overrides).handle(handler).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 1);
    assert_eq!(runs.load(Ordering::Relaxed), 4);
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "tasks", kind = "parent")]
struct Parent {}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "tasks", kind = "end")]
struct Report {}

/// The end of a child is counted after its handler, from the data that its transaction has kept.
pub async fn batch_goes_on_after_its_children(storage: &Storage, effects: impl Effects) {
    let _ = storage.queue::<Parent>().await.unwrap().send(&Parent {}).await.unwrap();
    let parent = async |_: Parent, ctx: Context| {
        let mut batch = ctx.batch("children").await?;
        batch.send_all(["a", "b"].map(task)).await?;
        Ok::<_, JobError>(batch.then(&Report {}).await?)
    };
    let acting = effects.clone();
    let child = move |task: Task, ctx: Context| {
        let acting = acting.clone();
        async move {
            ctx.set_result(&task.name)?;
            acting.act(&ctx, End::Commit).await?;
            Err::<(), _>(JobError::retry("too late"))
        }
    };
    let end = async |_: Report, ctx: Context| {
        let results = ctx.batch_results::<String>().await?;
        let names: Vec<_> = results.into_iter().map(|child| child.outcome.unwrap().unwrap()).collect();
        assert_eq!(names, ["a", "b"]);
        Ok::<_, JobError>(())
    };
    let worker = Worker::builder(storage.clone()).handle(parent).handle(child).handle(end).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 4);
    assert_eq!(effects.effects().await.len(), 2);
}
