//! Unreachable rows: expired messages, and the content of queues and containers that were deleted.

use std::time::Duration;

use bytes::Bytes;
use jobqueue::storage::{ExpiredReceipt, Metadata, PutBlob, PutMessage, Storage};
use jobqueue::{QueueName, postgres::tokio_postgres::Client};

use crate::locks::put_row;
use crate::{connect, get, of_group, options, own_schema, with_queue, within};
use jobqueue_test_support::postgres::Postgres;

async fn count(client: &Client, of: &str) -> i64 {
    client.query_one(&format!("SELECT count(*) FROM {of}"), &[]).await.unwrap().get(0)
}

/// Lets handles that are new, and so do not wait for their next turn, remove rows until `is_done`.
async fn until(schema: &str, queue: &QueueName, is_done: impl AsyncFn(&Client) -> bool) {
    let client = connect(Postgres::shared()).await;
    within(async {
        while !is_done(&client).await {
            let options = options(Postgres::shared()).schema(schema).listen(false);
            let storage = Storage::open(options).await.unwrap();
            get(&storage, queue, 1).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// The first of a group expires while there is always other work.
#[tokio::test]
async fn expired_first_message_makes_room_in_a_busy_queue() {
    let (options, _) = own_schema();
    let (storage, queue) = with_queue(options).await;
    let ttl = Duration::from_millis(1);
    storage.queues().put(&queue, of_group("short", "a").with_ttl(ttl)).await.unwrap();
    storage.queues().put(&queue, of_group("next", "a")).await.unwrap();
    within(async {
        loop {
            storage.queues().put(&queue, PutMessage::new("other")).await.unwrap();
            let message = get(&storage, &queue, 1).await.pop().unwrap();
            if message.text.as_deref() == Ok("next") {
                break;
            }
            storage.queues().delete(&queue, &message.message, ExpiredReceipt::Allow).await.ok();
        }
    })
    .await;
}

/// It cannot be deleted while sends of its group are open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_first_message_makes_room_while_a_send_of_its_group_is_open() {
    let (options, schema) = own_schema();
    let (storage, queue) = with_queue(options).await;
    storage.queues().put(&queue, of_group("short", "a").with_ttl(Duration::from_millis(1))).await.unwrap();
    storage.queues().put(&queue, of_group("next", "a")).await.unwrap();
    let mut open = connect(Postgres::shared()).await;
    let transaction = open.transaction().await.unwrap();
    put_row(&transaction, &schema, "a").await;
    let next = format!("{schema}.message WHERE text = 'next' AND NOT waiting");
    until(&schema, &queue, async |client| count(client, &next).await == 1).await;
}

/// It was deleted while no worker had time to remove its messages for days.
#[tokio::test]
async fn messages_of_a_queue_that_was_deleted_long_ago_are_removed() {
    let (options, schema) = own_schema();
    let (storage, queue) = with_queue(options).await;
    let deleted: QueueName = "deleted".parse().unwrap();
    storage.queues().create_queue(&deleted, &Metadata::new()).await.unwrap();
    for _ in 0..6 {
        let put = storage.queues().put_all(&deleted, vec![PutMessage::new("text"); 500].into()).await;
        assert!(put.iter().all(Result::is_ok));
    }
    storage.queues().delete_queue(&deleted).await.unwrap();
    drop(storage);
    let client = connect(Postgres::shared()).await;
    let age = format!("UPDATE {schema}.garbage SET since = since - 2 * 86400000");
    client.batch_execute(&age).await.unwrap();
    until(&schema, &queue, async |client| count(client, &format!("{schema}.garbage")).await == 0).await;
    assert_eq!(count(&client, &format!("{schema}.message")).await, 0, "messages that nothing can reach");
}

/// More queues and containers are deleted than one pass looks at.
#[tokio::test]
async fn content_of_many_deleted_queues_and_containers_is_removed() {
    let (options, schema) = own_schema();
    let (storage, queue) = with_queue(options).await;
    for number in 0..10 {
        let deleted: QueueName = format!("deleted-{number}").parse().unwrap();
        storage.queues().create_queue(&deleted, &Metadata::new()).await.unwrap();
        storage.queues().put(&deleted, of_group("text", "a")).await.unwrap();
        storage.queues().put(&deleted, of_group("text", "a")).await.unwrap();
        storage.queues().delete_queue(&deleted).await.unwrap();
        let container = format!("deleted-{number}").parse().unwrap();
        storage.blobs().create_container(&container).await.unwrap();
        let blob = jobqueue::storage::BlobName::new(container.clone(), "blob").unwrap();
        storage.blobs().put_blob(&blob, Bytes::new(), PutBlob::new()).await.unwrap();
        storage.blobs().delete_container(&container).await.unwrap();
    }
    drop(storage);
    until(&schema, &queue, async |client| {
        count(client, &format!("{schema}.message")).await + count(client, &format!("{schema}.blob")).await
            == 0
    })
    .await;
    let client = connect(Postgres::shared()).await;
    assert_eq!(count(&client, &format!("{schema}.garbage")).await, 20, "for a day they stay known");
}
