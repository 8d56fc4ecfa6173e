//! The session and the `message-id` of what is put without a sender: continuations of batches, and dead
//! letters that are put back.

use std::time::Duration;

use bytes::Bytes;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::storage::{BlobName, ContainerName, Operation, PutBlob, PutMessage, StoreErrorKind};
use jobqueue::{JobError, QueueName, Reason, Worker};
use jobqueue_admin::Admin;
use jobqueue_testing::faults::{Fault, Faulty};
use serde_json::{Value, json};

use super::Bench;
use super::jobs::{Work, work};

impl Bench {
    /// Returns the messages of a queue as the service has them.
    fn messages(&self, queue: &str) -> Vec<Value> {
        self.emulator.queue(queue)["messages"].as_array().unwrap().clone()
    }

    /// Returns the text of a job that is sent in order.
    async fn text_in_order(&self, id: &str, key: &str) -> String {
        self.emulator.create_queue("scratch", json!({ "RequiresSession": true }));
        let scratch = self.storage.queue_named::<Work>("scratch").await.unwrap();
        scratch.send(&work("join")).id(id).key(key).in_order().await.unwrap();
        let name = QueueName::new("scratch").unwrap();
        let peeked = self.store().peek(&name, 1).await.unwrap();
        peeked[0].text.clone().unwrap()
    }

    /// Writes the plan of a sealed batch without children, as an earlier version would have.
    async fn seal(&self, batch: &str, text: &str) {
        let container = ContainerName::new("jobqueue-batches").unwrap();
        self.blobs.blobs().create_container(&container).await.unwrap();
        let plan = json!({ "children": 0, "queue": "work", "text": text });
        let name = BlobName::new(container, format!("{batch}/plan")).unwrap();
        self.blobs.blobs().put_blob(&name, Bytes::from(plan.to_string()), PutBlob::new()).await.unwrap();
    }
}

#[tokio::test]
async fn a_continuation_in_order_gets_the_session_of_its_key() {
    let bench = Bench::of_sessions();
    bench.seal("b", &bench.text_in_order("b", "a").await).await;
    bench.storage.batch("b").await.unwrap().then(&work("join")).await.unwrap();
    let messages = bench.messages("work");
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert_eq!(messages[0]["session"], "a");
}

#[tokio::test]
async fn a_continuation_that_is_put_twice_is_one_message() {
    let bench = Bench::with(json!({ "RequiresDuplicateDetection": true }), &[]);
    // The job that began the batch has its id.
    bench.storage.queue::<Work>().await.unwrap().send(&work("begin")).id("b").await.unwrap();
    bench.storage.batch("b").await.unwrap().then(&work("join")).await.unwrap();
    // Whoever has put it died before he recorded that.
    let sent = BlobName::new(ContainerName::new("jobqueue-batches").unwrap(), "b/sent").unwrap();
    bench.blobs.blobs().delete_blob(&sent, None).await.unwrap();
    bench.storage.batch("b").await.unwrap().then(&work("join")).await.unwrap();
    let ids: Vec<_> = bench.messages("work").iter().map(|message| message["id"].clone()).collect();
    assert_eq!(ids.len(), 2, "{ids:?}");
}

// Two programs that name no source take ids from tables of their own.
#[tokio::test]
async fn jobs_of_two_sources_under_one_id_are_two_messages() {
    let bench = Bench::with(json!({ "RequiresDuplicateDetection": true }), &[]);
    let queue = bench.storage.queue::<Work>().await.unwrap();
    for source in ["/jobqueue/shop", "/jobqueue/billing", "/jobqueue/shop"] {
        queue.send(&work(source)).id("17").source(source).await.unwrap();
    }
    assert_eq!(bench.count("active"), 2);
}

#[tokio::test]
async fn a_message_of_others_is_put_back_into_its_session() {
    let bench = Bench::of_sessions();
    let event = json!({ "specversion": "1.0", "id": "1", "source": "urn:other", "type": "work", "data": { "name": "x" } });
    bench.put_in("a", &event.to_string()).await;
    let queue = bench.storage.queue::<Work>().await.unwrap();
    let delivery = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    delivery.dead_letter(Reason::REJECTED, "not yet").await.unwrap();
    bench.put_in("b", "no event").await;
    let handler = |_: Work| async { Ok::<(), JobError>(()) };
    while bench.count("active") > 0 {
        let worker = Worker::builder(bench.another()).handle(handler).build().unwrap();
        let _ = worker.run_until_idle().await.unwrap();
    }
    let report = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(report.moved.len(), 2, "{report:?}");
    let mut sessions: Vec<_> = bench
        .messages("work")
        .iter()
        .map(|message| message["session"].as_str().unwrap().to_owned())
        .collect();
    sessions.sort();
    assert_eq!(sessions, ["a", "b"]);
}

#[tokio::test]
async fn a_redrive_whose_answer_was_lost_is_one_message() {
    let bench = Bench::with(json!({ "RequiresDuplicateDetection": true }), &[]);
    let queue = bench.storage.queue::<Work>().await.unwrap();
    queue.send(&work("bad")).id("1").await.unwrap();
    queue.receive(Duration::ZERO).await.unwrap().unwrap().dead_letter(Reason::REJECTED, "bad").await.unwrap();
    let faulty = Faulty::new(&bench.another());
    faulty.plan(Operation::Put, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    let queue = faulty.storage().queue::<Work>().await.unwrap();
    let report = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(report.moved, ["1"]);
    assert_eq!(bench.count("active"), 1);
}

// The service takes at most 128 characters.
#[tokio::test]
async fn a_long_id_of_a_job_makes_a_short_message_id() {
    let bench = Bench::new();
    let queue = bench.storage.queue::<Work>().await.unwrap();
    let id = "x".repeat(300);
    queue.send(&work("long")).id(&id).await.unwrap();
    assert!(bench.messages("work")[0]["id"].as_str().unwrap().len() <= 128);
    let delivery = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(&*delivery.info().id, id);
}

#[tokio::test]
async fn messages_are_named_as_the_vectors_of_the_wire_format_say() {
    let vectors: Vec<Value> = serde_json::from_str(include_str!("../../../docs/wire-vectors.json")).unwrap();
    for vector in vectors.iter().filter(|vector| vector.get("service_bus").is_some()) {
        let bench = Bench::of_sessions();
        let queue = bench.storage.queue::<Work>().await.unwrap();
        let work = work("a");
        let mut send = queue.send(&work).id(vector["sent"]["id"].as_str().unwrap());
        if let Some(source) = vector["sent"]["source"].as_str() {
            send = send.source(source);
        }
        if let Some(key) = vector["sent"]["key"].as_str() {
            send = send.key(key).in_order();
        }
        send.await.unwrap();
        let sent = &bench.messages("work")[0];
        assert_eq!(sent["id"], vector["service_bus"]["message_id"], "{vector}");
        assert_eq!(sent["session"], vector["service_bus"]["session"], "{vector}");
    }
}

#[tokio::test]
async fn an_operator_sees_who_waits_for_whom() {
    let bench = Bench::of_sessions();
    let queue = bench.storage.queue::<Work>().await.unwrap();
    for (id, key) in [("1", "a"), ("2", "b"), ("3", "a")] {
        queue.send(&work(id)).id(id).key(key).in_order().await.unwrap();
    }
    queue.send(&work("4")).id("4").key("a").await.unwrap();
    let running = queue.receive(Duration::from_secs(60)).await.unwrap().expect("a job");
    let groups = Admin::new(bench.another()).groups("work").await.unwrap();
    let seen: Vec<_> = groups
        .groups
        .iter()
        .map(|group| {
            let ids: Vec<_> = group.entries.iter().filter_map(|entry| entry.id.as_deref()).collect();
            (group.key.as_deref().unwrap(), ids)
        })
        .collect();
    assert_eq!(seen, [("a", vec!["1", "3"]), ("b", vec!["2"])]);
    drop(running);
}

// Each asked for the settings of the queue by itself, and was sent when its own answer came.
#[tokio::test]
async fn messages_that_are_put_together_over_a_new_link_keep_their_order() {
    let bench = Bench::of_sessions();
    bench.emulator.plant_with("http-get", "delay", json!({ "milliseconds": 300 }));
    let messages = ["1", "2"].map(|text| PutMessage::new(text).with_group("a".to_owned()));
    for put in bench.store().put_all(&bench.queue, messages.into()).await {
        put.unwrap();
    }
    assert_eq!(bench.next().await.text.as_deref(), Ok("1"));
}
