//! Jobs in the PostgreSQL transactions of each driver. The test program `postgres` of the main workspace runs
//! this one, on a server of its own.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod drivers;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use diesel_async::{AsyncConnection, AsyncPgConnection};
use drivers::{ALL, Act, Driver, End};
use jobqueue::job::Verdict;
use jobqueue::postgres::Options;
use jobqueue::postgres::tokio_postgres::{self, Client, NoTls};
use jobqueue::{Context, Error, ErrorKind, JobError, JobInfo, Queue, QueueMessage, Storage, Worker};
use jobqueue_postgres_drivers::diesel::DieselTransaction;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(queue = "tasks", kind = "task")]
struct Task {
    #[message(key)]
    key: String,
    data: String,
}

/// A storage with a table of effects in its schema, and a driver.
#[derive(Clone)]
struct Bench {
    driver: Driver,
    address: String,
    schema: String,
    storage: Storage,
    queue: Queue<Task>,
}

impl Bench {
    async fn new(driver: Driver) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let address =
            std::env::var("JOBQUEUE_POSTGRES").expect("JOBQUEUE_POSTGRES is the address of a server");
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let schema = format!("drivers_{}_{number}", std::process::id());
        let options = Options::from_connection_string(&address).unwrap().schema(&schema);
        let storage = Storage::open(options).await.unwrap();
        let queue = storage.queue().await.unwrap();
        let bench = Self { driver, address, schema, storage, queue };
        bench.execute("CREATE TABLE jobqueue.effect (job text)").await;
        bench
    }

    fn sql(&self, text: &str) -> String {
        text.replace("jobqueue.", &format!("{}.", self.schema))
    }

    async fn connect(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.address, NoTls).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        client
    }

    /// Executes a statement outside of all transactions.
    async fn execute(&self, text: &str) {
        self.connect().await.batch_execute(&self.sql(text)).await.unwrap();
    }

    async fn effects(&self) -> i64 {
        let count = self.sql("SELECT count(*) FROM jobqueue.effect");
        self.connect().await.query_one(&count, &[]).await.unwrap().get(0)
    }

    /// Writes an effect and acts, in one transaction.
    async fn act(&self, act: Act<'_, Task>, end: End) -> Result<bool, Error> {
        self.act_after("INSERT INTO jobqueue.effect VALUES ('a')", act, end).await
    }

    /// Executes a statement and acts, in one transaction.
    async fn act_after(&self, statement: &str, act: Act<'_, Task>, end: End) -> Result<bool, Error> {
        self.driver.transact(&self.address, &self.sql(statement), act, end).await
    }

    /// Handles what is in the queue, and returns the numbers of jobs that were completed and are to be tried
    /// again.
    async fn work<H, F>(&self, handler: H) -> (u64, u64)
    where
        H: Fn(Self, Context) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<(), JobError>> + Send + 'static,
    {
        let bench = self.clone();
        let handler = move |_: Task, ctx: Context| handler(bench.clone(), ctx);
        // A run ends before the next attempt comes.
        let later = |_: &JobError, _: &JobInfo| Some(Verdict::RetryAfter(Duration::from_secs(3_600)));
        let worker =
            Worker::builder(self.storage.clone()).retry_policy(later).handle(handler).build().unwrap();
        let report = worker.run_until_idle().await.unwrap();
        (report.completed, report.retried)
    }
}

fn task(key: &str, bytes: usize) -> Task {
    Task { key: key.to_owned(), data: "x".repeat(bytes) }
}

/// A payload that does not fit into a message is written by the same transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_exists_if_and_only_if_the_transaction_commits() {
    for driver in ALL {
        let bench = Bench::new(driver).await;
        let large = task("a", 100 * 1024);
        bench.act(Act::Send(bench.queue.send(&large)), End::Rollback).await.unwrap();
        assert!(bench.queue.is_empty().await.unwrap() && bench.effects().await == 0, "{driver:?}");
        let container = "jobqueue-payloads".parse().unwrap();
        let listed = bench.storage.blobs().list_blobs(&container, "", None).await;
        assert!(listed.is_err() || listed.unwrap().blobs.is_empty(), "{driver:?}: the payload is gone too");
        bench.act(Act::Send(bench.queue.send(&large)), End::Commit).await.unwrap();
        assert_eq!(bench.effects().await, 1, "{driver:?}");
        let found = bench.queue.receive(Duration::ZERO).await.unwrap().expect("the job was committed");
        assert_eq!(*found.message(), large, "{driver:?}");
        found.complete().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_a_key_keep_the_order_of_their_transactions() {
    for driver in ALL {
        let bench = Bench::new(driver).await;
        for bytes in 1..=5 {
            let task = task("a", bytes);
            bench.act(Act::Send(bench.queue.send(&task).in_order()), End::Commit).await.unwrap();
        }
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        let handler = move |task: Task| {
            noted.lock().unwrap().push(task.data.len());
            async { Ok::<_, JobError>(()) }
        };
        let worker = Worker::builder(bench.storage.clone()).handle(handler).build().unwrap();
        assert_eq!(worker.run_until_idle().await.unwrap().completed, 5, "{driver:?}");
        assert_eq!(*seen.lock().unwrap(), [1, 2, 3, 4, 5], "{driver:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_is_done_if_and_only_if_the_transaction_commits() {
    for driver in ALL {
        let bench = Bench::new(driver).await;
        let _ = bench.queue.send(&task("a", 1)).await.unwrap();
        let undone = bench.work(async |bench, ctx| {
            bench.act(Act::Complete(&ctx), End::Rollback).await?;
            Ok(())
        });
        assert_eq!(undone.await, (0, 1), "{driver:?}");
        assert_eq!(
            (bench.queue.approximate_len().await.unwrap(), bench.effects().await),
            (1, 0),
            "{driver:?}"
        );
        bench.execute("UPDATE jobqueue.message SET visible_at = jobqueue.writing()").await;
        let done = bench.work(async |bench, ctx| {
            bench.act(Act::Complete(&ctx), End::Commit).await?;
            Err(JobError::retry("too late"))
        });
        assert_eq!(done.await, (1, 0), "{driver:?}");
        assert_eq!(
            (bench.queue.approximate_len().await.unwrap(), bench.effects().await),
            (0, 1),
            "{driver:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_of_a_run_that_has_lost_its_lease_is_refused() {
    for driver in ALL {
        let bench = Bench::new(driver).await;
        let _ = bench.queue.send(&task("a", 1)).await.unwrap();
        let lost = bench.work(async |bench, ctx| {
            // The lease is over, and another worker has the job.
            bench.execute("UPDATE jobqueue.message SET visible_at = jobqueue.writing()").await;
            let successor = bench.queue.receive(Duration::from_secs(20)).await.unwrap().unwrap();
            let lost = bench.act(Act::Complete(&ctx), End::Commit).await.unwrap_err();
            assert!(lost.is_lease_lost(), "{lost}");
            successor.complete().await.unwrap();
            Err(JobError::from(lost))
        });
        assert_eq!(lost.await, (0, 0), "{driver:?}");
        assert_eq!(bench.effects().await, 0, "{driver:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effect_is_recorded_once() {
    for driver in ALL {
        let bench = Bench::new(driver).await;
        let _ = bench.queue.send(&task("a", 1)).await.unwrap();
        let recorded = bench.work(async |bench, ctx| {
            assert!(bench.act(Act::Once(&ctx), End::Rollback).await?);
            assert!(bench.act(Act::Once(&ctx), End::Commit).await?);
            assert!(!bench.act(Act::Once(&ctx), End::Rollback).await?);
            Ok(())
        });
        assert_eq!(recorded.await, (1, 0), "{driver:?}");
        assert_eq!(bench.effects().await, 1, "{driver:?}");
    }
}

/// Returns a text with all causes of a failure.
fn with_causes(failure: &Error) -> String {
    let causes = std::iter::successors(Some(failure as &dyn std::error::Error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_of_a_statement_keeps_its_code_and_its_cause() {
    for driver in ALL {
        let bench = Bench::new(driver).await;
        let job = task("a", 1);
        let send = || Act::Send(bench.queue.send(&job));
        let failure = bench.act_after("SET TRANSACTION READ ONLY", send(), End::Commit).await.unwrap_err();
        let text = with_causes(&failure);
        assert_eq!(failure.kind(), ErrorKind::Storage, "{driver:?}: {text}");
        assert!(text.contains("the transaction is read-only") && text.contains("SQLSTATE 25006"), "{text}");
        let drop = "DROP TABLE jobqueue.message";
        let text = with_causes(&bench.act_after(drop, send(), End::Commit).await.unwrap_err());
        assert!(text.contains("message\" does not exist"), "{driver:?}: {text}");
        // diesel-async does not pass on this code.
        if driver != Driver::DieselAsync {
            assert!(text.contains("the schema was dropped") && text.contains("SQLSTATE 42P01"), "{text}");
        }
        assert!(bench.queue.is_empty().await.unwrap(), "the transactions are rolled back");
    }
}

/// Each statement would commit alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_of_diesel_without_a_transaction_is_refused() {
    let bench = Bench::new(Driver::DieselAsync).await;
    let mut connection = AsyncPgConnection::establish(&bench.address).await.unwrap();
    let job = task("a", 1);
    let refused = bench.queue.send(&job).in_postgres(DieselTransaction(&mut connection)).await.unwrap_err();
    let text = with_causes(&refused);
    assert!(text.contains("no transaction is open"), "{text}");
    assert!(bench.queue.is_empty().await.unwrap());
}
