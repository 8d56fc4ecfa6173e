//! Behind PgBouncer in transaction mode, where that is asked for. The promises of the port are tried there in
//! `conformance`.

use std::time::Duration;

use jobqueue::postgres::Options;
use jobqueue::postgres::tokio_postgres::{NoTls, connect};
use jobqueue::settings::SettingOverrides;
use jobqueue::{Context, JobError, Storage, Worker};
use jobqueue_test_support::pgbouncer::PgBouncer;
use jobqueue_test_support::postgres::Postgres;
use jobqueue_tests::jobs::{Task, task};
use jobqueue_tests::running::Running;

use crate::{connect_to, own_schema, put, with_queue, within};

const JOBS: usize = 120;
/// The jobs that end between two kills of the pooler.
const BETWEEN_KILLS: usize = 20;

fn options(pooler: &PgBouncer, schema: &str) -> Options {
    let text = format!("{}&listen=off", pooler.connection_string());
    Options::from_connection_string(&text).unwrap().schema(schema)
}

/// A notification is sent over a connection of the pooler, and one that listens there does not get it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storage_polls_behind_a_pooler() {
    let Some(pooler) = PgBouncer::start(Postgres::shared(), 2) else { return };
    let (_, schema) = own_schema();
    let options = Options::from_connection_string(&pooler.connection_string()).unwrap().schema(&schema);
    let (storage, queue) = with_queue(options).await;
    assert!(storage.queues().subscribe(&queue).is_none(), "notifications do not arrive");
    // A process that is connected to the server is notified of what passes the pooler.
    let direct = Options::from_connection_string(&Postgres::shared().connection_string()).unwrap();
    let direct = Storage::open(direct.schema(&schema)).await.unwrap();
    let mut subscription = direct.queues().subscribe(&queue).expect("notifications pass");
    put(&storage, &queue, "text").await;
    within(subscription.wait()).await;
}

/// Each transaction of the application holds one of two connections; a send that waited for a further one
/// would hold up all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_jobs_are_sent_in_more_transactions_than_the_pooler_has_connections() {
    let Some(pooler) = PgBouncer::start(Postgres::shared(), 2) else { return };
    let (_, schema) = own_schema();
    let storage = Storage::open(options(&pooler, &schema)).await.unwrap();
    let queue = storage.queue::<Task>().await.unwrap();
    let address = pooler.connection_string();
    let sends = (0..8).map(|number| {
        let (queue, address) = (queue.clone(), address.clone());
        tokio::spawn(async move {
            let large = Task { name: number.to_string(), data: "x".repeat(100_000) };
            let mut client = connect_to(&address).await;
            let transaction = client.transaction().await.unwrap();
            queue.send(&large).in_postgres(&transaction).await.unwrap();
            transaction.commit().await.unwrap();
        })
    });
    for send in sends.collect::<Vec<_>>() {
        within(send).await.unwrap();
    }
    assert_eq!(queue.approximate_len().await.unwrap(), 8);
}

/// Writes an effect, and completes the job. The pooler may be killed at any moment.
async fn act(address: &str, schema: &str, ctx: &Context) -> Result<(), JobError> {
    let (mut client, connection) = connect(address, NoTls).await.map_err(JobError::retry)?;
    tokio::spawn(async move { drop(connection.await) });
    let transaction = client.transaction().await.map_err(JobError::retry)?;
    // A statement without parameters has no name, which this pooler would not keep.
    let insert = format!("INSERT INTO {schema}.effect VALUES ('{}')", ctx.info().id);
    transaction.batch_execute(&insert).await.map_err(JobError::retry)?;
    ctx.complete_in_postgres(&transaction).await?;
    transaction.commit().await.map_err(JobError::retry)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_job_has_one_effect_although_the_pooler_is_killed() {
    let Some(mut pooler) = PgBouncer::start(Postgres::shared(), 4) else { return };
    let (_, schema) = own_schema();
    let storage = Storage::open(options(&pooler, &schema)).await.unwrap();
    let queue = storage.queue::<Task>().await.unwrap();
    let direct = connect_to(&Postgres::shared().connection_string()).await;
    direct.batch_execute(&format!("CREATE TABLE {schema}.effect (job text)")).await.unwrap();
    let mut ids: Vec<String> = (0..JOBS).map(|number| format!("{number:03}")).collect();
    for id in &ids {
        let _ = queue.send(&task(id)).id(id).await.unwrap();
    }
    let mut overrides = SettingOverrides::default();
    overrides.timeout = Some(Duration::from_secs(2));
    overrides.poison_threshold = Some(1_000);
    overrides.max_deliveries = Some(1_000);
    let (address, of_handler) = (pooler.connection_string(), schema.clone());
    let handler = move |_: Task, ctx: Context| {
        let (address, schema) = (address.clone(), of_handler.clone());
        async move { act(&address, &schema, &ctx).await }
    };
    let worker = Worker::builder(storage.clone()).concurrency(8).overrides(overrides).handle(handler);
    let mut worker = Running::start(worker).await;
    let mut ended = 0;
    let count = format!("SELECT job FROM {schema}.effect ORDER BY job");
    let effects = async || -> Vec<String> {
        direct.query(&count, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
    };
    while effects().await.len() < JOBS {
        drop(worker.ended().await);
        ended += 1;
        if ended % BETWEEN_KILLS == 0 {
            pooler.kill_and_restart();
        }
    }
    while !queue.is_empty().await.unwrap() {
        drop(worker.ended().await);
    }
    drop(worker.stop().await);
    ids.sort();
    assert_eq!(effects().await, ids);
}
