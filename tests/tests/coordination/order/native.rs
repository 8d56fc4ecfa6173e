//! Order where the storage keeps it: on memory, in paused time, and on SQLite files.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::clock::ManualClock;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::settings::Metadata;
use jobqueue::storage::{ContainerName, ExpiredReceipt, GetMessages, Operation, PutMessage, StoreErrorKind};
use jobqueue::{QueueName, Runtime, SendOptions, Storage, sqlite};
use jobqueue_testing::faults::Faulty;
use jobqueue_tests::jobs::{in_memory, worker};
use tempfile::TempDir;
use tokio::time::{Instant, timeout};

use crate::order::records::{MINUTE, run, steps};
use crate::order::{Step, Watch, handle, send, step};

const HOUR: Duration = Duration::from_secs(3_600);

async fn file(folder: &TempDir) -> Storage {
    let file = format!("sqlite:{}", folder.path().join("jobs.db").display());
    Storage::connect(&file).await.unwrap()
}

/// Sends steps 0 to `count` of each key, some of which fail, and runs them.
async fn keys_keep_their_order(storage: &Storage, keys: u32, count: u32) {
    let queue = steps(storage).await;
    for number in 0..count {
        for key in 0..keys {
            let fails = u32::from(number % 4 == 1);
            send(&queue, &Step { fails, millis: 1, ..step(key.to_string(), number) }).await;
        }
    }
    let watch = Watch::default();
    run(storage, &watch, (keys * count) as usize).await;
    watch.assert_in_order(keys, count);
    assert!(queue.is_empty().await.unwrap());
    // No log beside the queue.
    let logs = storage.blobs().list_blobs(&ContainerName::new("jobqueue-fifo").unwrap(), "", None).await;
    assert_eq!(logs.unwrap_err().kind(), StoreErrorKind::ContainerNotFound);
}

// I21
#[tokio::test(start_paused = true)]
async fn keys_keep_their_order_on_memory() {
    keys_keep_their_order(&in_memory(), 5, 12).await;
}

// I21
#[tokio::test(flavor = "multi_thread")]
async fn keys_keep_their_order_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    keys_keep_their_order(&file(&folder).await, 3, 4).await;
}

/// C6: each job costs a share of a get, and a deletion, whatever waits behind it, and no blob.
#[tokio::test(start_paused = true)]
async fn a_job_costs_the_same_at_any_backlog() {
    let faulty = Faulty::ordering_groups(&in_memory());
    let storage = faulty.storage();
    let queue = steps(&storage).await;
    let list: Vec<Step> = (0..2_000).map(|number| step("a", number)).collect();
    let sent = queue.send_all(list.iter().map(|step| (step, SendOptions::new().in_order()))).await.unwrap();
    assert!(sent.iter().all(Result::is_ok));
    assert!(faulty.calls_of(Operation::PutAll) < 20, "the list is put as one");
    let before = faulty.calls().len();
    let watch = Watch::default();
    run(&storage, &watch, 2_000).await;
    watch.assert_in_order_of("a", 2_000);
    let calls = faulty.calls().len() - before;
    assert!(calls < 2_000 * 4, "{calls} calls");
    let of_blobs = |operation| faulty.calls_of(operation) == 0;
    assert!([Operation::PutBlob, Operation::GetBlob].into_iter().all(of_blobs), "no log");
}

/// The first of a key that is delayed, leased or put back holds up its key, and no other, because it is there.
async fn first_holds_up_its_key(storage: &Storage) {
    let queue = steps(storage).await;
    let later = SendOptions::new().in_order().delay(HOUR);
    let delayed = queue.send(&step("a", 0)).with(later).await.unwrap();
    send(&queue, &step("a", 1)).await;
    send(&queue, &step("b", 0)).await;
    send(&queue, &step("b", 1)).await;
    let receive = async || queue.receive(Duration::ZERO).await.unwrap();
    let first = receive().await.expect("of b");
    assert_eq!((first.message().of.as_str(), first.message().number), ("b", 0));
    assert!(receive().await.is_none(), "leased");
    first.fail(HOUR, "not yet").await.unwrap();
    assert!(receive().await.is_none(), "put back");
    // Cancelled, it leaves its place to the next.
    assert!(queue.cancel(&delayed).await.unwrap());
    let next = receive().await.expect("of a");
    assert_eq!((next.message().of.as_str(), next.message().number), ("a", 1));
    next.complete().await.unwrap();
    let counts = storage.queues().counts_by_state(queue.name()).await.unwrap().expect("counted");
    assert_eq!((counts.waiting, counts.backing_off, counts.delayed, counts.running), (1, 1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn first_holds_up_its_key_on_memory() {
    first_holds_up_its_key(&in_memory()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn first_holds_up_its_key_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    first_holds_up_its_key(&file(&folder).await).await;
}

/// A dead letter gives up its place; redriven it is the last of its key.
async fn dead_letter_gives_up_its_place(storage: &Storage) {
    let queue = steps(storage).await;
    send(&queue, &Step { fails: 9, millis: 1, ..step("a", 0) }).await;
    send(&queue, &step("a", 1)).await;
    let watch = Watch::default();
    run(storage, &watch, 2).await;
    let dead_letters = queue.dead_letters().unwrap();
    assert_eq!(dead_letters.list().await.unwrap().letters.len(), 1);
    send(&queue, &step("a", 2)).await;
    assert_eq!(dead_letters.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
    let watch = Watch::default();
    let worker = worker(storage).state(watch.clone()).handle(handle).build().unwrap();
    let ends = async {
        while watch.begun("a") != [2, 0, 0, 0] {
            watch.end.notified().await
        }
    };
    drop(timeout(MINUTE, worker.run_until(ends)).await);
    assert_eq!(watch.begun("a"), [2, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn dead_letter_gives_up_its_place_on_memory() {
    dead_letter_gives_up_its_place(&in_memory()).await;
}

/// Each process takes ids of messages in blocks: the order of ids is not the order of sends.
#[tokio::test(flavor = "multi_thread")]
async fn sends_of_two_processes_keep_their_order_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let stores = [file(&folder).await, file(&folder).await];
    let queue = QueueName::new("steps").unwrap();
    stores[0].queues().create_queue(&queue, &Metadata::new()).await.unwrap();
    for number in 0..40 {
        let message = PutMessage::new(number.to_string()).with_group("a".to_owned());
        stores[number % 2].queues().put(&queue, message).await.unwrap();
    }
    for number in 0..40 {
        // Alternate, so that one gets what the other has made the first.
        let queues = stores[(number / 3) % 2].queues();
        let received = queues.get(&queue, GetMessages::new(32, MINUTE)).await.unwrap();
        let [leased] = &received.messages[..] else { panic!("{number}: one of the group") };
        assert_eq!(leased.text.as_deref(), Ok(number.to_string().as_str()));
        queues.delete(&queue, &leased.message, ExpiredReceipt::Refuse).await.unwrap();
    }
}

/// Expired messages block no other message, even if they are the first.
#[tokio::test(flavor = "multi_thread")]
async fn expired_messages_of_a_group_hold_up_nobody_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new());
    let options = sqlite::Options::new(folder.path().join("jobs.db"));
    let storage = Storage::open(options.runtime(Runtime::new().with_clock(clock.clone()))).await.unwrap();
    let queue = QueueName::new("steps").unwrap();
    storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
    for number in 0..5 {
        let ttl = (number < 3).then_some(MINUTE);
        let message = PutMessage::new(number.to_string()).with_group("a".to_owned()).with_ttl(ttl);
        storage.queues().put(&queue, message).await.unwrap();
    }
    assert_eq!(storage.queues().queue_properties(&queue).await.unwrap().approximate_count, 5);
    clock.advance(HOUR);
    let received = storage.queues().get(&queue, GetMessages::new(32, MINUTE)).await.unwrap();
    let texts: Vec<_> = received.messages.iter().map(|leased| leased.text.as_deref().unwrap()).collect();
    assert_eq!(texts, ["3"]);
    assert_eq!(storage.queues().queue_properties(&queue).await.unwrap().approximate_count, 2);
    let peeked = storage.queues().peek(&queue, 32).await.unwrap();
    let texts: Vec<_> = peeked.iter().map(|peeked| peeked.text.as_deref().unwrap()).collect();
    assert_eq!(texts, ["4"], "what waits is shown");
}

/// A worker wakes when the next of a key has its turn: a long chain takes no polls.
#[tokio::test(start_paused = true)]
async fn next_of_a_key_starts_when_the_first_ends() {
    let storage = in_memory();
    let queue = steps(&storage).await;
    for number in 0..100 {
        send(&queue, &Step { millis: 100, ..step("a", number) }).await;
    }
    let (watch, began) = (Watch::default(), Instant::now());
    run(&storage, &watch, 100).await;
    watch.assert_in_order_of("a", 100);
    assert!(began.elapsed() < Duration::from_secs(11), "{:?}", began.elapsed());
}
