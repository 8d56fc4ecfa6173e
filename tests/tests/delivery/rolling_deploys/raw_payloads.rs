//! Payloads without a version: the newest form that fits is read, by the codec of its media type.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::codec::{Codec, CodecError, Json};
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::settings::Metadata;
use jobqueue::storage::PutMessage;
use jobqueue::{JobError, JobInfo, QueueMessage, Storage};
use jobqueue_tests::jobs::{after, in_memory, worker};
use serde::de::DeserializeOwned;
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
    #[message(pattern = "^[A-Z]{3}$")]
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

/// Returns the messages that a worker of the newest release reads from the texts: version, amount and
/// currency.
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
async fn the_newest_form_that_fits_is_read() {
    let cases = [
        (r#"{"cents":7}"#, (1, 7, "EUR")),
        (r#"{"amount":8}"#, (2, 8, "EUR")),
        // An older form would leave out the fields that it does not know.
        (r#"{"amount":6,"currency":"SEK"}"#, (5, 6, "SEK")),
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
async fn payload_that_fits_no_version_has_the_error_of_the_newest() {
    let storage = in_memory();
    put(&storage, r#"{"cents":"many"}"#).await;
    assert_eq!(read(&storage).await, []);
    let letters = storage.queue::<Fifth>().await.unwrap().dead_letters().unwrap();
    let letter = letters.peek().await.unwrap().remove(0);
    assert!(letter.error.as_deref().is_some_and(|error| error.contains("amount")), "{letter:?}");
}

/// It ran in the form before, without the member that broke the rule.
// audit 23, sending B3
#[tokio::test(start_paused = true)]
async fn payload_that_breaks_a_rule_is_read_as_no_older_form() {
    for text in forms(r#"{"amount":6,"currency":"sek"}"#) {
        let storage = in_memory();
        put(&storage, &text).await;
        assert_eq!(read(&storage).await, [], "{text}");
        let letters = storage.queue::<Fifth>().await.unwrap().dead_letters().unwrap();
        assert_eq!(letters.peek().await.unwrap().remove(0).reason, jobqueue::Reason::INVALID, "{text}");
    }
}

/// Sets the version of payloads without one.
async fn set_raw_version(storage: &Storage, version: &str) {
    let metadata = Metadata::new().with("rawversion", version);
    storage.queues().set_queue_metadata(&"prices".parse().unwrap(), &metadata).await.unwrap();
}

// audit 23, sending B1
#[tokio::test(start_paused = true)]
async fn wrong_version_of_a_queue_can_be_corrected() {
    for text in forms(r#"{"amount":6,"currency":"SEK"}"#) {
        let storage = in_memory();
        put(&storage, &text).await;
        set_raw_version(&storage, "6").await;
        assert_eq!(read(&storage).await, [], "it waits for a worker that reads version 6: {text}");
        set_raw_version(&storage, "1").await;
        assert_eq!(read(&storage).await, [], "it has no `cents`: {text}");
        let letters = storage.queue::<Fifth>().await.unwrap().dead_letters().unwrap();
        set_raw_version(&storage, "5").await;
        assert_eq!(letters.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1, "{text}");
        assert_eq!(read(&storage).await, [(5, 6, "SEK".to_owned())], "{text}");
    }
}

/// A codec without self-description: it reads any bytes.
struct Lenient;

impl Codec for Lenient {
    const CONTENT_TYPE: &'static str = "application/x-length";

    fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
        Ok(vec![b'x'; Json::encode(value)?.len()])
    }

    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
        Json::decode(bytes.len().to_string().as_bytes())
    }
}

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "lengths", kind = "length")]
struct Length(u32);

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "lengths", kind = "length", version = 2, upgrade_from = Length, codec = Lenient)]
struct BinaryLength(u32);

impl From<Length> for BinaryLength {
    fn from(old: Length) -> Self {
        Self(old.0)
    }
}

/// Receives a message of the newest type from an event of kind `length` with these further members.
async fn received(members: &str) -> Result<(u32, u32), String> {
    let storage = in_memory();
    let queue = storage.queue::<BinaryLength>().await.unwrap();
    let text = format!(r#"{{"specversion":"1.0","id":"1","source":"/shop","type":"length",{members}}}"#);
    storage.queues().put(queue.name(), PutMessage::new(text)).await.unwrap();
    if let Some(delivery) = queue.receive(Duration::ZERO).await.unwrap() {
        return Ok((delivery.info().version, delivery.message().0));
    }
    let letter = queue.dead_letters().unwrap().peek().await.unwrap().remove(0);
    assert_eq!(letter.reason, jobqueue::Reason::DECODE_ERROR);
    Err(letter.error.unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn payload_is_read_only_by_a_codec_of_its_media_type() {
    assert_eq!(received(r#""schemaversion":1,"data":7"#).await, Ok((1, 7)));
    assert_eq!(received(r#""schemaversion":1,"datacontenttype":"text/json","data":7"#).await, Ok((1, 7)));
    let binary = r#""datacontenttype":"application/x-length","data_base64":"AAAA""#;
    assert_eq!(received(&format!(r#""schemaversion":2,{binary}"#)).await, Ok((2, 3)));
    // Without a version, the media type chooses among the forms.
    assert_eq!(received(binary).await, Ok((2, 3)));
    assert_eq!(received(r#""data":1234"#).await, Ok((1, 1234)));
    let error = received(r#""schemaversion":2,"data":1234"#).await.unwrap_err();
    assert!(error.contains("`application/json`"), "{error}");
    assert!(error.contains("`application/x-length`"), "{error}");
    let xml = r#""schemaversion":1,"datacontenttype":"application/xml","data_base64":"Nw==""#;
    let error = received(xml).await.unwrap_err();
    assert!(error.contains("`application/xml`"), "{error}");
}
