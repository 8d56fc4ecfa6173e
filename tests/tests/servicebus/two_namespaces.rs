//! Two namespaces whose blobs are in one storage: each has its own there.

use std::time::Duration;

use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::sharded::Sharded;
use jobqueue::storage::{GetMessages, Metadata, PutMessage, StoreErrorKind, UpdateMessage};
use jobqueue::{QueueName, Storage};
use jobqueue_test_support::servicebus::ServiceBus;

use super::{Bench, MINUTE, later, options};

/// Sweeps as if it were days later; returns how many blobs were removed.
async fn sweep_later(storage: &Storage) -> u64 {
    let later = later(storage, Duration::from_secs(3 * 86_400));
    sweep(&later, SweepOptions::new()).await.unwrap().removed
}

fn save() -> UpdateMessage {
    UpdateMessage::new(MINUTE).with_text("step 1".to_owned())
}

// A queue that the other namespace does not have needed nothing there, and so no text.
#[tokio::test]
async fn a_sweep_of_one_namespace_keeps_the_texts_of_another() {
    let (bench, other) = (Bench::new(), ServiceBus::start());
    let leased = bench.leased("job").await;
    bench.update(&leased.message, save()).await.unwrap();
    let storage = Storage::from(options(&other).with_blobs_of(&bench.blobs).unwrap());
    assert_eq!(sweep_later(&storage).await, 0);
    bench.emulator.advance(MINUTE);
    assert_eq!(bench.get().await.unwrap().text.as_deref(), Ok("step 1"));
}

// No dead letter could be stored, or those of Service Bus itself were seen by nobody.
#[tokio::test]
async fn shards_on_service_bus_and_on_another_storage_are_refused() {
    let emulator = ServiceBus::start();
    let namespace = || Storage::from(options(&emulator).with_blobs_of(Storage::memory()).unwrap());
    for [one, two] in [[namespace(), Storage::memory()], [Storage::memory(), namespace()]] {
        let error = Sharded::builder().account("one", one).account("two", two).build().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Configuration);
    }
}

#[tokio::test]
async fn a_sweep_of_shards_on_two_namespaces_keeps_the_texts_of_both() {
    let (one, two, blobs) = (ServiceBus::start(), ServiceBus::start(), Storage::memory());
    let of = |emulator: &ServiceBus| Storage::from(options(emulator).with_blobs_of(&blobs).unwrap());
    let sharded = Sharded::builder().account("one", of(&one)).account("two", of(&two)).shards("work", 2);
    let storage = Storage::from(sharded.build().unwrap().stores());
    let (queue, queues) = (QueueName::new("work").unwrap(), storage.queues());
    queues.create_queue(&queue, &Metadata::new()).await.unwrap();
    let mut leased = Vec::new();
    for number in 0..4 {
        queues.put(&queue, PutMessage::new(number.to_string())).await.unwrap();
    }
    while leased.len() < 4 {
        leased.extend(queues.get(&queue, GetMessages::new(4, MINUTE)).await.unwrap().messages);
    }
    for leased in &leased {
        queues.update(&queue, &leased.message, save()).await.unwrap();
    }
    assert_eq!(sweep_later(&storage).await, 0);
    for emulator in [&one, &two] {
        emulator.advance(MINUTE);
    }
    let mut again = Vec::new();
    while again.len() < 4 {
        again.extend(queues.get(&queue, GetMessages::new(4, MINUTE)).await.unwrap().messages);
    }
    assert!(again.iter().all(|leased| leased.text.as_deref() == Ok("step 1")), "{again:?}");
}

// A pause of the one paused the other.
#[tokio::test]
async fn queues_of_one_name_have_settings_of_their_own() {
    let (bench, other) = (Bench::new(), ServiceBus::start());
    let storage = Storage::from(options(&other).with_blobs_of(&bench.blobs).unwrap());
    let paused = Metadata::new().with("paused", "true");
    bench.store().set_queue_metadata(&bench.queue, &paused).await.unwrap();
    storage.queues().create_queue(&bench.queue, &Metadata::new()).await.unwrap();
    assert_eq!(storage.queues().queue_metadata(&bench.queue).await.unwrap(), Metadata::new());
    assert_eq!(bench.store().queue_metadata(&bench.queue).await.unwrap(), paused);
}
