//! Notifications and turns of shards: no shard waits for the regular poll, or for the others to be empty.

use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::sharded::Sharded;
use jobqueue::storage::{ExpiredReceipt, GetMessages, Operation, PutMessage, StoreErrorKind, Subscription};
use jobqueue::{QueueName, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::in_memory;

use super::sharded::LONG;

const SECOND: Duration = Duration::from_secs(1);

fn name(name: &str) -> QueueName {
    name.parse().unwrap()
}

/// Opens a storage over `account` like another process.
fn open(account: &Storage, shards: u32) -> Sharded {
    Sharded::builder().account("a", account.clone()).shards("work", shards).build().unwrap()
}

async fn create(sharded: &Sharded) -> Storage {
    let storage = Storage::from(sharded.stores());
    for queue in ["work", "other"] {
        storage.queues().create_queue(&name(queue), &Metadata::new()).await.unwrap();
    }
    storage
}

async fn put(storage: &Storage, queue: &str) {
    storage.queues().put(&name(queue), PutMessage::new("text")).await.unwrap();
}

async fn get(storage: &Storage) -> usize {
    let got = storage.queues().get(&name("work"), GetMessages::new(1, LONG)).await.unwrap().messages;
    for message in &got {
        storage.queues().delete(&name("work"), &message.message, ExpiredReceipt::Refuse).await.unwrap();
    }
    got.len()
}

/// Polls and waits as an idle worker does, until the time is over without a notification.
async fn idle(storage: &Storage, subscription: &mut Subscription, time: Duration) {
    assert_eq!(get(storage).await, 0);
    while tokio::time::timeout(time, subscription.wait()).await.is_ok() {
        assert_eq!(get(storage).await, 0);
    }
}

/// Returns the number of messages in each shard.
async fn lengths(account: &Storage) -> Vec<u64> {
    let mut lengths = Vec::new();
    for shard in account.queues().list_queues("work-s").await.unwrap() {
        lengths.push(account.queues().queue_properties(&shard).await.unwrap().approximate_count);
    }
    lengths
}

// audit 33, coordination B2
#[tokio::test(start_paused = true)]
async fn subscription_to_a_queue_that_exists_follows_its_shards() {
    let account = in_memory();
    let (one, other) = (open(&account, 4), open(&account, 4));
    let (sender, reader) = (create(&one).await, Storage::from(other.stores()));
    // Subscribed before the map is read, as a worker is that starts.
    let mut subscription = reader.queues().subscribe(&name("work")).unwrap();
    idle(&reader, &mut subscription, SECOND).await;
    for _ in 0..4 {
        put(&sender, "work").await;
        let notified = tokio::time::timeout(SECOND, subscription.wait()).await;
        assert!(notified.is_ok(), "the put into a shard is not announced");
        assert_eq!(get(&reader).await, 1);
    }
    // A wait ends when the map must be read again.
    one.reshard(&name("work"), 2).await.unwrap();
    tokio::time::timeout(31 * SECOND, subscription.wait()).await.expect("a long wait misses new shards");
    idle(&reader, &mut subscription, SECOND).await;
    for _ in 0..2 {
        put(&sender, "work").await;
        let notified = tokio::time::timeout(SECOND, subscription.wait()).await;
        assert!(notified.is_ok(), "the put into a new shard is not announced");
        assert_eq!(get(&reader).await, 1);
    }
}

// audit 33, coordination B3
#[tokio::test(start_paused = true)]
async fn gets_in_a_rhythm_with_puts_pass_over_no_shard() {
    for follow_ups in 0..5 {
        let account = in_memory();
        let storage = create(&open(&account, 3)).await;
        for _ in 0..60 {
            put(&storage, "work").await;
        }
        for _ in 0..20 {
            assert_eq!(get(&storage).await, 1);
            for _ in 0..follow_ups {
                put(&storage, "other").await;
            }
        }
        let lengths = lengths(&account).await;
        assert!(lengths.iter().all(|length| (8..=17).contains(length)), "{follow_ups}: {lengths:?}");
    }
}

// audit 33, coordination B3
#[tokio::test(start_paused = true)]
async fn puts_in_a_rhythm_with_others_use_all_shards() {
    let account = in_memory();
    let storage = create(&open(&account, 2)).await;
    for _ in 0..20 {
        put(&storage, "work").await;
        put(&storage, "other").await;
    }
    assert_eq!(lengths(&account).await, [10, 10]);
}

// audit 33, coordination B3
#[tokio::test(start_paused = true)]
async fn shard_that_did_not_answer_once_is_asked_again_while_the_others_are_full() {
    let account = in_memory();
    // Quiet: only the planned failure counts.
    let faulty = Faulty::quiet(&account);
    let storage = create(&open(&faulty.storage(), 3)).await;
    for _ in 0..240 {
        put(&storage, "work").await;
    }
    faulty.plan(Operation::Get, 2, Fault::Refuse(StoreErrorKind::Timeout));
    for _ in 0..60 {
        assert_eq!(get(&storage).await, 1);
        put(&storage, "other").await;
        tokio::time::sleep(SECOND).await;
    }
    let lengths = lengths(&account).await;
    assert!(lengths.iter().all(|length| *length <= 72), "{lengths:?}");
}

// audit 33, coordination C9
#[tokio::test(start_paused = true)]
async fn calls_side_by_side_read_the_map_once() {
    // Quiet: the requests are counted.
    let faulty = Faulty::quiet(&in_memory());
    let storage = create(&open(&faulty.storage(), 4)).await;
    faulty.plan_always(Operation::GetBlob, Fault::DelayAfter(SECOND / 10));
    for _ in 0..3 {
        tokio::time::sleep(31 * SECOND).await;
        let before = faulty.calls().iter().filter(|call| call.operation == Operation::GetBlob).count();
        let puts = futures_util::future::join_all((0..32).map(|_| put(&storage, "work")));
        let gets = futures_util::future::join_all((0..8).map(|_| get(&storage)));
        tokio::join!(puts, gets);
        let after = faulty.calls().iter().filter(|call| call.operation == Operation::GetBlob).count();
        assert_eq!(after - before, 1);
    }
}
