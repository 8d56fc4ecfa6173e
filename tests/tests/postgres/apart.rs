//! The connections beside those of operations: of the renewer, and of leaders, records and the journal.

use std::time::Duration;

use jobqueue::leader::Leader;
use jobqueue::postgres::Options;
use jobqueue::storage::UpdateMessage;
use jobqueue::{JobError, QueueMessage, Worker};
use jobqueue_test_support::postgres::Postgres;
use jobqueue_tests::jobs::{Task, task};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::{LONG, connect, get, named_with_limit, own_schema, put, with_queue, within};

/// The operations have all connections that the server grants to the role of the process.
#[tokio::test]
async fn lease_is_renewed_while_the_server_has_no_connection_left() {
    let (_, schema) = own_schema();
    let (client, role) = (connect(Postgres::shared()).await, format!("role_{schema}"));
    let statements = format!("CREATE ROLE {role} LOGIN; CREATE SCHEMA {schema} AUTHORIZATION {role}");
    client.batch_execute(&statements).await.unwrap();
    let text = Postgres::shared().connection_string().replace("//postgres@", &format!("//{role}@"));
    let options = Options::from_connection_string(&text).unwrap().schema(&schema);
    let (storage, queue) = with_queue(options.notifications(false)).await;
    put(&storage, &queue, "text").await;
    let leased = get(&storage, &queue, 1).await.remove(0);
    client.batch_execute(&format!("ALTER ROLE {role} CONNECTION LIMIT 1")).await.unwrap();
    let renewer = storage.detached();
    renewer.queues().update(&queue, &leased.message, UpdateMessage::new(LONG)).await.unwrap();
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "others", kind = "other")]
struct Other {
    #[message(key)]
    name: String,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "third", kind = "third")]
struct Third {
    #[message(key)]
    name: String,
}

/// As while an operator makes an index: the appends of three workers wait for it, each on a connection, and leave a leader its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_on_the_journal_holds_up_no_leader() {
    let (storage, _, schema) = named_with_limit(LONG).await;
    // More than what the journals of the workers keep in memory before they write.
    let names = (0..1_500).map(|n| format!("{n:01000}"));
    let tasks: Vec<Task> = names.clone().map(task).collect();
    let others: Vec<Other> = names.clone().map(|name| Other { name }).collect();
    let thirds: Vec<Third> = names.map(|name| Third { name }).collect();
    storage.queue().await.unwrap().send_all(&tasks).await.unwrap();
    storage.queue().await.unwrap().send_all(&others).await.unwrap();
    storage.queue().await.unwrap().send_all(&thirds).await.unwrap();
    let (mut open, client) = (connect(Postgres::shared()).await, connect(Postgres::shared()).await);
    let index = open.transaction().await.unwrap();
    index.batch_execute(&format!("LOCK TABLE {schema}.journal IN SHARE MODE")).await.unwrap();

    let builder = || Worker::builder(storage.clone()).history(Duration::from_secs(3_600)).presence(None);
    let of_tasks = builder().handle(async |_: Task| Ok::<_, JobError>(())).build().unwrap();
    let of_others = builder().handle(async |_: Other| Ok::<_, JobError>(())).build().unwrap();
    let of_thirds = builder().handle(async |_: Third| Ok::<_, JobError>(())).build().unwrap();
    let mut workers = JoinSet::new();
    workers.spawn(of_tasks.run_until(std::future::pending::<()>()));
    workers.spawn(of_others.run_until(std::future::pending::<()>()));
    workers.spawn(of_thirds.run_until(std::future::pending::<()>()));
    let waiting = "SELECT count(*) FROM pg_locks WHERE relation = $1::text::regclass AND NOT granted";
    let journal = format!("{schema}.journal");
    let all_wait = async || client.query_one(waiting, &[&journal]).await.unwrap().get::<_, i64>(0) == 3;
    within(async { while !all_wait().await {} }).await;
    let leads = within(Leader::new(&storage, "one").unwrap().try_lead()).await.unwrap();
    assert!(leads.is_some());
}
