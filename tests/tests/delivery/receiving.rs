//! Receiving by hand: the duration of a call, and the messages that it leaves to others.

use std::time::Duration;

use jobqueue::QueueMessage;
use jobqueue_testing::faults::Faulty;
use jobqueue_tests::jobs::{Task, in_memory};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "tasks", kind = "other")]
struct Other {}

// D7
#[tokio::test(start_paused = true)]
async fn a_wait_ends_in_time_while_messages_of_another_kind_come() {
    let storage = in_memory();
    let (tasks, others) = (storage.queue::<Task>().await.unwrap(), storage.queue::<Other>().await.unwrap());
    tokio::spawn(async move {
        loop {
            let _ = others.send(&Other {}).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let began = Instant::now();
    let received = timeout(Duration::from_secs(60), tasks.receive(Duration::from_secs(1))).await;
    assert!(received.expect("the wait has an end").unwrap().is_none());
    assert!(began.elapsed() <= Duration::from_millis(1_200), "{:?}", began.elapsed());
}

// D7: no answer is empty, and each takes some time.
#[tokio::test(start_paused = true)]
async fn a_wait_ends_in_time_in_a_backlog_of_another_kind() {
    let storage = in_memory();
    let others = storage.queue::<Other>().await.unwrap();
    let sent = others.send_all((0..300).map(|_| Other {})).await.unwrap();
    assert!(sent.iter().all(Result::is_ok));
    let tasks = Faulty::new(&storage).storage().queue::<Task>().await.unwrap();
    let began = Instant::now();
    assert!(tasks.receive(Duration::from_secs(1)).await.unwrap().is_none());
    assert!(began.elapsed() <= Duration::from_millis(1_400), "{:?}", began.elapsed());
}

// B11
#[tokio::test(start_paused = true)]
async fn a_wait_for_ever_is_one() {
    let tasks = in_memory().queue::<Task>().await.unwrap();
    let wait = tasks.receive(Duration::MAX);
    assert!(tokio::time::timeout(Duration::from_secs(3_600), wait).await.is_err());
}
