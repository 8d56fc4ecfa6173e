//! Queues that are deleted while a program runs, and made anew with or without sessions.

use std::time::Duration;

use jobqueue::storage::{Metadata, PutMessage, UpdateMessage};
use jobqueue::{JobError, Queue, QueueName, Worker};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::forged::SEND;
use super::jobs::{Work, work};
use super::sessions::text;
use super::{Bench, MINUTE, python};

impl Bench {
    async fn make_anew(&self, requires_session: bool) {
        self.another().queues().delete_queue(&self.queue).await.unwrap();
        let settings = json!({ "RequiresSession": requires_session, "MaxDeliveryCount": 2000 });
        self.emulator.create_queue("work", settings);
    }

    /// Sends in order until that succeeds or fails for good.
    async fn send_in_order(&self, queue: &Queue<Work>, name: &str) -> Result<(), jobqueue::Error> {
        loop {
            match queue.send(&work(name)).key("a").in_order().await {
                Err(error) if error.is_retryable() => {}
                // Its link says only now that the former queue is gone.
                Err(error) if format!("{error:?}").contains("does not exist") => {}
                sent => return sent.map(drop),
            }
        }
    }
}

// The deletion of the former queue removed the settings of the new one.
#[tokio::test]
async fn settings_of_a_queue_that_is_created_anew_survive_a_slow_deletion() {
    let limited =
        |limit: &str| Metadata::from_iter([(Metadata::MAX_DELIVERIES.to_owned(), limit.to_owned())]);
    for after in ["7", "9"] {
        let bench = Bench::new();
        let queue = QueueName::new("anew").unwrap();
        bench.store().create_queue(&queue, &limited("7")).await.unwrap();
        let fault = bench.emulator.plant("http-delete", "hold");
        let (storage, deleted) = (bench.storage.clone(), queue.clone());
        let deleting = tokio::spawn(async move { storage.queues().delete_queue(&deleted).await });
        while fault.hits() == 0 {
            sleep(Duration::from_millis(10)).await;
        }
        let another = bench.another();
        another.queues().create_queue(&queue, &limited(after)).await.unwrap();
        fault.release();
        deleting.await.unwrap().unwrap();
        let properties = another.queues().queue_properties(&queue).await.unwrap();
        assert_eq!(properties.metadata, limited(after));
    }
}

// It had its number as its id, and the first message of the new queue has the same: it came with the text
// that was saved for the other one.
#[tokio::test]
async fn message_of_a_queue_that_is_created_anew_has_nothing_of_one_before() {
    let bench = Bench::new();
    // An id has the form that the wire format asks for: the source, a space and the id.
    let put_by_others = |text: &str| {
        python::run(bench.emulator.connection_string(), SEND, &["{}", text, &format!("/shop {text}")]);
    };
    put_by_others("before");
    let before = bench.get().await.unwrap();
    let checkpoint = UpdateMessage::new(MINUTE).with_text("checkpoint".to_owned());
    bench.update(&before.message, checkpoint).await.unwrap();
    bench.make_anew(false).await;
    put_by_others("after");
    let after = bench.get_from(&bench.another()).await.unwrap();
    assert_eq!(after.text.as_deref(), Ok("after"));
    assert_eq!(after.dequeue_count, 1);
    // Records of effects have the id of a job that is no event.
    assert_ne!(after.message.id, before.message.id);
}

// The lock was asked for again each second, and the handler went on.
#[tokio::test]
async fn handler_of_a_queue_that_was_deleted_loses_its_lease() {
    let bench = Bench::new();
    let leased = bench.leased("job").await;
    let revoked = bench.store().lease_revoked(&bench.queue, &leased.message).unwrap();
    bench.another().queues().delete_queue(&bench.queue).await.unwrap();
    timeout(MINUTE, revoked).await.expect("the lease goes on");
}

// Without sessions, nobody would keep the order that the program relies on.
#[tokio::test]
async fn an_order_that_sessions_kept_is_not_lost_without_a_word() {
    let bench = Bench::of_sessions();
    let queue = bench.storage.queue::<Work>().await.unwrap();
    bench.send_in_order(&queue, "before").await.unwrap();
    bench.make_anew(false).await;
    let refused = bench.send_in_order(&queue, "after").await.unwrap_err();
    assert!(format!("{refused:?}").contains("recreated without sessions"), "{refused:?}");
    assert_eq!(bench.count("active"), 0);
    // A program that begins now keeps the order by a log; a job without an order needs none.
    let another = bench.another();
    bench.send_in_order(&another.queue::<Work>().await.unwrap(), "new").await.unwrap();
    queue.send(&work("free")).await.unwrap();
    assert_eq!(bench.count("active"), 2);
}

#[tokio::test]
async fn a_program_goes_on_when_its_queue_gets_sessions() {
    let bench = Bench::new();
    bench.put(PutMessage::new("before")).await.unwrap();
    let before = bench.get().await.unwrap();
    bench.delete(&before.message).await.unwrap();
    let queue = bench.storage.queue::<Work>().await.unwrap();
    bench.make_anew(true).await;
    for name in ["0", "1"] {
        bench.send_in_order(&queue, name).await.unwrap();
    }
    let handler = |_: Work| async { Ok::<(), JobError>(()) };
    let worker = Worker::builder(bench.storage.clone()).max_idle_delay(Duration::from_millis(200));
    let running = worker.handle(handler).build().unwrap().run_until_idle();
    let report = tokio::time::timeout(2 * MINUTE, running).await.expect("it does not end").unwrap();
    assert_eq!(report.completed, 2, "{report:?}");
    assert_eq!(bench.count("active"), 0, "{report:?}");
    bench.put_in("a", "after").await;
    assert_eq!(text(&bench.next().await), "after");
}
