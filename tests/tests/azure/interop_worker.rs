//! Python programs with the stock packages and our worker on one Azure queue.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::azure::Options;
use jobqueue::{JobError, JobInfo, QueueMessage, QueueName, Reason, Storage, Worker};
use jobqueue_tests::azurite::Azurite;
use jobqueue_tests::python;
use jobqueue_tests::running::Running;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail/request", lease = "3s", poison_threshold = 1)]
struct Thumbnail {
    #[message(non_empty)]
    path: String,
}

type Seen = Arc<Mutex<BTreeMap<String, String>>>;

fn connection() -> String {
    Azurite::shared().connection_string()
}

async fn storage() -> Storage {
    Storage::open(Options::from_connection_string(&connection()).unwrap()).await.unwrap()
}

fn unique() -> String {
    format!("interop-{}", uuid::Uuid::new_v4().simple())
}

/// Runs a worker that records path and id of each job, and fails those whose path is `bad`.
async fn worker(storage: &Storage, queue: &str, seen: &Seen) -> Running {
    let seen = Arc::clone(seen);
    let handler = move |thumbnail: Thumbnail, info: JobInfo| {
        let seen = Arc::clone(&seen);
        async move {
            if thumbnail.path == "bad" {
                return Err(JobError::dead_letter("no such picture: ü <&>"));
            }
            seen.lock().unwrap().insert(thumbnail.path, info.id.to_string());
            Ok(())
        }
    };
    let worker = Worker::builder(storage.clone()).max_idle_delay(Duration::from_millis(300));
    Running::start(worker.handle_on(queue, handler)).await
}

/// Events as text and in base64, with attributes of their own, and bare JSON: all are jobs.
#[tokio::test]
async fn jobs_of_a_python_producer_run() {
    let (storage, queue, seen) = (storage().await, unique(), Seen::default());
    storage.queue_named::<Thumbnail>(&queue).await.unwrap();
    let job = |path: &str| json!({"type": "thumbnail/request", "data": {"path": path}});
    let mut encoded = job("encoded");
    encoded["base64"] = true.into();
    let mut more = job("ü <&> \"x\"\r\n");
    more["attributes"] = json!({"tenant": "blue", "key": "photo"});
    let bare = json!({"bare": {"path": "bare"}});
    let ids = python::produce(&connection(), &queue, &[job("plain"), encoded, more, bare]);

    let mut worker = worker(&storage, &queue, &seen).await;
    for _ in 0..4 {
        let ended = worker.ended().await;
        assert_eq!(ended.name(), "completed", "{ended:?}");
        let info = ended.job.unwrap();
        if *info.id == *ids[2] {
            assert_eq!(info.key.as_deref(), Some("photo"));
            assert_eq!(info.headers["tenant"].as_str(), "blue");
            assert_eq!(&*info.source, "urn:interop:producer");
        }
    }
    drop(worker.stop().await);
    let seen = seen.lock().unwrap();
    let wanted = ["plain", "encoded", "ü <&> \"x\"\r\n"];
    for (path, id) in wanted.iter().zip(&ids) {
        assert_eq!(seen.get(*path), Some(id), "{seen:?}");
    }
    assert!(seen.contains_key("bare"), "{seen:?}");
}

/// Our messages, dead letters and settings can be read by Python.
#[tokio::test]
async fn a_python_consumer_reads_jobs_and_dead_letters() {
    let (storage, queue) = (storage().await, unique());
    let thumbnails = storage.queue_named::<Thumbnail>(&queue).await.unwrap();
    let sent = thumbnails.send(&Thumbnail { path: "ü\u{ffff}\u{1}<&>".to_owned() }).await.unwrap();
    let consumed = python::consume(&connection(), &queue, false);
    assert_eq!(consumed.metadata, json!({}));
    let event = &consumed.messages[0]["event"];
    assert_eq!(event["attributes"]["id"], sent.id());
    assert_eq!(event["attributes"]["type"], "thumbnail/request");
    assert_eq!(event["data"]["path"], "ü\u{ffff}\u{1}<&>");

    thumbnails.send(&Thumbnail { path: "bad".to_owned() }).await.unwrap();
    let mut worker = worker(&storage, &queue, &Seen::default()).await;
    assert_eq!(worker.ended().await.name(), "dead_lettered");
    drop(worker.stop().await);
    let dead = python::consume(&connection(), &format!("{queue}-poison"), true);
    let attributes = &dead.messages[0]["event"]["attributes"];
    assert_eq!(attributes["deadletterreason"], Reason::REJECTED.as_str());
    assert_eq!(attributes["deadletterqueue"], queue);
    assert_eq!(attributes["lasterror"], "no such picture: ü <&>");
    assert_eq!(dead.messages[0]["event"]["data"]["path"], "bad");
}

/// F90, F91, F92, F98: texts of other programs that are not jobs are dead-lettered one by one, byte for byte,
/// each with its reason.
#[tokio::test]
async fn undecodable_messages_are_dead_lettered() {
    let (storage, queue, seen) = (storage().await, unique(), Seen::default());
    storage.queue_named::<Thumbnail>(&queue).await.unwrap();
    let texts = [
        "garbage",
        "{\"half\":",
        "bm90IGFuIGV2ZW50",
        "/////w==",
        "  <xml/> ",
        "[1, 2]",
        "{\"specversion\": \"9.9\", \"id\": \"1\"}",
        "{\"path\": \"\"}",
        "{\"path\": 7}",
        "{\"path\": \"\\ud800\"}",
    ];
    let mut jobs: Vec<Value> = texts.iter().map(|text| json!({"text": text})).collect();
    jobs.push(json!({"bare": {"path": "good"}}));
    python::produce(&connection(), &queue, &jobs);
    let mut worker = worker(&storage, &queue, &seen).await;
    for _ in 0..jobs.len() {
        worker.ended().await;
    }
    let report = worker.stop().await;
    assert_eq!(report.dead_lettered, texts.len() as u64);
    assert_eq!(report.completed, 1);
    let letters = storage.queue_named::<Thumbnail>(&queue).await.unwrap().dead_letters().unwrap();
    for letter in letters.list().await.unwrap().letters {
        assert!(letter.reason != Reason::UNKNOWN && letter.error.is_some(), "{letter:?}");
    }
    let dead_letter_queue = QueueName::new(format!("{queue}-poison")).unwrap();
    let dead_lettered = storage.queues().peek(&dead_letter_queue, 32).await.unwrap();
    let events = dead_lettered
        .iter()
        .filter_map(|message| serde_json::from_str(message.text.as_deref().unwrap()).ok());
    let data: Vec<Value> = events.map(|event: Value| event["data"].clone()).collect();
    for text in texts[..5].iter().chain(&texts[6..7]) {
        assert!(data.iter().any(|data| data == text), "{text:?} is not kept as it was: {data:?}");
    }
}
