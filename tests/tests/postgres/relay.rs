//! A relay from PostgreSQL: an outbox beside the data of an application.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Context, JobError, Queue, Storage, Worker};
use jobqueue_test_support::postgres::Postgres;
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, task};
use jobqueue_tests::running::Running;

use crate::{connect, own_schema, within};

/// Sends a list of names in one transaction each, and rolls every third back. Returns the ids that were
/// committed, by name.
async fn send_in_transactions(queue: &Queue<Task>, names: &[&str]) -> BTreeMap<String, Vec<String>> {
    let mut client = connect(Postgres::shared()).await;
    let mut sent: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (number, name) in names.iter().cycle().take(30).enumerate() {
        let transaction = client.transaction().await.unwrap();
        let id = queue.send(&task(*name)).in_order().in_postgres(&transaction).await.unwrap().id().to_owned();
        if number % 3 == 0 {
            transaction.rollback().await.unwrap();
        } else {
            transaction.commit().await.unwrap();
            sent.entry((*name).to_owned()).or_default().push(id);
        }
    }
    sent
}

// I1
#[tokio::test]
async fn committed_jobs_arrive_in_the_order_of_their_keys() {
    let outbox = Storage::open(own_schema().0).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = format!("sqlite:{}", folder.path().join("jobs.db").display());
    // Quiet: a database with threads of its own runs in real time.
    let destination = Faulty::quiet(&Storage::connect(&path).await.unwrap());
    let (queue, _) =
        (outbox.queue::<Task>().await.unwrap(), destination.storage().queue::<Task>().await.unwrap());
    let sent = send_in_transactions(&queue, &["a", "b", "c", "d"]).await;
    destination.plan(Operation::Put, 5, Fault::DropAnswer(StoreErrorKind::Timeout));
    destination.plan(Operation::Put, 9, Fault::Refuse(StoreErrorKind::Throttled));
    let relay =
        async || Running::start(Worker::builder(outbox.clone()).relay("tasks", &destination.storage())).await;
    let (mut one, mut other) = (relay().await, relay().await);
    let mut completed = 0;
    while completed < 20 {
        let ended = tokio::select! {
            ended = one.ended() => ended,
            ended = other.ended() => ended,
        };
        completed += u32::from(ended.name() == "completed");
    }
    let forwarded = one.stop().await.completed + other.stop().await.completed;
    assert_eq!(forwarded, 20);
    assert!(queue.is_empty().await.unwrap());

    let runs = Arc::new(Mutex::new(BTreeMap::<String, Vec<String>>::new()));
    let log = Arc::clone(&runs);
    let handler = move |task: Task, context: Context| {
        let mut log = log.lock().unwrap();
        let ids = log.entry(task.name).or_default();
        // The lost answer has left two messages of one job.
        if ids.last().is_none_or(|last| **last != *context.info().id) {
            ids.push(context.info().id.to_string());
        }
        async { Ok::<_, JobError>(()) }
    };
    let worker = Worker::builder(destination.storage()).handle(handler).build().unwrap();
    let _ = within(worker.run_until_idle()).await.unwrap();
    assert_eq!(*runs.lock().unwrap(), sent);
}
