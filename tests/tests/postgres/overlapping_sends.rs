//! The first message of a group ends while transactions that put further ones are open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jobqueue::QueueName;
use jobqueue::postgres::tokio_postgres::Client;
use jobqueue::storage::{ExpiredReceipt, MessageRef, PutMessage, Storage, StoreError, StoreErrorKind};
use tokio::sync::oneshot;

use crate::locks::{heads, put_row, put_row_of};
use crate::{connect, get, named, of_group, texts, wait_for_waiting, within};
use jobqueue_test_support::postgres::Postgres;

async fn delete(storage: &Storage, queue: &QueueName, message: &MessageRef) -> Result<(), StoreError> {
    let messages = vec![message.clone()];
    storage.queues().delete_all(queue, messages, ExpiredReceipt::Refuse).await.remove(0)
}

fn assert_held_up(deleted: Result<(), StoreError>) {
    let error = deleted.unwrap_err();
    assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Timeout, false), "{error}");
}

/// Sends into a group by one transaction after the other until `stop`. Each begins before the one before it
/// has committed.
async fn overlap(clients: [Client; 2], put: String, begun: oneshot::Sender<()>, stop: Arc<AtomicBool>) {
    let begin = format!("BEGIN; {put}");
    clients[0].batch_execute(&begin).await.unwrap();
    begun.send(()).unwrap();
    for number in 0.. {
        clients[(number + 1) % 2].batch_execute(&begin).await.unwrap();
        clients[number % 2].batch_execute("COMMIT").await.unwrap();
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_message_is_deleted_while_sends_of_its_group_overlap() {
    let (storage, queue, schema) = named().await;
    let clients = [connect(Postgres::shared()).await, connect(Postgres::shared()).await];
    let first = heads(&storage, &queue, &["a"]).await.remove(0);
    let ((begun, has_begun), stop) = (oneshot::channel(), Arc::new(AtomicBool::new(false)));
    let sends = tokio::spawn(overlap(clients, put_row_of(&schema, "a"), begun, Arc::clone(&stop)));
    has_begun.await.unwrap();
    within(storage.queues().delete(&queue, &first, ExpiredReceipt::Refuse)).await.unwrap();
    assert_eq!(texts(&get(&storage, &queue, 32).await), ["open"], "the next, and no other");
    stop.store(true, Ordering::Relaxed);
    sends.await.unwrap();
}

/// The transaction has found another message that was the first when it put, and has ended since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_message_waits_for_a_send_behind_a_former_first() {
    let (storage, queue, schema) = named().await;
    let mut open = connect(Postgres::shared()).await;
    let first = heads(&storage, &queue, &["a"]).await.remove(0);
    let transaction = open.transaction().await.unwrap();
    put_row(&transaction, &schema, "a").await;
    assert_held_up(delete(&storage, &queue, &first).await);
    storage.queues().put(&queue, of_group("next", "a")).await.unwrap();
    delete(&storage, &queue, &first).await.unwrap();
    assert_eq!(delete(&storage, &queue, &first).await.unwrap_err().kind(), StoreErrorKind::MessageNotFound);
    let mut next = get(&storage, &queue, 32).await;
    assert_eq!(texts(&next), ["next"]);
    let next = next.remove(0).message;
    assert_held_up(delete(&storage, &queue, &next).await);
    assert_eq!(storage.queues().queue_properties(&queue).await.unwrap().approximate_count, 1);
    transaction.commit().await.unwrap();
    delete(&storage, &queue, &next).await.unwrap();
    assert_eq!(texts(&get(&storage, &queue, 32).await), ["open"]);
}

/// The next of a group is locked for a long time. A message of another group is deleted in the same list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_next_message_holds_up_only_the_deletion_of_its_first() {
    let (storage, queue, schema) = named().await;
    let mut open = connect(Postgres::shared()).await;
    let heads = heads(&storage, &queue, &["a", "b", "c"]).await;
    storage.queues().put(&queue, of_group("next", "b")).await.unwrap();
    let transaction = open.transaction().await.unwrap();
    let lock = format!("SELECT FROM {schema}.message WHERE text = 'next' FOR UPDATE");
    transaction.batch_execute(&lock).await.unwrap();
    let mut deleted = storage.queues().delete_all(&queue, heads.clone(), ExpiredReceipt::Refuse).await;
    assert_held_up(deleted.remove(1));
    assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
    transaction.rollback().await.unwrap();
    delete(&storage, &queue, &heads[1]).await.unwrap();
    assert_eq!(texts(&get(&storage, &queue, 32).await), ["next"]);
}

/// An open transaction sends to many keys, whose first messages were ended meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_messages_of_many_groups_hold_up_no_other_deletion_of_their_list() {
    let (storage, queue, schema) = named().await;
    let mut open = connect(Postgres::shared()).await;
    let names: Vec<String> = (0..30).map(|number| format!("group {number}")).collect();
    let groups: Vec<&str> = names.iter().map(String::as_str).collect();
    let firsts = heads(&storage, &queue, &groups).await;
    let transaction = open.transaction().await.unwrap();
    for group in &groups {
        put_row(&transaction, &schema, group).await;
        storage.queues().put(&queue, of_group("last", group)).await.unwrap();
    }
    let delete_all =
        async |messages| storage.queues().delete_all(&queue, messages, ExpiredReceipt::Refuse).await;
    assert!(delete_all(firsts).await.iter().all(Result::is_ok));
    let last = get(&storage, &queue, 32).await;
    assert_eq!(last.len(), groups.len());
    storage.queues().put(&queue, PutMessage::new("free")).await.unwrap();
    let free = get(&storage, &queue, 1).await.remove(0).message;
    let mut list: Vec<_> = last.into_iter().map(|leased| leased.message).collect();
    list.push(free);
    let observer = connect(Postgres::shared()).await;
    let mut deleted = tokio::select! {
        deleted = delete_all(list.clone()) => deleted,
        () = wait_for_waiting(&observer, &schema, 1) => panic!("the list waits for a lock"),
    };
    deleted.pop().unwrap().unwrap();
    deleted.into_iter().for_each(assert_held_up);
    transaction.rollback().await.unwrap();
    list.pop();
    assert!(delete_all(list).await.iter().all(Result::is_ok));
    assert!(get(&storage, &queue, 32).await.is_empty());
}

/// A send is open behind a message that was the first of its key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clear_removes_all_that_no_open_send_holds_up() {
    let (storage, queue, schema) = named().await;
    let mut open = connect(Postgres::shared()).await;
    let first = heads(&storage, &queue, &["a"]).await.remove(0);
    let transaction = open.transaction().await.unwrap();
    put_row(&transaction, &schema, "a").await;
    storage.queues().put(&queue, of_group("next", "a")).await.unwrap();
    delete(&storage, &queue, &first).await.unwrap();
    for text in ["free", "also free"] {
        storage.queues().put(&queue, PutMessage::new(text)).await.unwrap();
    }
    assert_held_up(storage.queues().clear(&queue).await);
    assert_eq!(texts(&get(&storage, &queue, 32).await), ["next"]);
    transaction.rollback().await.unwrap();
    storage.queues().clear(&queue).await.unwrap();
    assert!(get(&storage, &queue, 32).await.is_empty());
}
