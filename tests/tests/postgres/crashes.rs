//! Worker processes that are killed while they work.

use std::collections::BTreeSet;
use std::time::Duration;

use jobqueue::postgres::Options;
use jobqueue::settings::SettingOverrides;
use jobqueue::{JobError, Storage, Worker, WorkerBuilder};
use jobqueue_test_support::postgres::Postgres;
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::jobs::{Task, task};
use jobqueue_tests::say;

use crate::{own_schema, within};

const JOBS: usize = 60;
/// The jobs after which a process is killed.
const KILLED_AFTER: usize = 12;

fn worker(storage: Storage) -> WorkerBuilder {
    let mut short = SettingOverrides::default();
    short.timeout = Some(Duration::from_secs(2));
    Worker::builder(storage).overrides(short)
}

/// The part that is killed: a worker that reports each job before it is completed. Its input is
/// `ADDRESS SCHEMA`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_process() {
    let Some(input) = part("crashes::worker_process") else { return };
    let (address, schema) = input.split_once(' ').unwrap();
    let options = Options::from_connection_string(address).unwrap().schema(schema);
    let storage = Storage::open(options).await.unwrap();
    let handler = |task: Task| async move {
        say!("{}", task.name);
        Ok::<(), JobError>(())
    };
    let worker = worker(storage).handle(handler).build().unwrap();
    drop(worker.run_until(std::future::pending()).await);
}

/// I1, I5
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_workers_lose_no_job() {
    let (options, schema) = own_schema();
    let storage = Storage::open(options).await.unwrap();
    let queue = storage.queue::<Task>().await.unwrap();
    let names: Vec<String> = (0..JOBS).map(|number| format!("job-{number}")).collect();
    for name in &names {
        queue.send(&task(name)).await.unwrap();
    }
    let input = format!("{} {schema}", Postgres::shared().connection_string());
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let mut process = Part::start("crashes::worker_process", &input);
        for _ in 0..KILLED_AFTER {
            seen.extend(process.says());
        }
        seen.extend(process.kill());
    }
    let (ran, mut running) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |task: Task| {
        let ran = ran.clone();
        async move { ran.send(task.name).map_err(JobError::retry) }
    };
    within(async {
        while !queue.is_empty().await.unwrap() {
            // The leases of the killed processes end after two seconds.
            let worker = worker(storage.clone()).handle(handler.clone()).build().unwrap();
            drop(worker.run_until_idle().await.unwrap());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    drop(handler);
    while let Some(name) = running.recv().await {
        seen.insert(name);
    }
    assert_eq!(seen, names.into_iter().collect());
}
