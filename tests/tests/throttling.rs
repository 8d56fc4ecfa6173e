//! F20: a storage that asks to slow down is spared by those who can wait, and asked by those who cannot.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use jobqueue::storage::{Operation, Storage};
use jobqueue::testing::faults::{Fault, Faulty};
use jobqueue::{Context, JobError, QueueMessage, Worker};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "busy", kind = "busy", timeout = "30s")]
struct Busy {}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "other", kind = "other", timeout = "30s")]
struct Other {}

/// How long the storage asks to wait.
const PAUSE: Duration = Duration::from_secs(120);

/// Throttles the next get and waits until it has come; tells when that was.
async fn throttle(storage: &Faulty) -> Instant {
    let before = storage.calls_of(Operation::Get);
    storage.plan(Operation::Get, 1, Fault::Throttle(PAUSE));
    while storage.calls_of(Operation::Get) == before {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Instant::now()
}

/// While the storage is under pressure no queue of it is polled and a send waits, but the lease of a running job is
/// renewed; afterwards all goes on.
#[tokio::test(start_paused = true)]
async fn f20_renewals_go_before_polling_and_sending() {
    let faulty = Faulty::new(&Storage::memory());
    let storage = faulty.storage();
    storage.queue::<Busy>().await.unwrap().send(&Busy {}).await.unwrap();
    let others = storage.queue::<Other>().await.unwrap();

    let (planned, sender) = (faulty.clone(), others.clone());
    let long = move |_: Busy, ctx: Context| {
        let (faulty, others) = (planned.clone(), sender.clone());
        async move {
            let throttled = throttle(&faulty).await;
            let (gets, renewals) = (faulty.calls_of(Operation::Get), faulty.calls_of(Operation::Update));
            // A send waits for a part of what it may take in all, and is tried then: no caller is held up for long.
            others.send(&Other {}).await.map_err(JobError::retry)?;
            assert!(throttled.elapsed() >= Duration::from_secs(10), "{:?}", throttled.elapsed());
            tokio::time::sleep(PAUSE - Duration::from_secs(1) - throttled.elapsed()).await;
            // The other queue's get may have been under way when the storage asked to slow down.
            assert!(faulty.calls_of(Operation::Get) <= gets + 1);
            assert!(faulty.calls_of(Operation::Update) >= renewals + 3);
            assert!(!ctx.is_cancelled());
            Ok::<(), JobError>(())
        }
    };
    let other = async |_: Other| Ok::<(), JobError>(());
    let worker = Worker::builder(storage)
        .virtual_time(Arc::new(jobqueue::memory::TokioClock::new()))
        .handle(long)
        .handle(other);
    let report = worker.build().unwrap().run_until_idle().await.unwrap();
    assert_eq!((report.completed, report.lease_lost), (2, 0));
}

/// The pressure is one storage's, however it is reached: a renewal that is throttled holds up polling too.
#[tokio::test(start_paused = true)]
async fn f20_a_throttled_renewal_holds_up_polling() {
    let faulty = Faulty::new(&Storage::memory());
    let storage = faulty.storage();
    storage.queue::<Busy>().await.unwrap().send(&Busy {}).await.unwrap();
    let planned = faulty.clone();
    let long = move |_: Busy, ctx: Context| {
        let faulty = planned.clone();
        async move {
            let renewals = faulty.calls_of(Operation::Update);
            faulty.plan(Operation::Update, 1, Fault::Throttle(PAUSE));
            while faulty.calls_of(Operation::Update) == renewals {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let gets = faulty.calls_of(Operation::Get);
            tokio::time::sleep(PAUSE / 2).await;
            assert!(faulty.calls_of(Operation::Get) <= gets + 1);
            assert!(!ctx.is_cancelled(), "the renewal is repeated in time, whatever the storage asks for");
            Ok::<(), JobError>(())
        }
    };
    let worker =
        Worker::builder(storage).virtual_time(Arc::new(jobqueue::memory::TokioClock::new())).handle(long);
    let report = worker.build().unwrap().run_until_idle().await.unwrap();
    assert_eq!((report.completed, report.lease_lost), (1, 0));
}
