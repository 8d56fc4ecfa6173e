//! Sharded storage while another process changes the shards, and the requests that it makes of its accounts.

use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::sharded::Sharded;
use jobqueue::storage::{ExpiredReceipt, GetMessages, MessageRef, Operation, PutMessage};
use jobqueue::{QueueName, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::in_memory;

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
    assert_eq!(faulty.calls_of(Operation::DeleteAll), 4);
    assert_eq!(faulty.calls_of(Operation::Delete), 1);
}
