//! PostgreSQL as a storage, on a server of this machine: what is particular to it, and what happens when
//! connections, processes and the server end. The promises of the port are tried in `conformance`.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod advice;
mod apart;
mod arrivals;
mod blobs;
mod completions;
mod crashes;
mod drivers;
mod entra;
mod failures;
mod groups;
mod locks;
mod long_transactions;
mod opening;
mod overlapping_sends;
mod permissions;
mod plans;
mod pooler;
mod purge;
mod relay;
mod search_path;
mod sends_by_sql;
mod server_crash;
mod statements;
mod tls;
mod transactions;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jobqueue::QueueName;
use jobqueue::postgres::Options;
use jobqueue::postgres::tokio_postgres::{Client, NoTls};
use jobqueue::storage::{GetMessages, LeasedMessage, Metadata, PutMessage, Storage};
use jobqueue_test_support::postgres::Postgres;

/// A time that does not run out in a test.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Returns options for a schema of its own on the shared server.
pub(crate) fn own_schema() -> (Options, String) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let schema = format!("test_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    (options(Postgres::shared()).schema(&schema), schema)
}

pub(crate) fn options(server: &Postgres) -> Options {
    Options::from_connection_string(&server.connection_string()).unwrap()
}

/// Opens a storage with a queue.
pub(crate) async fn with_queue(options: Options) -> (Storage, QueueName) {
    let storage = Storage::open(options).await.unwrap();
    let queue: QueueName = "jobs".parse().unwrap();
    storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
    (storage, queue)
}

/// Opens a storage with a queue whose sessions have the name of its schema, which is returned too.
pub(crate) async fn named() -> (Storage, QueueName, String) {
    named_with_limit(Duration::from_secs(30)).await
}

/// The same, with a time limit of its operations.
pub(crate) async fn named_with_limit(limit: Duration) -> (Storage, QueueName, String) {
    let (_, schema) = own_schema();
    let text = format!("{}&application_name={schema}", Postgres::shared().connection_string());
    let options = Options::from_connection_string(&text).unwrap().schema(&schema);
    let (storage, queue) = with_queue(options.timeout(limit)).await;
    (storage, queue, schema)
}

/// Fails a test that waits for something for so long that it will not come.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it comes within a minute")
}

/// Waits until so many sessions of this name wait for a lock.
pub(crate) async fn wait_for_waiting(client: &Client, name: &str, count: i64) {
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = $1";
    within(async {
        while client.query_one(waiting, &[&name]).await.unwrap().get::<_, i64>(0) < count {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Returns a connection of the test's own.
pub(crate) async fn connect(server: &Postgres) -> Client {
    connect_to(&server.connection_string()).await
}

pub(crate) async fn connect_to(address: &str) -> Client {
    let (client, connection) = jobqueue::postgres::tokio_postgres::connect(address, NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client
}

pub(crate) async fn put(storage: &Storage, queue: &QueueName, text: &str) {
    storage.queues().put(queue, PutMessage::new(text)).await.unwrap();
}

pub(crate) fn of_group(text: impl Into<String>, group: &str) -> PutMessage {
    PutMessage::new(text).with_group(group.to_owned())
}

pub(crate) async fn get(storage: &Storage, queue: &QueueName, count: u32) -> Vec<LeasedMessage> {
    storage.queues().get(queue, GetMessages::new(count, LONG)).await.unwrap().messages
}

pub(crate) fn texts(messages: &[LeasedMessage]) -> Vec<&str> {
    messages.iter().map(|message| message.text.as_deref().unwrap()).collect()
}
