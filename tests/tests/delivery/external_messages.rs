//! Messages that no handler of the worker can read, and those of other programs.

use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::{JobError, QueueMessage, Storage};
use serde::{Deserialize, Serialize};

use super::end_to_end::{Order, order, worker};

// I13
#[tokio::test(start_paused = true)]
async fn undecodable_message_is_dead_lettered_byte_for_byte() {
    let storage = Storage::memory();
    let orders = storage.queue::<Order>().await.unwrap();
    let unreadable = ["not json {", r#"{"specversion":"1.0"}"#, "\u{20ac}"];
    // JSON of a program that knows no events: not valid, and without a field.
    let bare = [r#"{ "id":"x","count":  0 }"#, r#"{"id":"x","rate":1.50e0}"#];
    for text in unreadable.into_iter().chain(bare) {
        storage.queues().put(orders.name(), jobqueue::storage::PutMessage::new(text)).await.unwrap();
    }
    orders.send(&order("good")).await.unwrap();
    let handler = |_: Order| async move { Ok::<(), JobError>(()) };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(report.dead_lettered, 5);
    let dead = orders.dead_letters().unwrap();
    let mut reasons: Vec<_> = dead.peek().await.unwrap().into_iter().map(|letter| letter.reason).collect();
    reasons.sort();
    assert_eq!(reasons, ["decode_error", "decode_error", "decode_error", "decode_error", "invalid"]);
    let _ = dead.redrive(DeadLetterOptions::new()).await.unwrap();
    let back = storage.queues().peek(orders.name(), 32).await.unwrap();
    let back: Vec<String> = back.into_iter().map(|message| message.text.unwrap()).collect();
    assert_eq!(back.len(), 5);
    for text in unreadable {
        assert!(back.iter().any(|b| b == text), "{text}: {back:?}");
    }
    // These two have become events by now, which carry their past; the payload is untouched.
    for text in bare {
        let data = format!("\"data\":{text}");
        assert!(back.iter().any(|b| b.contains(&data)), "{text}: {back:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn raw_json_of_an_external_producer_is_a_job() {
    let storage = Storage::memory();
    let orders = storage.queue::<Order>().await.unwrap();
    let text = r#"{"id":"x","count":2,"$AzureWebJobsParentId":"p"}"#;
    storage.queues().put(orders.name(), jobqueue::storage::PutMessage::new(text)).await.unwrap();
    let handler = |order: Order| async move {
        assert_eq!(order.count, 2);
        Ok::<(), JobError>(())
    };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
}

// It was put back for a day, as a kind that a newer worker may know.
#[tokio::test(start_paused = true)]
async fn redriven_raw_payload_is_refused_at_once_by_a_queue_of_two_types() {
    #[derive(Serialize, Deserialize, QueueMessage)]
    #[message(queue = "orders", kind = "order.new")]
    struct New {}
    let storage = Storage::memory();
    let orders = storage.queue::<Order>().await.unwrap();
    // As a redrive puts it back that knows the id of the message.
    let text = r#"{"specversion":"1.0","id":"5","source":"/jobqueue/external","type":"jobqueue.raw","data":{"id":"x","count":2}}"#;
    storage.queues().put(orders.name(), jobqueue::storage::PutMessage::new(text)).await.unwrap();
    let (old, new) = (|_: Order| async { Ok::<(), JobError>(()) }, |_: New| async { Ok::<(), JobError>(()) });
    let report = worker(&storage).handle(old).handle(new).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.dead_lettered, 1, "{report:?}");
    assert_eq!(orders.dead_letters().unwrap().peek().await.unwrap()[0].reason, "decode_error");
}

// F96
#[tokio::test(start_paused = true)]
async fn unknown_kind_is_left_to_newer_workers() {
    #[derive(Serialize, Deserialize, QueueMessage)]
    #[message(queue = "orders", kind = "order.new")]
    struct New {}
    let storage = Storage::memory();
    let orders = storage.queue::<Order>().await.unwrap();
    storage.queue::<New>().await.unwrap().send(&New {}).await.unwrap();
    let handler = |_: Order| async move { Ok::<(), JobError>(()) };
    let worker = worker(&storage).handle(handler).build().unwrap();
    let report = worker.run_until(tokio::time::sleep(Duration::from_secs(3600))).await.unwrap();
    assert!(report.released > 10 && report.dead_lettered == 0, "{report:?}");
    assert_eq!(orders.approximate_len().await.unwrap(), 1);
}
