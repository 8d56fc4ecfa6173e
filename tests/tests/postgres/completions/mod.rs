//! Jobs that are completed in a transaction of their handlers.

mod faults;
#[cfg(unix)]
mod kills;
mod locks;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jobqueue::postgres::Options;
use jobqueue::postgres::tokio_postgres::Client;
use jobqueue::settings::{Metadata, SettingOverrides};
use jobqueue::storage::{BlobName, BlobStore, ContainerName, PutBlob};
use jobqueue::{Context, Error, JobError, Queue, Storage, Worker, WorkerBuilder};
use jobqueue_test_support::postgres::Postgres;
use jobqueue_tests::completions::{self, Effects, End};
use jobqueue_tests::jobs::{Task, task};

use crate::{connect_to, own_schema, within};

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

impl Place {
    /// Returns a place on the shared server.
    fn new() -> Self {
        Self { address: Postgres::shared().connection_string(), schema: own_schema().1 }
    }

    async fn open(self) -> Bench {
        let options = Options::from_connection_string(&self.address).unwrap().schema(&self.schema);
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
}

impl Effects for Place {
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

    async fn record(&self, ctx: &Context, end: End) -> bool {
        let mut client = self.connect().await;
        let transaction = client.transaction().await.unwrap();
        let is_new = ctx.once_in_postgres(&transaction, "fee").await.unwrap();
        match end {
            End::Commit => transaction.commit().await.unwrap(),
            End::Rollback => transaction.rollback().await.unwrap(),
        }
        is_new
    }

    async fn effects(&self) -> Vec<String> {
        let rows = self.sql("SELECT job FROM jobqueue.effect ORDER BY job");
        let rows = self.connect().await.query(&rows, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
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
    completions::done_after_the_commit(&bench.storage, bench.place.clone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_whose_transaction_does_not_commit_runs_again() {
    let bench = Bench::new().await;
    completions::runs_again_after_a_rollback(&bench.storage, bench.place.clone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_can_be_tried_again_until_one_has_committed() {
    let bench = Bench::new().await;
    completions::tried_until_one_has_committed(&bench.storage, bench.place.clone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_that_expires_before_its_lease_can_be_completed() {
    let bench = Bench::new().await;
    completions::completed_before_it_expires(&bench.storage, bench.place.clone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effect_that_is_recorded_in_a_committed_transaction_does_not_happen_again() {
    let bench = Bench::new().await;
    completions::recorded_effect_happens_once(&bench.storage, bench.place.clone()).await;
}

// review 25, databases DB-3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_that_a_transaction_finds_is_kept_for_longer_beside_it() {
    let bench = Bench::new().await;
    bench.send("a").await;
    let (place, blobs) = (bench.place.clone(), bench.storage.blobs().clone());
    let (tell, told) = std::sync::mpsc::channel();
    let handler = move |_: Task, ctx: Context| {
        let (place, blobs, tell) = (place.clone(), blobs.clone(), tell.clone());
        async move {
            let is_first = place.record(&ctx, End::Commit).await;
            let record = the_record(&blobs).await;
            let soon = PutBlob::new().with_metadata(Metadata::new().with("expires", "1"));
            blobs.put_blob(&record, Bytes::from_static(b"true"), soon).await.unwrap();
            let _ = tell.send([is_first, place.record(&ctx, End::Commit).await]);
            Ok::<_, JobError>(())
        }
    };
    drop(bench.worker().handle(handler).build().unwrap().run_until_idle().await.unwrap());
    assert_eq!(told.recv().unwrap(), [true, false]);
    let blobs = bench.storage.blobs();
    let record = the_record(blobs).await;
    within(async {
        while blobs.blob_properties(&record).await.unwrap().metadata.get("expires") == Some("1") {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Returns the only record of an effect.
async fn the_record(blobs: &Arc<dyn BlobStore>) -> BlobName {
    let container: ContainerName = "jobqueue-once".parse().unwrap();
    let (name, _) = blobs.list_blobs(&container, "", None).await.unwrap().blobs.remove(0);
    BlobName::new(container, name).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_goes_on_after_children_that_were_completed_in_transactions() {
    let bench = Bench::new().await;
    completions::batch_goes_on_after_its_children(&bench.storage, bench.place.clone()).await;
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
