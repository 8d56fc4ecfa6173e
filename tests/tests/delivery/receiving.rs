//! Receiving by hand: the duration of a call, and the messages that it leaves to others.

use std::fmt;
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{QueueMessage, Reason};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task};
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

// A delay that is longer than the storage's: the message comes before its time and is put back, of which the
// log of its key must know.
#[tokio::test(start_paused = true)]
async fn a_wait_ends_although_the_log_of_a_key_cannot_be_changed() {
    let faulty = Faulty::new(&in_memory());
    let tasks = faulty.storage().queue::<Task>().await.unwrap();
    let eight_days = Duration::from_secs(8 * 86_400);
    let _ = tasks.send(&task("a")).in_order().delay(eight_days).await.unwrap();
    after(7 * 86_400 + 60).await;
    for operation in [Operation::GetBlob, Operation::PutBlob] {
        faulty.plan_always(operation, Fault::Refuse(StoreErrorKind::Unavailable));
    }
    // Another process, which has not read the log yet.
    let tasks = faulty.storage().queue::<Task>().await.unwrap();
    let began = Instant::now();
    assert!(tasks.receive(Duration::from_secs(1)).await.unwrap().is_none());
    assert!(began.elapsed() <= Duration::from_secs(60), "{:?}", began.elapsed());
    faulty.heal();
    let delivery = tasks.receive(2 * eight_days).await.unwrap().unwrap();
    assert!(began.elapsed() > Duration::from_secs(86_000), "not before its time");
    delivery.complete().await.unwrap();
}

/// An address that is none.
#[derive(Debug)]
struct WrongAddress(std::num::ParseIntError);

impl fmt::Display for WrongAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such address")
    }
}

impl std::error::Error for WrongAddress {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_by_hand_has_its_reason_and_the_causes_of_its_error() {
    let tasks = in_memory().queue::<Task>().await.unwrap();
    let error = || WrongAddress("x".parse::<u8>().unwrap_err());
    let letters = tasks.dead_letters().unwrap();
    for (last, reason) in [(false, Reason::new("no_address")), (true, Reason::ATTEMPTS_EXHAUSTED)] {
        let _ = tasks.send(&task("a")).await.unwrap();
        let mut delivery = tasks.receive(Duration::ZERO).await.unwrap().unwrap();
        if last {
            while delivery.info().attempt < delivery.info().max_attempts {
                delivery.fail(Duration::ZERO, error()).await.unwrap();
                delivery = tasks.receive(Duration::ZERO).await.unwrap().unwrap();
            }
            delivery.fail(Duration::ZERO, error()).await.unwrap();
        } else {
            delivery.dead_letter(reason.clone(), error()).await.unwrap();
        }
        let letter = letters.peek().await.unwrap().remove(0);
        assert_eq!(letter.reason, reason);
        let text = letter.error.as_deref().unwrap();
        assert!(text.starts_with("no such address: invalid digit"), "{text}");
        let _ = letters.purge(DeadLetterOptions::new().filter(|_| true)).await.unwrap();
    }
}

// audit 25, delivery C3
#[tokio::test(start_paused = true)]
async fn job_in_order_is_completed_although_its_log_cannot_be_changed_for_a_while() {
    let faulty = Faulty::new(&in_memory());
    let tasks = faulty.storage().queue::<Task>().await.unwrap();
    let _ = tasks.send(&task("a")).in_order().await.unwrap();
    let delivery = tasks.receive(Duration::ZERO).await.unwrap().unwrap();
    faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unavailable));
    // Longer than a lease, which is renewed meanwhile.
    let plan = faulty.clone();
    tokio::spawn(async move {
        after(60).await;
        plan.heal();
    });
    delivery.complete().await.unwrap();
    assert!(tasks.receive(Duration::from_secs(60)).await.unwrap().is_none());
}
