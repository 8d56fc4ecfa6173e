//! Jobs in order that another producer has put: their messages have no numbers by which the framework
//! distinguishes copies.

use std::time::Duration;

use jobqueue::Storage;
use jobqueue::storage::{Operation, PutMessage, StoreErrorKind};
use jobqueue_admin::{AccessLevel, Admin, RawSend};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::worker;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::order::records::{MINUTE, steps};
use crate::order::{Step, Watch, handle, logged, step};

/// Returns the event of a step of key `a` that runs for a minute, as another program writes it.
fn event(id: &str, number: u32) -> Value {
    let data = Step { millis: 60_000, ..step("a", number) };
    json!({
        "specversion": "1.0", "id": id, "source": "/other", "type": "step", "key": "a", "inorder": true, "data": data,
    })
}

async fn put(storage: &Storage, event: &Value) {
    let queue = steps(storage).await;
    storage.queues().put(queue.name(), PutMessage::new(event.to_string())).await.unwrap();
}

/// Runs a worker for half an hour. Asserts that steps 0 and 1 ran once each, one after the other.
async fn assert_run_in_order(storage: &Storage) {
    let watch = Watch::default();
    let worker = worker(storage).state(watch.clone()).concurrency(4).handle(handle).build().unwrap();
    let report = worker.run_until(sleep(MINUTE * 30)).await.unwrap();
    watch.assert_in_order_of("a", 2);
    assert_eq!(watch.begun("a"), [0, 1], "{report:?}");
    assert_eq!((report.completed, report.dead_lettered), (2, 0), "{report:?}");
    assert!(steps(storage).await.is_empty().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn two_messages_of_another_producers_job_run_one_after_the_other() {
    let storage = logged();
    // Its answer was lost, so the program puts it again.
    for event in [event("x", 0), event("x", 0), event("y", 1)] {
        put(&storage, &event).await;
    }
    assert_run_in_order(&storage).await;
}

/// Most of them have no position; each delivery of one is a write of its message.
#[tokio::test(start_paused = true)]
async fn many_jobs_of_another_producer_come_back_no_more_often_than_their_key_moves() {
    const JOBS: u32 = 300;
    let faulty = Faulty::new(&logged());
    let storage = faulty.storage();
    for number in 0..JOBS {
        put(&storage, &event(&number.to_string(), number)).await;
    }
    let watch = Watch::default();
    let worker = worker(&storage).state(watch.clone()).concurrency(4).handle(handle).build().unwrap();
    let report = worker.run_until(sleep(MINUTE * 20)).await.unwrap();
    assert!(report.completed >= 18, "{report:?}");
    let updates = faulty.calls_of(Operation::Update);
    println!("{updates} updates");
    assert!(updates < 12_000, "{updates} updates");
}

/// The text is that of a message, as an operator saves it before a queue is cleared.
#[tokio::test(start_paused = true)]
async fn event_that_is_sent_by_hand_and_its_repetition_are_two_messages() {
    let faulty = Faulty::new(&logged());
    let storage = faulty.storage();
    let queue = steps(&storage).await;
    let admin = Admin::builder(storage.clone()).access(AccessLevel::Operate).build();
    let mut first = event("x", 0);
    (first["fifocopy"], first["fifopage"]) = (json!("0123456789abcd"), json!("00000000000001"));
    faulty.plan(Operation::Put, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    for event in [first, event("y", 1)] {
        admin.send(queue.name().as_str(), RawSend::event(&event.to_string()).unwrap()).await.unwrap();
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(queue.approximate_len().await.unwrap(), 3, "the first event was stored twice");
    assert_run_in_order(&storage).await;
}
