//! Gets that wait: what they hold meanwhile, and what they take from a lease.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::storage::{GetMessages, Operation, PutMessage, Storage};
use jobqueue::{JobError, QueueMessage, Worker};
use jobqueue_testing::faults::{Fault, Faulty};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Barrier;
use tokio::time::timeout;

use super::jobs::{Work, work};
use super::late_answers::{pass, until};
use super::{Bench, MINUTE, options};

/// Less than an exchange with the service may take.
const SOON: Duration = Duration::from_secs(20);

/// A queue without jobs.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "rest", kind = "rest")]
struct Rest;

async fn nothing(_: Rest) -> Result<(), JobError> {
    Ok(())
}

// The get of the empty queue held half of the slots until its wait was over.
#[tokio::test]
async fn queue_without_jobs_holds_no_slots_of_a_busy_one() {
    const SLOTS: usize = 8;
    /// More than half of the slots; one is reserved for the other queue.
    const JOBS: usize = 6;
    let bench = Bench::new();
    bench.emulator.create_queue("rest", json!({}));
    let names = [(); JOBS].map(|()| work("a"));
    bench.storage.queue::<Work>().await.unwrap().send_all(&names).await.unwrap().into_result().unwrap();
    let all = Arc::new(Barrier::new(JOBS));
    let handler = move |_: Work| {
        let all = Arc::clone(&all);
        async move {
            all.wait().await;
            Ok::<(), JobError>(())
        }
    };
    let worker = Worker::builder(bench.storage.clone()).concurrency(SLOTS).handle(handler).handle(nothing);
    let running = timeout(SOON, worker.build().unwrap().run_until_idle());
    let report = running.await.expect("the jobs do not run together").unwrap();
    assert_eq!(report.completed, JOBS as u64, "{report:?}");
}

// The session of the first key waited for another message, and no session was accepted for the slot meanwhile.
#[tokio::test]
async fn session_that_is_empty_holds_no_slot() {
    let bench = Bench::of_sessions();
    for key in ["a", "b", "c"] {
        bench.put_in(key, key).await;
    }
    for _ in 0..3 {
        let next = async {
            loop {
                if let Some(leased) = bench.get().await {
                    return leased;
                }
            }
        };
        let leased = timeout(SOON, next).await.expect("the next key has to wait");
        bench.delete(&leased.message).await.unwrap();
    }
}

// The get failed after half a minute, as one from a service that does not answer.
#[tokio::test]
async fn get_does_not_wait_for_a_service_that_is_late_to_find_no_session() {
    let bench = Bench::with(json!({ "RequiresSession": true }), &["--session-overtime", "60000"]);
    let getting = bench.store().get(&bench.queue, GetMessages::new(1, MINUTE));
    let got = timeout(SOON, getting).await.expect("waits for the service").unwrap();
    assert!(got.messages.is_empty() && got.is_uncertain, "{got:?}");
    // The attach that is under way takes it.
    bench.put_in("a", "job").await;
    let leased = timeout(SOON, bench.get()).await.expect("the session is not accepted").unwrap();
    assert_eq!(leased.dequeue_count, 1);
}

// What the blob took was left out: the lease, and the life of the job, ended so much too early.
#[tokio::test]
async fn blob_that_is_read_slowly_takes_nothing_from_the_lease_of_a_session() {
    let slow = MINUTE / 4;
    let bench = Bench::of_sessions();
    // Quiet: the emulator is asked in real time.
    let blobs = Faulty::quiet(&bench.blobs);
    let storage = Storage::from(options(&bench.emulator).with_blobs_of(blobs.storage()).unwrap());
    bench.put(PutMessage::new("job")).await.unwrap();
    blobs.plan(Operation::PutBlob, 1, Fault::DelayBefore(slow));
    let (asking, queue) = (storage.clone(), bench.queue.clone());
    let getting = tokio::spawn(async move { asking.queues().get(&queue, GetMessages::new(1, MINUTE)).await });
    until(|| blobs.calls_of(Operation::PutBlob) > 0).await;
    pass(slow).await;
    let got = timeout(MINUTE, getting).await.unwrap().unwrap().unwrap();
    let granted = got.messages[0].granted.unwrap();
    assert!(granted > MINUTE - Duration::from_secs(5), "{granted:?}");
}
