//! Workers and the server that are killed while jobs are completed in transactions: each job has one effect.

use std::time::Duration;

use jobqueue::postgres::Options;
use jobqueue::postgres::tokio_postgres::{NoTls, connect};
use jobqueue::settings::SettingOverrides;
use jobqueue::{Context, JobError, Storage, Worker, WorkerBuilder};
use jobqueue_test_support::postgres::Postgres;
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::jobs::Task;
use jobqueue_tests::running::Running;
use jobqueue_tests::say;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Effects, Place};

const JOBS: usize = 300;
const ROUNDS: usize = 12;

/// Returns a worker whose jobs may be interrupted as often as it takes.
fn worker(storage: Storage) -> WorkerBuilder {
    let mut overrides = SettingOverrides::default();
    overrides.timeout = Some(Duration::from_secs(2));
    overrides.poison_threshold = Some(1_000);
    overrides.max_deliveries = Some(1_000);
    Worker::builder(storage).concurrency(8).overrides(overrides)
}

/// Writes an effect, and completes the job. The server may be killed at any moment.
async fn act(place: &Place, ctx: &Context) -> Result<(), JobError> {
    let (mut client, connection) = connect(&place.address, NoTls).await.map_err(JobError::retry)?;
    tokio::spawn(async move { drop(connection.await) });
    let transaction = client.transaction().await.map_err(JobError::retry)?;
    let insert = place.sql("INSERT INTO jobqueue.effect VALUES ($1)");
    transaction.execute(&insert, &[&&*ctx.info().id]).await.map_err(JobError::retry)?;
    ctx.complete_in_postgres(&transaction).await?;
    say!("{}", ctx.info().id);
    transaction.commit().await.map_err(JobError::retry)
}

/// The part that is killed. Its input is `ADDRESS SCHEMA`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_process() {
    let Some(input) = part("completions::kills::worker_process") else { return };
    let (address, schema) = input.split_once(' ').unwrap();
    let place = Place { address: address.to_owned(), schema: schema.to_owned() };
    let options = Options::from_connection_string(address).unwrap().schema(schema);
    let storage = Storage::open(options).await.unwrap();
    let handler = move |_: Task, ctx: Context| {
        let place = place.clone();
        async move { act(&place, &ctx).await }
    };
    drop(worker(storage).handle(handler).build().unwrap().run_until(std::future::pending()).await);
}

async fn assert_no_effect_twice(place: &Place) {
    let effects = place.effects().await;
    let mut once = effects.clone();
    once.dedup();
    assert_eq!(effects.len(), once.len(), "an effect happened twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_job_has_one_effect_whatever_is_killed_when() {
    let mut random = StdRng::seed_from_u64(jobqueue_tests::seed());
    let mut server = Postgres::durable();
    let place = Place { address: server.connection_string(), schema: "jobqueue".to_owned() };
    let bench = place.clone().open().await;
    let ids: Vec<String> = (0..JOBS).map(|number| format!("{number:04}")).collect();
    for id in &ids {
        bench.send(id).await;
    }
    let input = format!("{} {}", place.address, place.schema);
    for round in 0..ROUNDS {
        let mut process = Part::start("completions::kills::worker_process", &input);
        for _ in 0..random.random_range(1..JOBS / ROUNDS) {
            drop(process.says());
        }
        if round % 3 == 2 {
            server.kill_and_restart();
            // It goes on with the server that is back.
            drop(process.says());
        }
        drop(process.kill());
        assert_no_effect_twice(&place).await;
    }
    let handler = move |_: Task, ctx: Context| {
        let place = place.clone();
        async move { act(&place, &ctx).await }
    };
    // The leases of the processes that were killed end after two seconds.
    let mut last = Running::start(worker(bench.storage.clone()).handle(handler)).await;
    while !bench.queue.is_empty().await.unwrap() {
        drop(last.ended().await);
    }
    drop(last.stop().await);
    assert_eq!(bench.place.effects().await, ids);
}
