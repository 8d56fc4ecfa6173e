//! Open circuits in the explanation of a job.

use std::time::Duration;

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::worker::CircuitBreaker;
use jobqueue::{JobError, SendOptions};
use jobqueue_admin::{JobReference, RawSend};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory};

use crate::admin::explain::{explain, send};
use crate::admin::presence::{operator, present};

// newcomers 28, C2: the record of a worker that had been killed counted as one that could run the job: it
// "can run now".
#[tokio::test(start_paused = true)]
async fn open_circuit_is_named_beside_the_record_of_a_worker_that_may_have_died() {
    let (storage, hour) = (in_memory(), Duration::from_secs(3_600));
    let faulty = Faulty::new(&storage);
    let silent = present(&faulty.storage()).handle(async |_: Task| Ok::<_, JobError>(()));
    // It fetches nothing, and later writes no record, as one that was killed.
    faulty.plan_always(Operation::Get, Fault::Hang);
    let breaker = CircuitBreaker::new().failures(1).jobs(1).pause(hour, hour);
    let failing = async |_: Task| Err::<(), _>(JobError::retry("down"));
    let failing = present(&storage).circuit_breaker(breaker).handle(failing);
    let looking = async {
        send(&storage, "fails", SendOptions::new()).await;
        after(10).await;
        let job = send(&storage, "waits", SendOptions::new()).await;
        after(7).await;
        faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unavailable));
        after(24).await;
        let (found, codes) = explain(&storage, &job).await;
        assert_eq!(codes, ["circuit_open"], "{}", found.summary);
        assert!(found.summary.contains("on 1 of 2 workers, which has paused fetching"), "{}", found.summary);
        assert!(found.summary.contains("the others have written no record"), "{}", found.summary);
        after(30).await;
        let (found, codes) = explain(&storage, &job).await;
        assert_eq!(codes, ["circuit_open"]);
        assert!(!found.summary.contains("1 of 2"), "{}", found.summary);
        faulty.heal();
    };
    let (silent, failing) = (silent.build().unwrap(), failing.build().unwrap());
    let (silent, failing, ()) =
        tokio::join!(silent.run_until(after(90)), failing.run_until(after(90)), looking);
    let _ = (silent.unwrap(), failing.unwrap());
}

// It was the first reason, and thus the summary, also of a job that the other worker takes at once.
#[tokio::test(start_paused = true)]
async fn circuit_of_some_workers_is_the_last_reason() {
    let (storage, hour) = (in_memory(), Duration::from_secs(3_600));
    let faulty = Faulty::new(&storage);
    let healthy = present(&faulty.storage()).handle(async |_: Task| Ok::<_, JobError>(()));
    // So that the other worker runs the job that fails.
    faulty.plan_always(Operation::Get, Fault::Hang);
    let breaker = CircuitBreaker::new().failures(1).jobs(1).pause(hour, hour);
    let failing = async |_: Task| Err::<(), _>(JobError::retry("down"));
    let failing = present(&storage).circuit_breaker(breaker).handle(failing);
    let looking = async {
        send(&storage, "fails", SendOptions::new()).await;
        after(10).await;
        let unknown = RawSend::json("other", "{}").unwrap().id("unknown");
        operator(&storage).send("tasks", unknown).await.unwrap();
        after(10).await;
        let (found, codes) = explain(&storage, &JobReference::new("tasks", "unknown")).await;
        assert_eq!(codes, ["unknown_kind", "circuit_open"], "{}", found.summary);
        faulty.heal();
    };
    let (healthy, failing) = (healthy.build().unwrap(), failing.build().unwrap());
    let (healthy, failing, ()) =
        tokio::join!(healthy.run_until(after(60)), failing.run_until(after(60)), looking);
    let _ = (healthy.unwrap(), failing.unwrap());
}
