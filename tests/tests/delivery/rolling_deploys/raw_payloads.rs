//! Payloads without a version: the oldest form that fits is read and upgraded.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::storage::PutMessage;
use jobqueue::{JobError, JobInfo, QueueMessage, Storage};
use jobqueue_tests::jobs::{after, in_memory, worker};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "prices", kind = "price")]
struct First {
    cents: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "prices", kind = "price", version = 2, upgrade_from = First)]
struct Second {
    #[message(range(1..))]
    amount: u32,
}

impl TryFrom<First> for Second {
    type Error = &'static str;
    fn try_from(first: First) -> Result<Self, &'static str> {
        if first.cents == 13 { Err("thirteen") } else { Ok(Self { amount: first.cents }) }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "prices", kind = "price", version = 5, upgrade_from = Second)]
struct Fifth {
    amount: u32,
    currency: String,
}

impl From<Second> for Fifth {
    fn from(second: Second) -> Self {
        Self { amount: second.amount, currency: "EUR".into() }
    }
}

async fn put(storage: &Storage, text: &str) {
    let queue = storage.queue::<Fifth>().await.unwrap();
    storage.queues().put(queue.name(), PutMessage::new(text)).await.unwrap();
}

/// Returns the messages that a worker of the newest release reads from the texts: version, amount and currency.
async fn read(storage: &Storage) -> Vec<(u32, u32, String)> {
    let seen: Arc<Mutex<Vec<_>>> = Arc::default();
    let sink = Arc::clone(&seen);
    let handler = move |price: Fifth, info: JobInfo| {
        sink.lock().unwrap().push((info.version, price.amount, price.currency));
        async { Ok::<(), JobError>(()) }
    };
    let _ = worker(storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    let mut seen = seen.lock().unwrap().clone();
    seen.sort();
    seen
}

/// A payload alone, and in an event without `schemaversion`.
fn forms(data: &str) -> [String; 2] {
    let event = format!(r#"{{"specversion":"1.0","id":"1","source":"/shop","type":"price","data":{data}}}"#);
    [data.to_owned(), event]
}

// M
#[tokio::test(start_paused = true)]
async fn the_oldest_form_that_fits_is_upgraded() {
    let cases = [
        (r#"{"cents":7}"#, (1, 7, "EUR")),
        (r#"{"amount":8}"#, (2, 8, "EUR")),
        // Fields that the older form does not know are left out: a queue whose forms overlap names the version.
        (r#"{"amount":6,"currency":"SEK"}"#, (2, 6, "EUR")),
        // An upgrade that refuses does not fit.
        (r#"{"cents":13,"amount":9}"#, (2, 9, "EUR")),
    ];
    for (data, (version, amount, currency)) in cases {
        for text in forms(data) {
            let storage = in_memory();
            put(&storage, &text).await;
            let peeked = storage.queue::<Fifth>().await.unwrap().peek().await.unwrap().remove(0).unwrap();
            assert_eq!(peeked.amount, amount, "{text}");
            assert_eq!(&*peeked.currency, currency, "{text}");
            assert_eq!(read(&storage).await, [(version, amount, currency.to_owned())], "{text}");
            put(&storage, &text).await;
            let queue = storage.queue::<Fifth>().await.unwrap();
            let delivery = queue.receive(Duration::ZERO).await.unwrap().unwrap();
            assert_eq!(delivery.info().version, version, "{text}");
            assert_eq!(delivery.message().amount, amount, "{text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_queue_can_name_the_version() {
    for text in forms(r#"{"cents":7,"amount":8,"currency":"SEK"}"#) {
        let storage = in_memory();
        let metadata = Metadata::new().with("rawversion", "5");
        storage.queues().create_queue(&"prices".parse().unwrap(), &metadata).await.unwrap();
        put(&storage, &text).await;
        assert_eq!(read(&storage).await, [(5, 8, "SEK".to_owned())], "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_fits_no_form_is_told_by_the_newest() {
    let storage = in_memory();
    put(&storage, r#"{"cents":"many"}"#).await;
    assert_eq!(read(&storage).await, []);
    let letters = storage.queue::<Fifth>().await.unwrap().dead_letters().unwrap();
    let letter = letters.peek().await.unwrap().remove(0);
    assert!(letter.error.as_deref().is_some_and(|error| error.contains("amount")), "{letter:?}");
}
