//! The guide's grants: a role that has exactly these runs all features.

use std::time::Duration;

use jobqueue::leader::Leader;
use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::postgres::Options;
use jobqueue::postgres::tokio_postgres::Client;
use jobqueue::schedule::Schedule;
use jobqueue::storage::{StoreError, StoreErrorKind};
use jobqueue::{Context, JobError, QueueMessage, Storage, Worker};
use jobqueue_admin::{AccessLevel, Admin, DeadLetterFilter, HistoryFilter, JobReference};
use jobqueue_test_support::postgres::Postgres;
use jobqueue_tests::jobs::{Task, task};
use serde::{Deserialize, Serialize};

use crate::{connect, own_schema, within};

const GUIDE: &str = include_str!("../../../jobqueue/src/docs/permissions_and_costs.md");
const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "ends", kind = "end")]
struct End {}

/// Returns the statements that grant what the guide names to a role in a schema, or revoke it.
pub(crate) fn statements(verb: &str, schema: &str) -> [String; 3] {
    let named = GUIDE.split_once("**PostgreSQL**").unwrap().1.split_once("A role that creates").unwrap().0;
    let words: Vec<_> = named.split('`').skip(1).step_by(2).collect();
    let [usage, select, insert, update, delete, of_sequences] = words[..] else { panic!("{words:?}") };
    [
        format!("{verb} {usage} ON SCHEMA {schema}"),
        format!("{verb} {select}, {insert}, {update}, {delete} ON ALL TABLES IN SCHEMA {schema}"),
        format!("{verb} {of_sequences} ON ALL SEQUENCES IN SCHEMA {schema}"),
    ]
}

/// Returns the connection string of a role with the privileges of the guide in a schema, the schema, and a
/// connection of the owner.
async fn role() -> (String, String, Client) {
    let (options, schema) = own_schema();
    drop(Storage::open(options).await.unwrap());
    let (client, role) = (connect(Postgres::shared()).await, format!("role_{schema}"));
    client.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await.unwrap();
    for grant in statements("GRANT", &schema) {
        client.batch_execute(&format!("{grant} TO {role}")).await.unwrap();
    }
    (Postgres::shared().connection_string().replace("//postgres@", &format!("//{role}@")), schema, client)
}

fn in_schema(text: &str, schema: &str) -> Options {
    Options::from_connection_string(text).unwrap().schema(schema)
}

/// Uses a checkpoint, a recorded effect and a large payload; dead-letters a job without data.
async fn handle(task: Task, ctx: Context) -> Result<(), JobError> {
    ctx.checkpoint(&task.name).await?;
    ctx.once("effect", || async { Ok::<_, JobError>(1) }).await?;
    if task.data.is_empty() { Err(JobError::dead_letter("empty")) } else { Ok(()) }
}

#[tokio::test]
async fn role_with_the_grants_of_the_guide_runs_all_features() {
    let (text, schema, _) = role().await;
    let storage = Storage::open(in_schema(&text, &schema)).await.unwrap();
    use_all_features(&storage).await;
}

/// Sends, runs and operates on jobs with all that a storage can do for them.
pub(crate) async fn use_all_features(storage: &Storage) {
    let queue = storage.queue::<Task>().await.unwrap();
    let full = Task { data: "large".repeat(20_000), ..task("a") };
    queue.send(&full).unique_for(HOUR).await.unwrap();
    queue.send(&full).in_order().await.unwrap();
    queue.send(&task("dead")).await.unwrap();
    let mut batch = storage.batch("batch").await.unwrap();
    batch.send(&full).await.unwrap();
    batch.then(&End {}).await.unwrap();
    queue.send(&full).delay(HOUR).unique_for(HOUR * 2).key("later").await.unwrap();
    assert!(queue.cancel_unique("later").await.unwrap());
    assert!(Leader::new(storage, "one").unwrap().try_lead().await.unwrap().is_some());

    let builder = Worker::builder(storage.clone()).handle(handle).durable_completions(true).history(HOUR);
    let every = Schedule::every(Duration::from_secs(1)).name("often");
    let worker = builder.presence(Duration::from_millis(100)).schedule_by(every, || End {}).build().unwrap();
    let operator = Admin::builder(storage.clone()).access(AccessLevel::Operate).build();
    let ends = storage.queue::<End>().await.unwrap();
    let is_done = async || {
        // The continuation of the batch, and a slot.
        queue.approximate_len().await.unwrap() == 0
            && ends.approximate_len().await.unwrap() >= 2
            && !operator.workers().await.unwrap().is_empty()
    };
    let done = async {
        while !is_done().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let report = within(worker.run_until(done)).await.unwrap();
    assert_eq!((report.completed, report.dead_lettered), (3, 1));
    operate(&operator, storage).await;
}

async fn operate(operator: &Admin, storage: &Storage) {
    let of_task = Task::QUEUE;
    assert_eq!(operator.redrive(of_task).filter(DeadLetterFilter::all()).run().await.unwrap().count, 1);
    let sent = storage.queue::<Task>().await.unwrap().send(&task("b")).delay(HOUR).await.unwrap();
    operator.cancel(&JobReference::new(of_task, sent.id())).await.unwrap();
    assert!(operator.pause(of_task).await.unwrap() && operator.resume(of_task).await.unwrap());
    assert!(!operator.queues().await.unwrap().is_empty());
    assert!(!operator.history(&HistoryFilter::new()).await.unwrap().jobs.is_empty());
    assert!(!operator.batches().await.unwrap().batches.is_empty());
    let _ = sweep(storage, SweepOptions::new()).await.unwrap();
}

/// Without one of them a send is refused, and the error names the privileges.
#[tokio::test]
async fn missing_grant_is_refused() {
    for missing in 0..3 {
        let (text, schema, client) = role().await;
        let storage = Storage::open(in_schema(&text, &schema)).await.unwrap();
        let queue = storage.queue::<Task>().await.unwrap();
        let revoke = &statements("REVOKE", &schema)[missing];
        client.batch_execute(&format!("{revoke} FROM role_{schema}")).await.unwrap();
        // The second message of a key has a place behind the first, which is a number of a sequence.
        let first = queue.send(&task("a")).in_order().await;
        let refused = match first {
            Ok(_) => queue.send(&task("a")).in_order().await.unwrap_err(),
            Err(refused) => refused,
        };
        let refused = StoreError::in_chain(&refused).unwrap();
        assert_eq!(refused.kind(), StoreErrorKind::Unauthorized, "{revoke}: {refused}");
        assert!(refused.to_string().contains("USAGE on the schema"), "{refused}");
    }
}

#[tokio::test]
async fn role_without_the_right_to_create_makes_no_tables() {
    let (text, schema, _) = role().await;
    let refused = Storage::open(in_schema(&text, &format!("other_{schema}"))).await.unwrap_err();
    let refused = StoreError::in_chain(&refused).unwrap();
    assert_eq!(refused.kind(), StoreErrorKind::Unauthorized, "{refused}");
}
