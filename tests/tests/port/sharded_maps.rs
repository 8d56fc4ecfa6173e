//! Sharded storage while another process changes the shards, and the requests that it makes of its accounts.

use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::sharded::Sharded;
use jobqueue::storage::{
    BlobName, ContainerName, ExpiredReceipt, GetMessages, MessageRef, Operation, PutMessage, StoreErrorKind,
};
use jobqueue::{QueueName, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::in_memory;
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

fn work() -> QueueName {
    "work".parse().unwrap()
}

/// Opens a storage over `account` like another process, with this number of shards unless the map has another.
fn open(account: &Storage, shards: u32) -> Sharded {
    let builder = Sharded::builder().account("a", account.clone()).shards("work", shards);
    builder.refresh(SECOND * 5).build().unwrap()
}

async fn create(sharded: &Sharded) -> Storage {
    let storage = Storage::from(sharded.stores());
    storage.queues().create_queue(&work(), &Metadata::new()).await.unwrap();
    storage
}

async fn put(storage: &Storage, count: u32) {
    for number in 0..count {
        storage.queues().put(&work(), PutMessage::new(number.to_string())).await.unwrap();
    }
}

/// A put that begins by the old map, just before that is too old, and takes long.
#[tokio::test(start_paused = true)]
async fn shard_is_kept_while_a_put_into_it_may_be_under_way() {
    let account = in_memory();
    // Quiet: only the planned delays decide which request ends first.
    let (slow_puts, slow_deletions) = (Faulty::quiet(&account), Faulty::quiet(&account));
    let (sender, operator) = (open(&slow_puts.storage(), 4), open(&slow_deletions.storage(), 4));
    let storage = create(&sender).await;
    slow_puts.plan_always(Operation::Put, Fault::DelayBefore(SECOND * 18));
    slow_deletions.plan_always(Operation::DeleteQueue, Fault::DelayBefore(SECOND * 2));
    operator.reshard(&work(), 8).await.unwrap();
    tokio::time::sleep(SECOND * 4).await;

    let sent = storage.clone();
    let sending = tokio::spawn(async move { put(&sent, 1).await });
    for _ in 0..120 {
        if operator.retire(&work()).await.unwrap() == 0 {
            break;
        }
        tokio::time::sleep(SECOND).await;
    }
    sending.await.unwrap();
    let got = storage.queues().get(&work(), GetMessages::new(32, SECOND)).await.unwrap();
    assert_eq!(got.messages.len(), 1, "the put was acknowledged");
}

// On Service Bus a put may attach links for minutes before it is sent, and retired shards have lost it.
#[tokio::test(start_paused = true)]
async fn put_is_given_up_before_its_shard_may_be_retired() {
    // Quiet: only the put that hangs takes time.
    let faulty = Faulty::quiet(&in_memory());
    let storage = create(&open(&faulty.storage(), 4)).await;
    faulty.plan_always(Operation::Put, Fault::Hang);
    let began = Instant::now();
    let queue = work();
    let put = storage.queues().put(&queue, PutMessage::new("0"));
    let error = tokio::time::timeout(SECOND * 61, put).await.expect("it goes on").unwrap_err();
    assert!(error.is_ambiguous() && began.elapsed() >= SECOND * 60, "{error:?}");
}

/// Two changes of the map at once: one of a process whose write comes late.
#[tokio::test(start_paused = true)]
async fn changes_of_the_shards_do_not_undo_each_other() {
    let account = in_memory();
    // Quiet: only the planned delays decide which write comes first.
    let faulty = Faulty::quiet(&account);
    let (late, other) = (open(&faulty.storage(), 4), open(&account, 4));
    let storage = create(&late).await;
    let late_write = || faulty.plan(Operation::PutBlob, 1, Fault::DelayBefore(SECOND * 2));
    let in_a_second = async || tokio::time::sleep(SECOND).await;

    // Two numbers of shards: the later write counts.
    late.reshard(&work(), 4).await.unwrap();
    late_write();
    let first = async { late.reshard(&work(), 8).await.unwrap() };
    let second = async {
        in_a_second().await;
        other.reshard(&work(), 16).await.unwrap()
    };
    tokio::join!(first, second);
    assert_eq!(shards(&account).await, [4, 16, 8]);

    // The former shards go while one more generation comes, in either order.
    tokio::time::sleep(SECOND * 200).await;
    late_write();
    let first = async { late.reshard(&work(), 2).await.unwrap() };
    let second = async {
        in_a_second().await;
        assert_eq!(other.retire(&work()).await.unwrap(), 0)
    };
    tokio::join!(first, second);
    assert_eq!(shards(&account).await, [8, 2]);
    tokio::time::sleep(SECOND * 200).await;
    late_write();
    let first = async { assert_eq!(late.retire(&work()).await.unwrap(), 2) };
    let second = async {
        in_a_second().await;
        other.reshard(&work(), 3).await.unwrap()
    };
    tokio::join!(first, second);
    assert_eq!(shards(&account).await, [2, 3]);
    put(&storage, 1).await;
}

/// Returns the number of shards of each generation, as the map has it.
async fn shards(account: &Storage) -> Vec<usize> {
    let name = BlobName::new(ContainerName::new("jobqueue-shards").unwrap(), "work").unwrap();
    let map = account.blobs().get_blob(&name, 1 << 20).await.unwrap().data;
    let map: Vec<serde_json::Value> = serde_json::from_slice(&map).unwrap();
    map.iter().map(|generation| generation["accounts"].as_array().unwrap().len()).collect()
}

/// Refuses puts after a time, as an endpoint that nothing answers for, and certainly stores nothing.
fn refuse_late(faulty: &Faulty, first: u64, after: Duration) {
    faulty.on(Operation::Put, move |_| Some(Fault::DelayBefore(after)));
    let refused = Fault::Refuse(StoreErrorKind::Unavailable);
    faulty.on(Operation::Put, move |call| (call.nth <= first).then_some(refused));
    faulty.plan_always(Operation::DeleteQueue, Fault::DelayBefore(SECOND * 2));
}

#[tokio::test(start_paused = true)]
async fn put_ends_in_time_however_many_shards_refuse_it_late() {
    // Quiet: only the planned faults take time.
    let faulty = Faulty::quiet(&in_memory());
    let storage = create(&open(&faulty.storage(), 16)).await;
    refuse_late(&faulty, u64::MAX, SECOND * 10);
    for _ in 0..3 {
        let begun = Instant::now();
        let refused = storage.queues().put(&work(), PutMessage::new("0")).await.unwrap_err();
        assert!(!refused.is_ambiguous() && refused.is_retryable(), "{refused}");
        assert!(begun.elapsed() <= SECOND * 40, "{:?}", begun.elapsed());
    }
}

/// The fifth shard takes a put that began long before, by a map that is superseded meanwhile.
#[tokio::test(start_paused = true)]
async fn message_that_other_shards_refuse_late_is_not_put_into_a_retired_one() {
    let account = in_memory();
    // Quiet: only the planned faults take time.
    let faulty = Faulty::quiet(&account);
    let (sender, operator) = (open(&faulty.storage(), 8), open(&faulty.storage(), 8));
    let storage = create(&sender).await;
    refuse_late(&faulty, 4, SECOND * 16);
    operator.reshard(&work(), 4).await.unwrap();
    tokio::time::sleep(SECOND * 4).await;

    let sent = storage.clone();
    let sending =
        tokio::spawn(async move { while sent.queues().put(&work(), PutMessage::new("0")).await.is_err() {} });
    while operator.retire(&work()).await.unwrap() > 0 {
        tokio::time::sleep(SECOND).await;
    }
    sending.await.unwrap();
    let got = storage.queues().get(&work(), GetMessages::new(32, SECOND)).await.unwrap();
    assert_eq!(got.messages.len(), 1, "the put was acknowledged");
    let calls = faulty.calls().into_iter().filter(|call| call.operation == Operation::Put);
    let of_old_map = calls.filter(|call| call.subject.ends_with("v1")).count();
    assert_eq!(of_old_map, 1, "a map of a former time led to a shard");
}

#[tokio::test(start_paused = true)]
async fn put_tries_one_of_the_shards_that_are_paused() {
    // Quiet: only the planned faults take time.
    let faulty = Faulty::quiet(&in_memory());
    let storage = create(&open(&faulty.storage(), 8)).await;
    faulty.plan_always(Operation::Put, Fault::Refuse(StoreErrorKind::Timeout));
    storage.queues().put(&work(), PutMessage::new("0")).await.unwrap_err();
    assert_eq!(faulty.calls_of(Operation::Put), 8);
    storage.queues().put(&work(), PutMessage::new("0")).await.unwrap_err();
    assert_eq!(faulty.calls_of(Operation::Put), 9);
    faulty.heal();
    storage.queues().put(&work(), PutMessage::new("0")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn old_map_hides_no_messages_from_counts_and_clear() {
    let account = in_memory();
    let (operator, counter, cleaner) = (open(&account, 1), open(&account, 1), open(&account, 1));
    let (storage, counter) = (create(&operator).await, create(&counter).await);
    let cleaner = create(&cleaner).await;
    operator.reshard(&work(), 8).await.unwrap();
    put(&storage, 16).await;

    cleaner.queues().clear(&work()).await.unwrap();
    assert_eq!(storage.queues().queue_properties(&work()).await.unwrap().approximate_count, 0);
    put(&storage, 16).await;
    assert_eq!(counter.queues().queue_properties(&work()).await.unwrap().approximate_count, 16);
    assert_eq!(counter.queues().counts_by_state(&work()).await.unwrap().unwrap().waiting, 16);
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_shard_are_deleted_together() {
    // Quiet: as many messages as this take long at the distance of Azure.
    let faulty = Faulty::quiet(&in_memory());
    let storage = create(&open(&faulty.storage(), 4)).await;
    let queues = storage.queues();
    put(&storage, 100).await;
    let mut messages: Vec<MessageRef> = Vec::new();
    while messages.len() < 100 {
        let got = queues.get(&work(), GetMessages::new(32, SECOND * 600)).await.unwrap().messages;
        messages.extend(got.into_iter().map(|leased| leased.message));
    }
    queues.delete(&work(), &messages[70], ExpiredReceipt::Refuse).await.unwrap();

    let answers = queues.delete_all(&work(), messages, ExpiredReceipt::Refuse).await;
    let refused = answers.iter().enumerate().filter(|(_, answer)| answer.is_err());
    assert_eq!(refused.map(|(at, _)| at).collect::<Vec<_>>(), [70]);
    assert_eq!(answers.len(), 100);
    let deletions = faulty.calls().into_iter().filter(|call| call.operation == Operation::DeleteAll);
    let shards: Vec<_> = deletions.map(|call| call.subject).collect();
    assert_eq!(shards.len(), 4);
    // A world of the same seed makes the same calls in the same order.
    assert!(shards.is_sorted(), "{shards:?}");
    assert_eq!(faulty.calls_of(Operation::Delete), 1);
}
