use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::*;
use crate::queue_core::{Queue, QueueCoreOptions};
use crate::send::SendOptions;
use crate::storage::{QueueName, Storage};

#[derive(Debug, Serialize, Deserialize, jobqueue_derive::QueueMessage)]
#[message(queue = "reports", kind = "report", crate = "crate")]
struct Report {
    #[message(key)]
    of: String,
}

/// Claims the key `may` for a sender that then dies.
async fn claim_and_die(queue: &Queue<Report>, window: Duration) {
    let record_blob = UniqueRecordBlob::new(queue.core(), "report", "may").unwrap();
    let draft = Draft::new(&Report { of: "may".into() }, SendOptions::new().id("dead")).unwrap();
    assert!(claim_unique(queue.core(), &record_blob, &draft, window).await.unwrap().is_ok());
}

const HOUR: Duration = Duration::from_secs(3600);

async fn reports(storage: &Storage) -> Queue<Report> {
    let options = QueueCoreOptions::default();
    Queue::of(QueueCore::open(storage, QueueName::new("reports").unwrap(), options).await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn one_of_twenty_senders_sends_and_the_others_join_its_job() {
    let storage = Storage::memory();
    let queue = reports(&storage).await;
    let report = Report { of: "may".into() };
    let sends = (0..20).map(|_| queue.send(&report).unique_for(HOUR).into_future());
    let outcomes = futures_util::future::join_all(sends).await;
    let outcomes: Vec<SendUniqueOutcome> = outcomes.into_iter().map(Result::unwrap).collect();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_sent()).count(), 1);
    assert!(outcomes.iter().all(|outcome| outcome.id() == outcomes[0].id()));
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
    // The window ends, and only then.
    tokio::time::sleep(HOUR + Duration::from_secs(1)).await;
    assert!(queue.send(&report).unique_for(HOUR).await.unwrap().is_sent());
}

#[tokio::test(start_paused = true)]
async fn after_the_window_of_a_sender_that_died_the_next_job_has_its_own_id() {
    let storage = Storage::memory();
    let queue = reports(&storage).await;
    let window = Duration::from_secs(10);
    claim_and_die(&queue, window).await;
    // The next sender waits for the hold. Then the window of a message that was stored at its end is over,
    // too.
    tokio::time::sleep(window + Duration::from_secs(1)).await;
    // The message of the dead sender may still wait. This message is another job, and must not be taken for
    // it.
    let sent = queue.send(&Report { of: "may".into() }).unique_for(window).await.unwrap();
    assert!(sent.is_sent());
    assert_ne!(sent.id(), "dead");
}

#[tokio::test(start_paused = true)]
async fn sender_that_died_is_replaced_under_the_same_id() {
    let storage = Storage::memory();
    let queue = reports(&storage).await;
    claim_and_die(&queue, HOUR).await;
    let sent = queue.send(&Report { of: "may".into() }).unique_for(HOUR).await.unwrap();
    assert!(sent.is_sent());
    assert_eq!(sent.id(), "dead");
}
