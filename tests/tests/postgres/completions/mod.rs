//! Jobs that are completed in a transaction of their handlers.

mod faults;
#[cfg(unix)]
mod kills;
mod locks;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jobqueue::postgres::Options;
use jobqueue::postgres::tokio_postgres::Client;
use jobqueue::settings::SettingOverrides;
use jobqueue::{Context, Error, JobError, Queue, QueueMessage, Storage, Worker, WorkerBuilder};
use jobqueue_test_support::postgres::Postgres;
use jobqueue_tests::jobs::{Task, task};
use jobqueue_tests::running::Running;
use serde::{Deserialize, Serialize};

use crate::{connect_to, own_schema};

/// A schema with a table of effects.
#[derive(Debug, Clone)]
struct Place {
    address: String,
    schema: String,
}

/// A storage in it.
struct Bench {
    place: Place,
    storage: Storage,
    queue: Queue<Task>,
}

/// The end of a handler's transaction.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Commit,
    Rollback,
}

impl Place {
    /// Returns a place on the shared server.
    fn new() -> Self {
        Self { address: Postgres::shared().connection_string(), schema: own_schema().1 }
    }

    async fn open(self) -> Bench {
        let options = Options::from_connection_string(&self.address).unwrap().schema(&self.schema).unwrap();
        let storage = Storage::open(options).await.unwrap();
        let queue = storage.queue().await.unwrap();
        self.connect()
            .await
            .batch_execute(&self.sql("CREATE TABLE jobqueue.effect (job text)"))
            .await
            .unwrap();
        Bench { place: self, storage, queue }
    }

    async fn connect(&self) -> Client {
        connect_to(&self.address).await
    }

    /// Returns a statement for the schema.
    fn sql(&self, text: &str) -> String {
        text.replace("jobqueue.", &format!("{}.", self.schema))
    }

    async fn effects(&self) -> Vec<String> {
        let rows = self.sql("SELECT job FROM jobqueue.effect ORDER BY job");
        let rows = self.connect().await.query(&rows, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Writes an effect, and completes the job.
    async fn act(&self, ctx: &Context, end: End) -> Result<(), Error> {
        let mut client = self.connect().await;
        let transaction = client.transaction().await.unwrap();
        let insert = self.sql("INSERT INTO jobqueue.effect VALUES ($1)");
        transaction.execute(&insert, &[&&*ctx.info().id]).await.unwrap();
        ctx.complete_in_postgres(&transaction).await?;
        match end {
            End::Commit => transaction.commit().await.unwrap(),
            End::Rollback => transaction.rollback().await.unwrap(),
        }
        Ok(())
    }
}

impl Bench {
    async fn new() -> Self {
        Place::new().open().await
    }

    /// Sends a job whose id is its name.
    async fn send(&self, name: &str) {
        let _ = self.queue.send(&task(name)).id(name).await.unwrap();
    }

    fn worker(&self) -> WorkerBuilder {
        Worker::builder(self.storage.clone())
    }

    /// Returns a worker with leases of this length.
    fn worker_with(&self, lease: Duration) -> WorkerBuilder {
        let mut overrides = SettingOverrides::default();
        overrides.timeout = Some(lease);
        self.worker().overrides(overrides)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_is_done_after_the_commit_whatever_its_handler_returns() {
    let bench = Bench::new().await;
    for id in ["error", "letter", "panic"] {
        bench.send(id).await;
    }
    let place = bench.place.clone();
    let handler = move |task: Task, ctx: Context| {
        let place = place.clone();
        async move {
            place.act(&ctx, End::Commit).await?;
            match task.name.as_str() {
                "error" => Err(JobError::retry("too late")),
                "letter" => Err(JobError::dead_letter("too late")),
                _ => panic!("too late"),
            }
        }
    };
    let report = bench.worker().handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 3);
    assert_eq!((report.retried, report.dead_lettered), (0, 0));
    assert_eq!(bench.place.effects().await, ["error", "letter", "panic"]);
    assert_eq!(bench.queue.approximate_len().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_whose_transaction_does_not_commit_runs_again() {
    let bench = Bench::new().await;
    bench.send("a").await;
    let (place, runs) = (bench.place.clone(), Arc::new(AtomicU32::new(0)));
    let handler = move |_: Task, ctx: Context| {
        let end = if runs.fetch_add(1, Ordering::Relaxed) == 0 { End::Rollback } else { End::Commit };
        let place = place.clone();
        async move { Ok::<_, JobError>(place.act(&ctx, end).await?) }
    };
    let mut worker = Running::start(bench.worker().handle(handler)).await;
    let ended = worker.ended().await;
    assert_eq!(ended.name(), "retried");
    assert!(ended.error.unwrap().contains("did not commit"));
    assert_eq!(worker.ended().await.name(), "completed");
    assert_eq!(worker.stop().await.completed, 1);
    assert_eq!(bench.place.effects().await, ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_can_be_tried_again_until_one_has_committed() {
    let bench = Bench::new().await;
    bench.send("a").await;
    let place = bench.place.clone();
    let handler = move |_: Task, ctx: Context| {
        let place = place.clone();
        async move {
            place.act(&ctx, End::Rollback).await?;
            ctx.checkpoint(&"between").await?;
            place.act(&ctx, End::Commit).await?;
            let again = place.act(&ctx, End::Commit).await.unwrap_err();
            assert!(again.is_lease_lost(), "{again}");
            let saved = ctx.checkpoint(&"behind").await.unwrap_err();
            assert!(saved.is_lease_lost(), "{saved}");
            // That found out that the transaction has committed.
            for end in [End::Commit, End::Rollback] {
                let again = place.act(&ctx, end).await.unwrap_err();
                assert!(again.is_lease_lost(), "{again}");
            }
            Ok::<_, JobError>(())
        }
    };
    let report = bench.worker().handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(bench.place.effects().await, ["a"]);
}

// A storage hides no message beyond its time to live.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_that_expires_before_its_lease_can_be_completed() {
    let bench = Bench::new().await;
    let _ = bench.queue.send(&task("a")).id("a").ttl(Duration::from_secs(20)).await.unwrap();
    let place = bench.place.clone();
    let handler = move |_: Task, ctx: Context| {
        let place = place.clone();
        async move { Ok::<_, JobError>(place.act(&ctx, End::Commit).await?) }
    };
    let report = bench.worker().handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(bench.place.effects().await, ["a"]);
}

/// The first completion is undone with its savepoint, and so is its lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn savepoint_that_is_rolled_back_takes_the_completion_with_it() {
    let bench = Bench::new().await;
    bench.send("a").await;
    let place = bench.place.clone();
    let handler = move |_: Task, ctx: Context| {
        let place = place.clone();
        async move {
            let mut client = place.connect().await;
            let mut transaction = client.transaction().await.unwrap();
            let savepoint = transaction.savepoint("tried").await.unwrap();
            ctx.complete_in_postgres(&savepoint).await?;
            savepoint.rollback().await.unwrap();
            // The lease is as it was, also for the rest of the process.
            ctx.checkpoint(&"between").await?;
            let savepoint = transaction.savepoint("tried").await.unwrap();
            ctx.complete_in_postgres(&savepoint).await?;
            savepoint.commit().await.unwrap();
            transaction.commit().await.map_err(JobError::retry)
        }
    };
    let report = bench.worker().handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(bench.queue.approximate_len().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effect_that_is_recorded_in_a_committed_transaction_does_not_happen_again() {
    let bench = Bench::new().await;
    bench.send("a").await;
    let (place, runs) = (bench.place.clone(), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&runs);
    let handler = move |_: Task, ctx: Context| {
        let (place, run) = (place.clone(), count.fetch_add(1, Ordering::Relaxed));
        async move {
            let mut client = place.connect().await;
            let transaction = client.transaction().await.unwrap();
            // The record of the first run is rolled back; that of the second one stays.
            assert_eq!(ctx.once_in_postgres(&transaction, "fee").await.unwrap(), run < 2);
            if run == 0 {
                transaction.rollback().await.unwrap();
            } else {
                transaction.commit().await.unwrap();
            }
            if run < 3 { Err(JobError::retry_after(Duration::ZERO, "again")) } else { Ok(()) }
        }
    };
    let mut overrides = SettingOverrides::default();
    overrides.poison_threshold = Some(10);
    let worker = bench.worker().overrides(overrides).handle(handler).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 1);
    assert_eq!(runs.load(Ordering::Relaxed), 4);
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "tasks", kind = "parent")]
struct Parent {}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "tasks", kind = "end")]
struct Report {}

// What follows from a job comes after its handler, and the transaction keeps what it needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_goes_on_after_children_that_were_completed_in_transactions() {
    let bench = Bench::new().await;
    let _ = bench.storage.queue::<Parent>().await.unwrap().send(&Parent {}).await.unwrap();
    let parent = async |_: Parent, ctx: Context| {
        let mut batch = ctx.batch("children").await?;
        batch.send_all(["a", "b"].map(task)).await?;
        Ok::<_, JobError>(batch.then(&Report {}).await?)
    };
    let place = bench.place.clone();
    let child = move |task: Task, ctx: Context| {
        let place = place.clone();
        async move {
            ctx.set_result(&task.name)?;
            place.act(&ctx, End::Commit).await?;
            Err::<(), _>(JobError::retry("too late"))
        }
    };
    let end = async |_: Report, ctx: Context| {
        let results = ctx.batch_results::<String>().await?;
        let names: Vec<_> = results.into_iter().map(|child| child.outcome.unwrap().unwrap()).collect();
        assert_eq!(names, ["a", "b"]);
        Ok::<_, JobError>(())
    };
    let worker = bench.worker().handle(parent).handle(child).handle(end).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 4);
    assert_eq!(bench.place.effects().await.len(), 2);
}

/// The first of a key is completed in a transaction, which sends another one of this key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_of_a_key_follows_the_first_that_a_transaction_has_completed() {
    let bench = Bench::new().await;
    let _ = bench.queue.send(&task("a")).in_order().await.unwrap();
    let (place, queue) = (bench.place.clone(), bench.queue.clone());
    let handler = move |task: Task, ctx: Context| {
        let (place, queue) = (place.clone(), queue.clone());
        async move {
            let mut client = place.connect().await;
            let transaction = client.transaction().await.unwrap();
            ctx.complete_in_postgres(&transaction).await?;
            if task.data.is_empty() {
                let next = Task { data: "next".into(), ..task };
                queue.send(&next).in_order().in_postgres(&transaction).await?;
            }
            transaction.commit().await.map_err(JobError::retry)
        }
    };
    let report = bench.worker().handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 2);
    assert_eq!(bench.queue.approximate_len().await.unwrap(), 0);
}
