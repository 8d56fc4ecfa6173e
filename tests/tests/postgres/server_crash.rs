//! A server that is killed while processes send and work, and starts again on its data.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::QueueName;
use jobqueue::storage::{ExpiredReceipt, GetMessages, PutMessage, Storage};
use jobqueue_test_support::postgres::Postgres;

use crate::{options, with_queue, within};

const LEASE: Duration = Duration::from_secs(1);

/// The texts of the messages whose operations were acknowledged, and of those that were received.
#[derive(Debug, Default)]
struct Book {
    sent: BTreeSet<String>,
    seen: BTreeSet<String>,
    deleted: BTreeSet<String>,
}

#[derive(Clone)]
struct Process {
    storage: Storage,
    queue: QueueName,
    book: Arc<Mutex<Book>>,
    stop: Arc<AtomicBool>,
}

impl Process {
    fn runs(&self) -> bool {
        !self.stop.load(Ordering::Acquire)
    }

    async fn send(self, sender: usize) {
        for number in 0.. {
            if !self.runs() {
                return;
            }
            let text = format!("{sender}:{number}");
            match self.storage.queues().put(&self.queue, PutMessage::new(&text)).await {
                Ok(_) => assert!(self.book.lock().unwrap().sent.insert(text)),
                // It may have been stored.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    async fn work(self) {
        while self.runs() {
            self.pass().await;
        }
    }

    /// Receives and deletes some messages. Returns whether the queue may have more.
    async fn pass(&self) -> bool {
        let deleted = self.book.lock().unwrap().deleted.clone();
        let Ok(received) = self.storage.queues().get(&self.queue, GetMessages::new(16, LEASE)).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            return true;
        };
        let is_empty = received.messages.is_empty() && received.next_visible_in.is_none();
        for message in received.messages {
            let text = message.text.unwrap();
            assert!(!deleted.contains(&text), "{text} came again after its deletion was acknowledged");
            self.book.lock().unwrap().seen.insert(text.clone());
            let done =
                self.storage.queues().delete(&self.queue, &message.message, ExpiredReceipt::Refuse).await;
            if done.is_ok() {
                self.book.lock().unwrap().deleted.insert(text);
            }
        }
        !is_empty
    }
}

/// I1, F52
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_keeps_what_was_acknowledged() {
    let mut server = Postgres::durable();
    let (storage, queue) = with_queue(options(&server).timeout(Duration::from_secs(10))).await;
    let process = Process { storage, queue, book: Arc::default(), stop: Arc::default() };
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..3 {
        tasks.spawn(process.clone().send(number));
        tasks.spawn(process.clone().work());
    }
    for kills in 1..=3 {
        let enough = kills * 200;
        within(async {
            while process.book.lock().unwrap().deleted.len() < enough {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        server = tokio::task::spawn_blocking(move || {
            server.kill_and_restart();
            server
        })
        .await
        .unwrap();
    }
    process.stop.store(true, Ordering::Release);
    within(tasks.join_all()).await;
    // The leases of the lost answers end.
    within(async { while process.pass().await {} }).await;
    let book = process.book.lock().unwrap();
    let lost: Vec<_> = book.sent.difference(&book.seen).collect();
    assert!(lost.is_empty(), "acknowledged and never seen again: {lost:?}");
    assert!(book.sent.len() >= 600, "{} were sent", book.sent.len());
}
