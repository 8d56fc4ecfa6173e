//! A request to cancel a job and its answer concern one life of the job: a dead letter shows its own death.

use std::time::Duration;

use jobqueue::{JobError, SendOptions, Storage};
use jobqueue_admin::{Cancellation, DeadLetterFilter, JobPlace};
use jobqueue_tests::jobs::{Task, after, in_memory};
use tokio::time::sleep;

use crate::admin::cancel::{cancel_running, send};
use crate::admin::presence::{operator, present};

/// Has a worker dead-letter the only job.
async fn die(storage: &Storage) {
    let worker = present(storage).handle(async |_: Task| Err::<(), _>(JobError::dead_letter("no such host")));
    assert_eq!(worker.build().unwrap().run_until(after(60)).await.unwrap().dead_lettered, 1);
}

/// Puts the only dead letter back, seconds after what was before.
async fn redrive(storage: &Storage) {
    sleep(Duration::from_secs(5)).await;
    let admin = operator(storage);
    assert_eq!(admin.redrive("tasks").filter(DeadLetterFilter::all()).run().await.unwrap().count, 1);
    sleep(Duration::from_secs(5)).await;
}

// round 35, E1
#[tokio::test(start_paused = true)]
async fn dead_letter_shows_its_death_before_a_request_that_nobody_answered() {
    let storage = in_memory();
    let admin = operator(&storage);
    let job = send(&storage, "failed", SendOptions::new()).await;
    die(&storage).await;
    let _ = admin.cancel(&job).await.unwrap();
    let found = admin.explain(&job).await.unwrap();
    assert!(matches!(found.cancellation, Cancellation::Requested { .. }), "{:?}", found.cancellation);
    let codes: Vec<_> = found.reasons.iter().map(|reason| reason.code).collect();
    assert_eq!(codes, ["dead_letter", "cancel_requested"]);
    assert!(found.summary.contains("no such host"), "{}", found.summary);
    // The letter of the next life has no request.
    redrive(&storage).await;
    die(&storage).await;
    let found = admin.explain(&job).await.unwrap();
    assert_eq!((found.place, found.cancellation), (JobPlace::Dead, Cancellation::None));
    assert_eq!(found.reasons.len(), 1, "{:?}", found.reasons);
}

#[tokio::test(start_paused = true)]
async fn dead_letter_of_a_job_that_was_sent_again_does_not_show_that_it_completed() {
    let storage = in_memory();
    let admin = operator(&storage);
    let job = send(&storage, "done", SendOptions::new()).await;
    assert!(cancel_running(&storage, &job, || Ok(())).await.is_empty());
    assert_eq!(admin.cancellation(&job).await.unwrap(), Cancellation::Completed);
    sleep(Duration::from_secs(5)).await;
    let _ = send(&storage, "done", SendOptions::new()).await;
    die(&storage).await;
    let found = admin.explain(&job).await.unwrap();
    assert_eq!((found.place, found.cancellation), (JobPlace::Dead, Cancellation::None));
}
