//! The request by which a message is sent: each option has its effect, and nothing is sent before it is
//! awaited.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::clock::Clock;
use jobqueue::queue::SendUniqueOutcome;
use jobqueue::storage::{Operation, StoreError, StoreErrorKind};
use jobqueue::{ErrorKind, JobError, JobInfo, Queue, SendOptions, Storage, sqlite};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, clock, in_memory, task, worker};

const MINUTE: Duration = Duration::from_secs(60);

async fn tasks(storage: &Storage) -> Queue<Task> {
    storage.queue().await.unwrap()
}

/// Runs what is visible within `seconds`, and returns what the handler was told, in order.
async fn run(storage: &Storage, seconds: u64) -> Vec<(String, JobInfo)> {
    let seen: Arc<Mutex<Vec<(String, JobInfo)>>> = Arc::default();
    let sink = Arc::clone(&seen);
    let handler = move |task: Task, info: JobInfo| {
        sink.lock().unwrap().push((task.name, info));
        async { Ok::<_, JobError>(()) }
    };
    let _ = worker(storage).handle(handler).build().unwrap().run_until(after(seconds)).await.unwrap();
    seen.lock().unwrap().clone()
}

async fn run_one(storage: &Storage, seconds: u64) -> JobInfo {
    let mut seen = run(storage, seconds).await;
    assert_eq!(seen.len(), 1);
    seen.remove(0).1
}

#[tokio::test(start_paused = true)]
async fn a_send_that_is_not_awaited_stores_nothing() {
    let storage = in_memory();
    let queue = tasks(&storage).await;
    let one = task("a");
    drop(queue.send(&one));
    drop(queue.send(&one).unique_for(MINUTE));
    drop(queue.send_all([&one]));
    drop(queue.send(&one).into_future());
    assert!(queue.is_empty().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn id_key_source_and_headers_reach_the_handler() {
    let storage = in_memory();
    let queue = tasks(&storage).await;
    let sent =
        queue.send(&task("a")).id("one").key("k").source("/shop").header("tenant", "blue").await.unwrap();
    assert_eq!(sent.id(), "one");
    let info = run_one(&storage, 1).await;
    assert_eq!(&*info.id, "one");
    assert_eq!(info.key.as_deref(), Some("k"));
    assert_eq!(&*info.source, "/shop");
    assert_eq!(info.headers.get("tenant").map(String::as_str), Some("blue"));
    assert!(info.sent.is_some_and(|time| time <= clock().now()));
}

#[tokio::test(start_paused = true)]
async fn delay_and_at_hide_the_message() {
    let storage = in_memory();
    let queue = tasks(&storage).await;
    let _ = queue.send(&task("delay")).delay(MINUTE).await.unwrap();
    let _ = queue.send(&task("at")).at(clock().now() + MINUTE * 2).await.unwrap();
    assert!(run(&storage, 50).await.is_empty());
    assert_eq!(run(&storage, 20).await[0].0, "delay");
    assert_eq!(run(&storage, 60).await[0].0, "at");
    let both = queue.send(&task("both")).delay(MINUTE).at(clock().now()).await.unwrap_err();
    assert_eq!(both.kind(), ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn a_time_to_live_removes_the_message() {
    let storage = in_memory();
    let queue = tasks(&storage).await;
    let _ = queue.send(&task("a")).ttl(MINUTE).await.unwrap();
    tokio::time::advance(MINUTE * 2).await;
    assert!(run(&storage, 1).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn later_options_replace_earlier_ones_and_headers_add_up() {
    let storage = in_memory();
    let queue = tasks(&storage).await;
    let data = SendOptions::new().at(clock().now()).id("data").header("b", "2");
    let _ = queue
        .send(&task("a"))
        .delay(MINUTE * 9)
        .id("first")
        .key("k")
        .header("a", "1")
        .with(data)
        .await
        .unwrap();
    let info = run_one(&storage, 1).await;
    assert_eq!(&*info.id, "data");
    assert_eq!(info.key.as_deref(), Some("k"));
    let headers: Vec<_> = info.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(headers, [("a", "1"), ("b", "2")]);
}

#[tokio::test(start_paused = true)]
async fn in_order_holds_back_the_next_of_its_key() {
    let storage = in_memory();
    let queue = tasks(&storage).await;
    let _ = queue.send(&task("first")).key("k").delay(MINUTE).in_order().await.unwrap();
    let _ = queue.send(&task("second")).key("k").in_order().await.unwrap();
    assert!(run(&storage, 30).await.is_empty());
    let names: Vec<_> = run(&storage, 600).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["first", "second"]);
}

#[tokio::test(start_paused = true)]
async fn of_two_unique_sends_the_second_joins() {
    let storage = in_memory();
    let queue = tasks(&storage).await;
    let report = task("a");
    let first = queue.send(&report).unique_for(MINUTE).id("one").delay(MINUTE).await.unwrap();
    assert!(first.is_sent());
    let second = queue.send(&report).header("tenant", "blue").unique_for(MINUTE).await.unwrap();
    assert!(matches!(&second, SendUniqueOutcome::Joined { id, .. } if id == "one"), "{second:?}");
    assert!(queue.send(&report).key("other").unique_for(MINUTE).await.unwrap().is_sent());
    assert_eq!(queue.approximate_len().await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn when_below_waits_for_room() {
    let storage = in_memory();
    let queue = tasks(&storage).await;
    let first = queue.send(&task("a")).when_below(1).await.unwrap();
    let second = task("b");
    let mut waiting = queue.send(&second).when_below(1).into_future();
    assert!(tokio::time::timeout(MINUTE, &mut waiting).await.is_err());
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
    assert!(queue.cancel(&first).await.unwrap());
    let _ = waiting.await.unwrap();
}

// audit 13, C13-6
#[tokio::test(start_paused = true)]
async fn send_whose_queue_cannot_be_measured_is_rejected() {
    let faulty = Faulty::new(&in_memory());
    let queue = tasks(&faulty.storage()).await;
    faulty.plan_always(Operation::QueueProperties, Fault::Refuse(StoreErrorKind::Unauthorized));
    let message = task("a");
    let one = queue.send(&message).when_below(5).await.unwrap_err();
    let unique = queue.send(&message).unique_for(MINUTE).when_below(5).await.unwrap_err();
    let all = queue.send_all([task("b")]).when_below(5).await.unwrap_err();
    for error in [one, unique, all] {
        assert!(error.is_rejected() && !error.is_retryable(), "{error:?}");
        assert!(StoreError::in_chain(&error).is_some(), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn many_share_options_unless_they_have_their_own() {
    let storage = in_memory();
    let queue = tasks(&storage).await;
    let list =
        [(task("a"), SendOptions::new()), (task("b"), SendOptions::new().id("b").header("tenant", "red"))];
    let answers = queue.send_all(list).header("tenant", "blue").header("batch", "1").await.unwrap();
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(answers[1].as_ref().unwrap().id(), "b");
    let tenants: Vec<_> =
        run(&storage, 1).await.iter().map(|(_, info)| info.headers["tenant"].clone()).collect();
    assert_eq!(tenants.len(), 2);
    assert!(tenants.contains(&"blue".to_owned()) && tenants.contains(&"red".to_owned()), "{tenants:?}");
}

#[tokio::test(start_paused = true)]
async fn an_id_for_many_messages_is_refused() {
    let storage = in_memory();
    let queue = tasks(&storage).await;
    let error = queue.send_all([task("a")]).with(SendOptions::new().id("one")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(queue.is_empty().await.unwrap());
}

#[tokio::test]
async fn a_transaction_refuses_what_it_cannot_keep() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = Storage::open(sqlite::Options::new(&path)).await.unwrap();
    let queue: Queue<Task> = storage.queue().await.unwrap();
    let mut connection = rusqlite::Connection::open(&path).unwrap();
    let behavior = rusqlite::TransactionBehavior::Immediate;
    let transaction = connection.transaction_with_behavior(behavior).unwrap();
    let one = task("a");
    let refused = queue.send(&one).when_below(9).in_sqlite(&transaction);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    let sent = queue.send(&one).id("one").delay(MINUTE).in_sqlite(&transaction).unwrap();
    assert_eq!(sent.id(), "one");
    transaction.commit().unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
}

/// The future owns what it sends, so that a send can be a task of its own.
#[tokio::test(start_paused = true)]
async fn a_send_can_be_spawned() {
    let storage = in_memory();
    let queue = tasks(&storage).await;
    let spawned = tokio::spawn(queue.send(&task("a")).into_future());
    let _ = spawned.await.unwrap().unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
}

#[tokio::test]
async fn refused_send_returns_the_broken_rules() {
    #[derive(serde::Serialize, serde::Deserialize, jobqueue::QueueMessage)]
    #[message(queue = "mails", kind = "mail")]
    struct Mail {
        #[message(non_empty)]
        to: String,
    }
    let mails = in_memory().queue::<Mail>().await.unwrap();
    let refused = mails.send(&Mail { to: String::new() }).await.unwrap_err();
    let broken: Vec<_> = refused.violations().unwrap().iter().map(|one| (one.path(), one.rule())).collect();
    assert_eq!(broken, [("to", "non_empty")]);
    let good = Mail { to: "ada".into() };
    let other = mails.send(&good).ttl(Duration::ZERO).await.unwrap_err();
    assert!(other.violations().is_none(), "{other:?}");
}
