//! Payloads in blobs of jobs that a limit keeps waiting: they are fetched when the job runs.

use jobqueue::storage::Operation;
use jobqueue::worker::HandlerLimits;
use jobqueue::{Context, JobError, QueueMessage, State};
use jobqueue_testing::faults::Faulty;
use jobqueue_tests::jobs::{in_memory, worker};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::limits::{Other, SECOND, Watch, other, send};

/// A job of the queue "slow" whose payload does not fit into its message.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "slow", kind = "large", lease = "30s")]
struct Large {
    data: String,
}

async fn large(_: Large, ctx: Context, State(watch): State<Watch>) -> Result<(), JobError> {
    watch.run(&ctx, 60).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn payload_of_a_job_over_a_limit_is_not_fetched_at_each_delivery() {
    let faulty = Faulty::new(&in_memory());
    let (storage, watch) = (faulty.storage(), Watch::default());
    send(&storage, 2, || Large { data: "x".repeat(200_000) }).await;
    // Its jobs end all the time: the queue is polled, and the job over the limit delivered.
    send(&storage, 300, || Other { seconds: 1 }).await;
    let built = worker(&storage)
        .concurrency(6)
        .state(watch.clone())
        .handle(large)
        .handle(other)
        .limit::<Large>(HandlerLimits::new().concurrency(1));
    let _ = built.build().unwrap().run_until(sleep(SECOND * 150)).await.unwrap();
    assert_eq!(watch.count("large"), 2);
    let fetched = faulty.calls().into_iter().filter(|call| call.operation == Operation::GetBlob);
    let fetched = fetched.filter(|call| call.subject.contains("jobqueue-payloads")).count();
    assert_eq!(fetched, 2);
}

/// The message of the next release.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "slow", kind = "large", version = 2, upgrade_from = none)]
struct Larger {
    data: String,
}

#[tokio::test(start_paused = true)]
async fn payload_of_a_newer_version_is_not_fetched() {
    let faulty = Faulty::new(&in_memory());
    let (storage, watch) = (faulty.storage(), Watch::default());
    send(&storage, 1, || Larger { data: "x".repeat(200_000) }).await;
    let old = worker(&storage).state(watch.clone()).handle(large).build().unwrap();
    let report = old.run_until(sleep(SECOND * 150)).await.unwrap();
    assert!(report.released > 3, "{report:?}");
    let fetched = faulty.calls().into_iter().filter(|call| call.operation == Operation::GetBlob);
    assert_eq!(fetched.filter(|call| call.subject.contains("jobqueue-payloads")).count(), 0);
}
