//! The wire format as `docs/wire-format.md` specifies it: its vectors, and a Python program that follows only
//! that page.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use jobqueue::azure::Options;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::settings::Metadata;
use jobqueue::storage::{BlobName, ContainerName, GetMessages, PutBlob, PutMessage, UpdateMessage};
use jobqueue::{Context, Event, JobError, JobInfo, QueueMessage, QueueName, Storage, Worker};
use jobqueue_tests::azurite::Azurite;
use jobqueue_tests::jobs::{after, in_memory, worker};
use jobqueue_tests::python;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "notes", kind = "note")]
struct Note {
    text: String,
}

/// Returns the vectors that have this member.
fn vectors(member: &str) -> Vec<Value> {
    let later = jiff::Timestamp::try_from(SystemTime::now() + Duration::from_secs(400 * 86_400)).unwrap();
    let text = include_str!("../../../docs/wire-vectors.json").replace("{in 400 days}", &later.to_string());
    let vectors: Vec<Value> = serde_json::from_str(&text).unwrap();
    vectors.into_iter().filter(|vector| vector.get(member).is_some()).collect()
}

/// Puts the payload of a vector into the blob that its text refers to.
async fn put_payload(storage: &Storage, text: &str, payload: &str) {
    let event: Value = serde_json::from_str(text).unwrap();
    let container: ContainerName = "jobqueue-payloads".parse().unwrap();
    let blob = BlobName::new(container.clone(), event["dataref"].as_str().unwrap()).unwrap();
    storage.blobs().create_container(&container).await.unwrap();
    let _ = storage.blobs().put_blob(&blob, payload.to_owned().into(), PutBlob::new()).await.unwrap();
}

/// Leases the message of the queue, and makes it visible again at once.
async fn deliver(storage: &Storage, queue: &QueueName) {
    let get = GetMessages::new(1, Duration::from_secs(30));
    let leased = storage.queues().get(queue, get).await.unwrap().messages.remove(0);
    let _ =
        storage.queues().update(queue, &leased.message, UpdateMessage::new(Duration::ZERO)).await.unwrap();
}

/// Runs the message of a vector. Returns the jobs that the handler was given, as far as vectors show them.
async fn jobs_of(storage: &Storage, vector: &Value) -> Vec<Value> {
    let queue = QueueName::new("notes").unwrap();
    storage.queue::<Note>().await.unwrap();
    let text = vector["text"].as_str().unwrap();
    if let Some(blob) = vector.get("blob") {
        put_payload(storage, text, blob.as_str().unwrap()).await;
    }
    let _ = storage.queues().put(&queue, PutMessage::new(text)).await.unwrap();
    for _ in 1..vector["deliveries"].as_u64().unwrap_or(1) {
        deliver(storage, &queue).await;
    }
    let found: Arc<Mutex<Vec<Value>>> = Arc::default();
    let sink = Arc::clone(&found);
    let handler = move |note: Note, ctx: Context| {
        let sink = Arc::clone(&sink);
        async move {
            let (info, resume) = (ctx.info(), ctx.resume::<Value>().await?);
            let job = json!({"id": info.id.as_ref(), "source": info.source.as_ref(), "kind": info.kind.as_ref(),
                             "key": info.key.as_deref(), "text": note.text, "attempt": info.attempt,
                             "fence": ctx.fence(), "resume": resume});
            sink.lock().unwrap().push(job);
            Ok::<_, JobError>(())
        }
    };
    let _ = worker(storage).handle(handler).build().unwrap().run_until(after(5)).await.unwrap();
    found.lock().unwrap().clone()
}

/// Asserts that `found` has every member of `expected`; one that is null may be missing.
fn assert_members(found: &Value, expected: &Value, vector: &Value) {
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&found[name], value, "{vector}: {name}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_vector_is_read_as_the_specification_says() {
    for vector in vectors("text") {
        let storage = in_memory();
        let found = jobs_of(&storage, &vector).await;
        let queue = storage.queue::<Note>().await.unwrap();
        let dead = queue.dead_letters().unwrap().list().await.unwrap().letters;
        let left = queue.approximate_len().await.unwrap();
        let is_run = usize::from(vector.get("job").is_some());
        let is_dead = usize::from(vector.get("dead").is_some());
        let waits = u64::from(vector.get("waits").is_some());
        assert_eq!((found.len(), dead.len(), left), (is_run, is_dead, waits), "{vector}");
        if let (Some(found), Some(expected)) = (found.first(), vector.get("job")) {
            assert_eq!(found["attempt"], expected.get("attempt").cloned().unwrap_or(json!(1)), "{vector}");
            assert_members(found, expected, &vector);
        }
        if let (Some(letter), Some(reason)) = (dead.first(), vector.get("dead")) {
            assert_eq!(letter.reason.as_str(), reason.as_str().unwrap(), "{vector}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_dead_letter_of_the_vectors_is_read_and_put_back() {
    for vector in vectors("dead_letter") {
        let storage = in_memory();
        let queue = storage.queue::<Note>().await.unwrap();
        let letters = queue.dead_letters().unwrap();
        let text = vector["dead_letter"].as_str().unwrap();
        storage.queues().create_queue(letters.name(), &Metadata::new()).await.unwrap();
        let _ = storage.queues().put(letters.name(), PutMessage::new(text)).await.unwrap();
        let letter = letters.peek().await.unwrap().remove(0);
        let found = json!({"id": letter.id, "source": letter.source, "kind": letter.kind, "queue": letter.queue,
                           "reason": letter.reason.as_str(), "error": letter.error, "attempts": letter.attempts,
                           "deliveries": letter.deliveries, "key": letter.key, "worker": letter.worker});
        assert_members(&found, &vector["letter"], &vector);

        let report = letters.redrive(DeadLetterOptions::new()).await.unwrap();
        assert_eq!(report.moved.len(), 1, "{vector}: {report:?}");
        let revived = storage.queues().peek(queue.name(), 1).await.unwrap().remove(0).text.unwrap();
        assert_revived(&revived, &vector);
        let ours = python::jobs("", "notes", &["revive"], text);
        assert_revived(ours.trim_end_matches('\n'), &vector);
    }
}

/// Asserts that a text begins the job of a dead letter anew.
fn assert_revived(text: &str, vector: &Value) {
    if let Some(expected) = vector.get("redriven_text") {
        assert_eq!(text, expected, "{vector}");
        return;
    }
    let event: Value = serde_json::from_str(text).unwrap();
    assert_members(&event, &vector["redriven"], vector);
    for name in ["attempts", "excused", "deliverycount", "deadletterreason", "deadlettermessage"] {
        assert!(event.get(name).is_none(), "{vector}: {name} in {text}");
    }
    let letter: Value = serde_json::from_str(vector["dead_letter"].as_str().unwrap()).unwrap();
    for name in ["fifocopy", "fifopage"] {
        assert!(event.get(name).is_none_or(|new| *new != letter[name]), "{vector}: {name} in {text}");
    }
}

#[tokio::test]
async fn an_external_program_sends_a_large_job_and_redrives_it() {
    let connection = Azurite::shared().connection_string();
    let storage: Storage =
        Storage::open(Options::from_connection_string(&connection).unwrap()).await.unwrap();
    let queue = QueueName::new(format!("notes-{}", uuid::Uuid::new_v4().simple())).unwrap();
    let notes = storage.queue_named::<Note>(queue.as_str()).await.unwrap();
    let text = "ü<&>".repeat(200_000);
    let python = |command: &[&str], input: &str| {
        python::jobs(&connection, queue.as_str(), command, input).trim().to_owned()
    };
    let id = python(&["send", "note", "customer-7"], &json!({"text": text}).to_string());

    let reject = async |_: Note| Err::<(), _>(JobError::dead_letter("no customer of this number"));
    run(&storage, &queue, reject).await;
    let dead: Value = serde_json::from_str(&python(&["dead"], "")).unwrap();
    assert_eq!(dead["id"].as_str(), Some(id.as_str()), "{dead}");
    assert_eq!(dead["reason"].as_str(), Some("rejected"), "{dead}");
    assert!(
        dead["error"].as_str().unwrap().contains("no customer") && dead["bytes"].as_u64() > Some(1_000_000)
    );

    assert_eq!(python(&["redrive", &id], ""), "true");
    assert!(notes.dead_letters().unwrap().list().await.unwrap().letters.is_empty());
    let ran = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&ran);
    let accept = move |note: Note, info: JobInfo| {
        sink.lock().unwrap().push((info.id.to_string(), info.key.as_deref().map(str::to_owned), note.text));
        async { Ok::<_, JobError>(()) }
    };
    run(&storage, &queue, accept).await;
    assert_eq!(*ran.lock().unwrap(), [(id, Some("customer-7".to_owned()), text)]);
}

/// Runs a worker until one delivery has ended.
async fn run<A: 'static>(storage: &Storage, queue: &QueueName, handler: impl jobqueue::handler::Handler<A>) {
    let (done, ended) = tokio::sync::watch::channel(false);
    let mut ended = ended;
    let told = move |event: &Event| {
        if matches!(event, Event::Finished { .. }) {
            done.send_replace(true);
        }
    };
    let worker =
        Worker::builder(storage.clone()).handle_on(queue.as_str(), handler).on_event(told).build().unwrap();
    let stop = async move { ended.wait_for(|done| *done).await.map(drop).unwrap() };
    let ran = tokio::time::timeout(Duration::from_secs(120), worker.run_until(stop));
    let _ = ran.await.expect("a delivery within two minutes").unwrap();
}
