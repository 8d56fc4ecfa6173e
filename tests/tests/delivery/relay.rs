//! Relays: the jobs of an outbox are forwarded to another storage, whatever fails on the way.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use jobqueue::clock::ManualClock;
use jobqueue::settings::Metadata;
use jobqueue::sqlite::rusqlite::{Connection, TransactionBehavior};
use jobqueue::storage::{Operation, PutMessage, StoreErrorKind};
use jobqueue::{Context, JobError, Queue, QueueMessage, Reason, Report, Storage, Worker, WorkerBuilder};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, payloads, runtime, task, worker};
use serde::{Deserialize, Serialize};

/// A message whose handler sends a task.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order")]
struct Order {}

/// A task whose payload does not fit into a message.
fn large(name: &str) -> Task {
    Task { name: name.into(), data: "x".repeat(100_000) }
}

async fn tasks(storage: &Storage) -> Queue<Task> {
    storage.queue().await.unwrap()
}

fn relay(outbox: &Storage, destination: &Storage) -> WorkerBuilder {
    worker(outbox).relay("tasks", destination)
}

async fn run(relay: WorkerBuilder, seconds: u64) -> Report {
    relay.build().unwrap().run_until(after(seconds)).await.unwrap()
}

/// Returns the texts of the messages in the queue.
async fn texts(storage: &Storage) -> Vec<String> {
    let peeked = storage.queues().peek(&"tasks".parse().unwrap(), 32).await.unwrap();
    peeked.into_iter().map(|message| message.text.unwrap()).collect()
}

/// Runs the jobs of a storage; returns the ids in the order of their runs, and the names of the tasks.
async fn ran(storage: &Storage) -> Vec<(String, String)> {
    let log = Arc::new(Mutex::new(Vec::new()));
    let runs = Arc::clone(&log);
    let handler = move |task: Task, context: Context| {
        runs.lock().unwrap().push((context.info().id.to_string(), task.name));
        async { Ok::<_, JobError>(()) }
    };
    let _ = run(worker(storage).handle(handler), 300).await;
    std::mem::take(&mut *log.lock().unwrap())
}

// I19
#[tokio::test]
async fn committed_job_arrives_as_it_was_sent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let outbox = Storage::connect(&format!("sqlite:{}", path.display())).await.unwrap();
    let destination = Storage::memory();
    let (sending, arrived) = (tasks(&outbox).await, tasks(&destination).await);
    let mut connection = Connection::open(&path).unwrap();
    for (name, commits) in [("never", false), ("small", true)] {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let message = task(name);
        let send =
            sending.send(&message).header("tenant", "blue").source("/shop").ttl(Duration::from_secs(600));
        send.in_sqlite(&transaction).unwrap();
        if commits {
            transaction.commit().unwrap();
        }
    }
    let sent = texts(&outbox).await;
    let forward = || Worker::builder(outbox.clone()).relay("tasks", &destination).build().unwrap();
    assert_eq!(forward().run_until_idle().await.unwrap().completed, 1);
    assert_eq!(texts(&destination).await, sent, "the text is the same");
    let found = arrived.receive(Duration::ZERO).await.unwrap().unwrap();
    assert!(found.info().expires.is_some() && found.message().name == "small", "{:?}", found.info());
    found.complete().await.unwrap();

    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let sent = sending.send(&large("large")).in_sqlite(&transaction).unwrap();
    transaction.commit().unwrap();
    assert_eq!(forward().run_until_idle().await.unwrap().completed, 1);
    assert_eq!((payloads(&outbox).await, payloads(&destination).await), (0, 1));
    let found = arrived.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!((found.message(), &*found.info().id), (&large("large"), sent.id()));
    found.complete().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn delay_is_waited_for_and_the_time_to_live_goes_on() {
    let (outbox, destination) = (in_memory(), in_memory());
    let arrived = tasks(&destination).await;
    let sending = tasks(&outbox).await;
    let week = Duration::from_secs(8 * 86_400);
    sending.send(&task("later")).delay(week).ttl(week * 2).await.unwrap();
    assert_eq!(run(relay(&outbox, &destination), 7 * 86_400).await.completed, 0);
    assert_eq!(run(relay(&outbox, &destination), 2 * 86_400).await.completed, 1);
    let found = arrived.receive(Duration::ZERO).await.unwrap().unwrap();
    let left = found.info().expires.unwrap().duration_since(found.info().sent.unwrap()).unwrap();
    assert!(left.abs_diff(week * 2) < Duration::from_secs(2), "{left:?}");
    found.complete().await.unwrap();
}

/// The attributes of the order are none of the sender's.
#[tokio::test(start_paused = true)]
async fn job_with_all_headers_that_a_send_takes_is_forwarded() {
    let (outbox, destination) = (in_memory(), in_memory());
    let (sending, _arrived, message) = (tasks(&outbox).await, tasks(&destination).await, task("a"));
    let send = sending.send(&message).key("ada").in_order();
    (0..200).fold(send, |send, n| send.header(format!("h{n}"), "1")).await.unwrap();
    assert_eq!(run(relay(&outbox, &destination), 60).await.completed, 1);
    assert_eq!(texts(&destination).await.len(), 1);
}

// AU20-3: it was acknowledged, deleted here and unread there.
#[tokio::test(start_paused = true)]
async fn event_with_all_attributes_of_a_producer_passes_a_relay() {
    let (outbox, destination) = (in_memory(), in_memory());
    let (_sending, _arrived) = (tasks(&outbox).await, tasks(&destination).await);
    let mut event = serde_json::json!({
        "specversion": "1.0", "id": "1", "source": "/s", "type": "task", "key": "ada", "inorder": "true",
        "data": { "name": "a" }
    });
    (0..256).for_each(|number| event[format!("a{number}")] = "1".into());
    let put = PutMessage::new(event.to_string());
    outbox.queues().put(&"tasks".parse().unwrap(), put).await.unwrap();
    assert_eq!(run(relay(&outbox, &destination), 60).await.completed, 1);
    assert_eq!(ran(&destination).await.len(), 1);
}

/// A storage can give each message an end, whatever its sender has set.
#[tokio::test(start_paused = true)]
async fn job_in_order_is_forwarded_from_a_queue_whose_messages_expire() {
    let (sender, outbox, destination) = (in_memory(), in_memory(), in_memory());
    let (queue, arrived) = ("tasks".parse().unwrap(), tasks(&destination).await);
    tasks(&sender).await.send(&task("a")).key("ada").in_order().await.unwrap();
    let _ = tasks(&outbox).await;
    for text in texts(&sender).await {
        let mut message = PutMessage::new(text);
        message.ttl = Some(Duration::from_secs(14 * 86_400));
        outbox.queues().put(&queue, message).await.unwrap();
    }
    let report = run(relay(&outbox, &destination), 10).await;
    assert_eq!((report.completed, report.dead_lettered), (1, 0), "{report:?}");
    let found = arrived.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(found.info().key.as_deref(), Some("ada"));
    found.complete().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn clock_of_the_relay_shortens_no_time_to_live() {
    let (outbox, destination) = (in_memory(), in_memory());
    let arrived = tasks(&destination).await;
    let life = Duration::from_secs(600);
    tasks(&outbox).await.send(&task("a")).ttl(life).await.unwrap();
    let ahead = Arc::new(ManualClock::at(SystemTime::now() + Duration::from_secs(3_600)));
    // Another handle, which has opened no queue yet: an open one keeps its clock.
    let stores = (Arc::clone(outbox.queues().store()), Arc::clone(outbox.blobs()));
    let ahead = Storage::new(stores.0, stores.1, "outbox").with_runtime(runtime().with_clock(ahead));
    assert_eq!(run(relay(&ahead, &destination), 10).await.completed, 1);
    let found = arrived.receive(Duration::ZERO).await.unwrap().unwrap();
    let left = found.info().expires.unwrap().duration_since(found.info().sent.unwrap()).unwrap();
    assert!(left.abs_diff(life) < Duration::from_secs(20), "{left:?}");
    found.complete().await.unwrap();
}

/// A fault of one of the storages.
#[derive(Debug, Clone, Copy)]
enum At {
    Outbox(Operation, Fault),
    Destination(Operation, Fault),
}

/// Forwards three jobs, of which one is large. The fault comes with the first request that it fits, and then
/// the relay is killed if `is_killed`. Another relay goes on.
async fn forward_with(fault: At, is_killed: bool) {
    let (outbox, destination) = (Faulty::new(&in_memory()), Faulty::new(&in_memory()));
    let (sending, _) = (tasks(&outbox.storage()).await, tasks(&destination.storage()).await);
    let mut sent = BTreeSet::new();
    for message in [task("a"), large("b"), task("c")] {
        let id = sending.send(&message).await.unwrap().id().to_owned();
        sent.insert((id, message.name));
    }
    match fault {
        At::Outbox(operation, fault) => outbox.plan(operation, 1, fault),
        At::Destination(operation, fault) => destination.plan(operation, 1, fault),
    }
    let first = relay(&outbox.storage(), &destination.storage()).build().unwrap();
    if is_killed {
        let killed = tokio::time::timeout(Duration::from_secs(10), first.run_until(std::future::pending()));
        killed.await.unwrap_err();
    } else {
        let report = first.run_until(after(300)).await.unwrap();
        assert_eq!((report.dead_lettered, report.retried), (0, 0), "{fault:?}: {report:?}");
    }
    outbox.heal();
    destination.heal();
    let report = run(relay(&outbox.storage(), &destination.storage()), 600).await;
    assert_eq!(report.dead_lettered, 0, "{fault:?}: {report:?}");
    assert!(sending.is_empty().await.unwrap(), "{fault:?}");
    let arrived: BTreeSet<_> = ran(&destination.storage()).await.into_iter().collect();
    assert_eq!(arrived, sent, "{fault:?}");
}

// audit 23, sending B4
#[tokio::test(start_paused = true)]
async fn relay_writes_the_encoding_that_its_destination_has_now() {
    let (outbox, destination) = (in_memory(), in_memory());
    let (sending, _) = (tasks(&outbox).await, tasks(&destination).await);
    sending.send(&task("before")).await.unwrap();
    let setting = async {
        after(60).await;
        let metadata = Metadata::new().with("messageencoding", "base64");
        destination.queues().set_queue_metadata(&"tasks".parse().unwrap(), &metadata).await.unwrap();
        after(60).await;
        sending.send(&task("after")).await.unwrap();
        after(60).await;
    };
    let _ = relay(&outbox, &destination).build().unwrap().run_until(setting).await.unwrap();
    let texts = texts(&destination).await;
    assert!(texts[0].starts_with('{'), "{texts:?}");
    assert!(!texts[1].starts_with('{'), "{texts:?}");
}

// audit 23, sending C1
#[tokio::test(start_paused = true)]
async fn relay_forwards_as_much_as_it_may_read() {
    let (outbox, destination) = (in_memory(), in_memory());
    let arrived = tasks(&destination).await;
    let _ = (tasks(&outbox).await, outbox.queue::<Order>().await.unwrap().send(&Order {}).await.unwrap());
    let handler = async |_: Order, context: Context| {
        let huge = Task { name: "huge".into(), data: "x".repeat(33 << 20) };
        context.queue::<Task>().await?.send(&huge).await?;
        Ok::<_, JobError>(())
    };
    assert_eq!(run(worker(&outbox).max_payload_bytes(64 << 20).handle(handler), 60).await.completed, 1);
    let report = run(relay(&outbox, &destination).max_payload_bytes(64 << 20), 60).await;
    assert_eq!(report.completed, 1, "{report:?}");
    assert_eq!(arrived.approximate_len().await.unwrap(), 1);
}

// I1
#[tokio::test(start_paused = true)]
async fn lost_answers_lose_no_job() {
    use Operation::{CreateContainer, DeleteAll, DeleteBlob, Get, GetBlob, Put, PutBlob};
    for lost in [Fault::DropAnswer(StoreErrorKind::Timeout), Fault::LoseRequest(StoreErrorKind::Timeout)] {
        for operation in [Put, PutBlob, CreateContainer] {
            forward_with(At::Destination(operation, lost), false).await;
        }
        for operation in [Get, GetBlob, DeleteAll, DeleteBlob] {
            forward_with(At::Outbox(operation, lost), false).await;
        }
    }
}

// I1
#[tokio::test(start_paused = true)]
async fn relay_that_is_killed_at_any_request_loses_no_job() {
    use Operation::{CreateContainer, DeleteAll, DeleteBlob, Get, GetBlob, Put, PutBlob};
    for hangs in [Fault::Hang, Fault::HangAfter] {
        for operation in [Put, PutBlob, CreateContainer] {
            forward_with(At::Destination(operation, hangs), true).await;
        }
        for operation in [Get, GetBlob, DeleteAll, DeleteBlob] {
            forward_with(At::Outbox(operation, hangs), true).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn keys_keep_their_order_through_an_outage() {
    let (outbox, destination) = (in_memory(), Faulty::new(&in_memory()));
    let (sending, _) = (tasks(&outbox).await, tasks(&destination.storage()).await);
    let mut sent = Vec::new();
    for number in 0..10 {
        let step = Task { name: "key".into(), data: number.to_string() };
        sent.push(sending.send(&step).in_order().await.unwrap().id().to_owned());
    }
    destination.plan(Operation::Put, 3, Fault::DropAnswer(StoreErrorKind::Timeout));
    destination.plan(Operation::Put, 6, Fault::Refuse(StoreErrorKind::Unavailable));
    let pair = tokio::join!(
        run(relay(&outbox, &destination.storage()), 900),
        run(relay(&outbox, &destination.storage()), 900)
    );
    assert_eq!(pair.0.completed + pair.1.completed, 10, "{pair:?}");
    let arrived: Vec<_> = ran(&destination.storage()).await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(arrived, sent);
}

#[tokio::test(start_paused = true)]
async fn outage_of_the_destination_costs_no_attempt() {
    let (outbox, destination) = (in_memory(), Faulty::new(&in_memory()));
    let (sending, arrived) = (tasks(&outbox).await, tasks(&destination.storage()).await);
    for name in ["a", "b"] {
        sending.send(&task(name)).await.unwrap();
    }
    for kind in [StoreErrorKind::Unavailable, StoreErrorKind::Timeout] {
        for operation in [Operation::Put, Operation::QueueProperties] {
            destination.plan_always(operation, Fault::Refuse(kind));
        }
        let report = run(relay(&outbox, &destination.storage()), 6 * 3_600).await;
        assert_eq!((report.completed, report.retried, report.dead_lettered), (0, 0, 0), "{report:?}");
        destination.heal();
    }
    assert_eq!(run(relay(&outbox, &destination.storage()), 120).await.completed, 2);
    assert_eq!(arrived.approximate_len().await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_forwarded_becomes_a_dead_letter() {
    let (outbox, destination) = (in_memory(), Faulty::new(&in_memory()));
    let (sending, arrived) = (tasks(&outbox).await, tasks(&destination.storage()).await);
    destination.plan(Operation::Put, 1, Fault::Refuse(StoreErrorKind::TooLarge));
    let too_large = sending.send(&task("too large")).await.unwrap();
    assert_eq!(run(relay(&outbox, &destination.storage()), 10).await.dead_lettered, 1);
    outbox.batch("night").await.unwrap().send(&task("child")).await.unwrap();
    sending.send(&task("good")).await.unwrap();
    let report = run(relay(&outbox, &destination.storage()), 60).await;
    assert_eq!((report.completed, report.dead_lettered), (1, 1), "{report:?}");
    let letters = sending.dead_letters().unwrap().list().await.unwrap().letters;
    assert!(letters.iter().all(|letter| letter.reason == Reason::NOT_FORWARDED), "{letters:?}");
    assert!(letters.iter().any(|letter| letter.id == too_large.id()), "{letters:?}");
    assert_eq!(arrived.approximate_len().await.unwrap(), 1);

    // A queue that is missing may come.
    let elsewhere = in_memory();
    sending.send(&task("no queue")).await.unwrap();
    let report = run(relay(&outbox, &elsewhere), 600).await;
    assert_eq!((report.retried, report.dead_lettered), (4, 1), "{report:?}");
}

#[tokio::test]
async fn relay_to_its_own_storage_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("sqlite:{}", folder.path().join("app.db").display());
    let (one, again) = (Storage::connect(&path).await.unwrap(), Storage::connect(&path).await.unwrap());
    for (outbox, destination) in [(&one, &again), (&one, &one)] {
        let error = Worker::builder(outbox.clone()).relay("tasks", destination).build().unwrap_err();
        assert!(error.to_string().contains("to itself"), "{error}");
    }
}

/// Both queues have one name, and so one record of each job that is done, one place of payloads and one log
/// of each key.
// audit 13, C13-2
#[tokio::test]
async fn relay_between_storages_that_share_blobs_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("sqlite:{}", folder.path().join("app.db").display());
    let other = "DefaultEndpointsProtocol=https;AccountName=other;AccountKey=b3RoZXI=";
    let other = Storage::connect(other).await.unwrap();
    for text in [&*path, "UseDevelopmentStorage=true"] {
        let (outbox, again) = (Storage::connect(text).await.unwrap(), Storage::connect(text).await.unwrap());
        for (blobs, is_refused) in [(&outbox, true), (&again, true), (&other, false), (&in_memory(), false)] {
            let queues = in_memory();
            let destination = queues.with_blobs_of(blobs);
            let error = relay(&outbox, &destination).build().err().map(|error| error.to_string());
            assert_eq!(error.is_some(), is_refused, "{text} {blobs:?}: {error:?}");
            assert!(error.is_none_or(|error| error.contains("the same blobs")));
        }
    }
    // Blobs without an address or a database, below the wrappers of each storage.
    let outbox = in_memory();
    let destination = in_memory().with_blobs_of(&outbox);
    let error = relay(&outbox, &destination).build().unwrap_err().to_string();
    assert!(error.contains("the same blobs"), "{error}");
}

// review 23, coordsend B2
#[tokio::test(start_paused = true)]
async fn relay_names_the_version_that_its_queue_has() {
    let (outbox, destination) = (in_memory(), in_memory());
    let _ = (tasks(&outbox).await, tasks(&destination).await);
    let queue = "tasks".parse().unwrap();
    let version = Metadata::new().with("rawversion", "1");
    outbox.queues().set_queue_metadata(&queue, &version).await.unwrap();
    let text = r#"{"specversion":"1.0","id":"1","source":"/a","type":"task","data":{"name":"a","data":""}}"#;
    outbox.queues().put(&queue, PutMessage::new(text)).await.unwrap();
    let _ = run(relay(&outbox, &destination), 60).await;
    assert!(texts(&destination).await[0].contains(r#""schemaversion":1"#));
}
