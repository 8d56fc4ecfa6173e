//! Notifications between processes. Each storage of these tests stands for a process: it has connections of
//! its own.

use std::time::Duration;

use jobqueue::QueueName;
use jobqueue::postgres::Options;
use jobqueue::storage::{Storage, Subscription};

use crate::{connect, get, own_schema, put, texts, with_queue};
use jobqueue_test_support::postgres::Postgres;

async fn other_process() -> (Storage, Storage, QueueName, String) {
    let (options, schema) = own_schema();
    let (storage, queue) = with_queue(options.clone()).await;
    (storage, Storage::open(options).await.unwrap(), queue, schema)
}

fn subscription(storage: &Storage, queue: &QueueName) -> Subscription {
    storage.queues().subscribe(queue).expect("notifications pass")
}

async fn arrives(subscription: &mut Subscription) {
    tokio::time::timeout(Duration::from_secs(20), subscription.wait()).await.expect("a notification");
}

#[tokio::test]
async fn put_of_another_process_wakes_a_subscription() {
    let (own, other, queue, _) = other_process().await;
    let mut subscription = subscription(&own, &queue);
    for round in 0..20 {
        put(&other, &queue, "text").await;
        arrives(&mut subscription).await;
        // One notification may be of the round before; the message is there after its own.
        while get(&own, &queue, 1).await.is_empty() {
            arrives(&mut subscription).await;
        }
        assert_eq!(get(&own, &queue, 1).await, [], "round {round}");
    }
}

/// The connection that listens is cut off; what came meanwhile is not slept through.
#[tokio::test]
async fn subscription_survives_the_loss_of_its_connection() {
    let (own, other, queue, schema) = other_process().await;
    let mut subscription = subscription(&own, &queue);
    let client = connect(Postgres::shared()).await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = $1";
    let ended = client.query(end, &[&format!("LISTEN jobqueue_{schema}")]).await.unwrap();
    assert_eq!(ended.len(), 2, "both processes listen");
    put(&other, &queue, "text").await;
    arrives(&mut subscription).await;
    while texts(&get(&own, &queue, 1).await) != ["text"] {
        arrives(&mut subscription).await;
    }
}

/// A job in order that is sent while a queue is cleared becomes the first of its key when the one before it
/// is deleted.
#[tokio::test]
async fn clear_of_another_process_wakes_a_subscription() {
    let (own, other, queue, _) = other_process().await;
    put(&other, &queue, "text").await;
    let mut subscription = subscription(&own, &queue);
    arrives(&mut subscription).await;
    while get(&own, &queue, 1).await.is_empty() {
        arrives(&mut subscription).await;
    }
    other.queues().clear(&queue).await.unwrap();
    arrives(&mut subscription).await;
}

/// Behind a pooler in transaction mode, a session that listens stays in the pooler.
// audit 25, databases C7
#[tokio::test]
async fn process_that_does_not_listen_notifies_others_and_has_no_session_for_it() {
    let (options, schema) = own_schema();
    let (other, queue) = with_queue(options.clone()).await;
    let mut subscription = subscription(&other, &queue);
    let text = format!("{}&listen=off", Postgres::shared().connection_string());
    let operator =
        Storage::open(Options::from_connection_string(&text).unwrap().schema(&schema)).await.unwrap();
    assert!(operator.queues().subscribe(&queue).is_none());
    put(&operator, &queue, "text").await;
    arrives(&mut subscription).await;
}
