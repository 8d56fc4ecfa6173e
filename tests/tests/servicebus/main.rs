//! Service Bus as a storage, on the emulator: what differs from other storages, and what happens when links,
//! connections and answers are lost. The promises of the port are tried in `conformance`.

#![allow(clippy::unwrap_used)]

mod cancellations;
mod clears;
mod clocks;
mod cuts;
mod dead_letters;
mod emulator;
mod entra;
mod faults;
mod forged;
mod gateway;
mod idling;
mod jobs;
mod late_answers;
mod leftovers;
mod lists;
mod locks;
mod long_held;
mod made_anew;
mod many_queues;
mod miscounts;
mod missing_queues;
mod namespace;
mod nested;
mod no_sends;
mod numbers;
mod opening;
mod order;
mod outages;
mod partitions;
mod peeks;
mod permissions;
mod push;
mod put_backs;
mod python;
mod raw_payloads;
mod resent_letters;
mod session_crashes;
mod session_groups;
mod session_jobs;
mod session_losses;
mod sessions;
mod time_to_live;
mod two_namespaces;
mod until_idle;
mod waiting_gets;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jobqueue::clock::ManualClock;
use jobqueue::servicebus::Options;
use jobqueue::storage::{
    GetMessages, LeasedMessage, MessageRef, PutMessage, Queues, Storage, StoreError, UpdateMessage, Updated,
};
use jobqueue::{QueueName, Runtime};
use jobqueue_test_support::servicebus::ServiceBus;
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);

/// The ways in which the emulator ends links, sessions and connections.
const ENDS: [&str; 4] = ["detach", "end-session", "close-connection", "abort"];

/// Returns the storage as if it were that much later.
fn later(storage: &Storage, time: Duration) -> Storage {
    let clock = Arc::new(ManualClock::at(SystemTime::now() + time));
    storage.clone().with_runtime(Runtime::new().with_clock(clock))
}

/// A queue on an emulator of its own.
struct Bench {
    emulator: ServiceBus,
    blobs: Storage,
    storage: Storage,
    queue: QueueName,
}

impl Bench {
    fn new() -> Self {
        Self::with(json!({}), &[])
    }

    /// Makes the queue with settings, on an emulator with further arguments.
    fn with(settings: Value, arguments: &[&str]) -> Self {
        Self::of(settings, arguments, Storage::memory())
    }

    /// Makes the queue beside these blobs.
    fn with_blobs(blobs: Storage) -> Self {
        Self::of(json!({}), &[], blobs)
    }

    fn of(settings: Value, arguments: &[&str], blobs: Storage) -> Self {
        let emulator = ServiceBus::start_with(arguments);
        emulator.create_queue("work", settings);
        let storage = Storage::from(options(&emulator).with_blobs_of(&blobs).unwrap());
        Self { emulator, blobs, storage, queue: QueueName::new("work").unwrap() }
    }

    /// Opens the same storage as another process would.
    fn another(&self) -> Storage {
        Storage::from(options(&self.emulator).with_blobs_of(&self.blobs).unwrap())
    }

    fn store(&self) -> &Queues {
        self.storage.queues()
    }

    async fn put(&self, message: PutMessage) -> Result<MessageRef, StoreError> {
        self.store().put(&self.queue, message).await.map(|put| put.message)
    }

    /// Puts a text and gets it.
    async fn leased(&self, text: &str) -> LeasedMessage {
        self.put(PutMessage::new(text)).await.unwrap();
        self.get().await.unwrap()
    }

    async fn get(&self) -> Option<LeasedMessage> {
        self.get_from(&self.storage).await
    }

    /// Gets one message; asks again when a link has ended under the request.
    async fn get_from(&self, storage: &Storage) -> Option<LeasedMessage> {
        let options = GetMessages::new(1, MINUTE);
        for _ in 0..5 {
            match storage.queues().get(&self.queue, options).await {
                Ok(received) => return received.messages.into_iter().next(),
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
        }
        panic!("the queue cannot be asked");
    }

    async fn update(&self, message: &MessageRef, change: UpdateMessage) -> Result<Updated, StoreError> {
        self.store().update(&self.queue, message, change).await
    }

    async fn delete(&self, message: &MessageRef) -> Result<(), StoreError> {
        self.store().delete(&self.queue, message, Default::default()).await
    }

    /// Returns the number of messages in a state.
    fn count(&self, state: &str) -> u64 {
        self.emulator.queue("work")["counts"][state].as_u64().unwrap()
    }
}

fn options(emulator: &ServiceBus) -> Options {
    Options::from_connection_string(emulator.connection_string()).unwrap()
}
