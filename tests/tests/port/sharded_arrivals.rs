//! Notifications and turns of shards: no shard waits for the regular poll, or for the others to be empty.

use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::sharded::Sharded;
use jobqueue::storage::{ExpiredReceipt, GetMessages, PutMessage, Subscription};
use jobqueue::{QueueName, Storage};
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
