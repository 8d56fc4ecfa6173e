//! The wire format as `docs/wire-format.md` specifies it: its vectors, and a Python program that follows only that
//! page.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::azure::Options;
use jobqueue::storage::{BlobName, ContainerName, PutBlob, PutMessage};
use jobqueue::{Event, JobError, JobInfo, QueueMessage, QueueName, Storage, Worker};
use jobqueue_tests::azurite::Azurite;
use jobqueue_tests::jobs::{after, in_memory, worker};
use jobqueue_tests::python;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "notes", kind = "note", poison_threshold = 1)]
struct Note {
    text: String,
}

fn vectors() -> Vec<Value> {
    serde_json::from_str(include_str!("../../../docs/wire-vectors.json")).unwrap()
}

/// Puts the payload of a vector into the blob that its text refers to.
async fn put_payload(storage: &Storage, text: &str, payload: &str) {
    let event: Value = serde_json::from_str(text).unwrap();
    let container: ContainerName = "jobqueue-payloads".parse().unwrap();
    let blob = BlobName::new(container.clone(), event["dataref"].as_str().unwrap()).unwrap();
    storage.blobs().create_container(&container).await.unwrap();
    let _ = storage.blobs().put_blob(&blob, payload.to_owned().into(), PutBlob::new()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn every_vector_is_read_as_the_specification_says() {
    for vector in vectors() {
        let storage = in_memory();
        let queue = storage.queue::<Note>().await.unwrap();
        let text = vector["text"].as_str().unwrap();
        if let Some(blob) = vector.get("blob") {
            put_payload(&storage, text, blob.as_str().unwrap()).await;
        }
        let _ = storage.queues().put(&"notes".parse().unwrap(), PutMessage::new(text)).await.unwrap();
        let found: Arc<Mutex<Vec<Value>>> = Arc::default();
        let sink = Arc::clone(&found);
        let handler = move |note: Note, info: JobInfo| {
            let job = json!({"id": info.id.as_ref(), "source": info.source.as_ref(), "kind": info.kind.as_ref(),
                             "key": info.key.as_deref(), "text": note.text});
            assert_eq!(info.attempt, 1);
            sink.lock().unwrap().push(job);
            async { Ok::<_, JobError>(()) }
        };
        let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(5)).await.unwrap();
        let found = found.lock().unwrap().clone();
        let dead = queue.dead_letters().unwrap().list().await.unwrap();
        match vector.get("job") {
            Some(expected) => {
                assert_eq!(found.len(), 1, "{vector}");
                assert_eq!(dead.len(), 0, "{vector}");
                for (name, value) in expected.as_object().unwrap() {
                    assert_eq!(&found[0][name], value, "{vector}: {name}");
                }
            }
            None => {
                assert_eq!(found.len(), 0, "{vector}");
                assert_eq!(dead.len(), 1, "{vector}");
                assert_eq!(dead[0].reason.as_str(), vector["dead"].as_str().unwrap(), "{vector}");
            }
        }
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
    assert!(notes.dead_letters().unwrap().list().await.unwrap().is_empty());
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
