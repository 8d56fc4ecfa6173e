//! Payloads in blobs of jobs of a limited kind: they are fetched when the job runs, and hold up no other job of the kind.

use jobqueue::settings::Metadata;
use jobqueue::storage::Operation;
use jobqueue::worker::{HandlerLimits, RateLimit};
use jobqueue::{Context, JobError, QueueMessage, State};
use jobqueue_admin::{AccessLevel, Admin, JobReference};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{in_memory, worker};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::limits::{Other, Quick, SECOND, Watch, other, quick, send};

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

// It has no place to run, and needs none to end.
#[tokio::test(start_paused = true)]
async fn cancelled_job_with_its_payload_in_a_blob_ends_although_its_kind_is_busy() {
    let (storage, watch) = (in_memory(), Watch::default());
    send(&storage, 1, || Large { data: String::new() }).await;
    send(&storage, 1, || Other { seconds: 1 }).await;
    let built = worker(&storage)
        .presence(SECOND)
        .state(watch.clone())
        .handle(large)
        .handle(other)
        .limit::<Large>(HandlerLimits::new().concurrency(1));
    let queue = storage.queue::<Large>().await.unwrap();
    let operator = async {
        sleep(SECOND * 5).await;
        let job = queue.send(&Large { data: "x".repeat(200_000) }).await.unwrap();
        sleep(SECOND * 5).await;
        let admin = Admin::builder(storage.clone()).access(AccessLevel::Operate).build();
        let _ = admin.cancel(&JobReference::new("slow", job.id())).await.unwrap();
        sleep(SECOND * 10).await;
        assert_eq!((watch.count("large"), watch.most()), (0, 2), "the first still runs");
        assert_eq!(queue.dead_letters().unwrap().approximate_len().await.unwrap(), 1);
    };
    let report = built.build().unwrap().run_until(operator).await.unwrap();
    assert_eq!(report.dead_lettered, 1);
}

/// Runs jobs of a kind of which one may run at once: three whose downloads meet `fault`, and five that are in their messages.
async fn with_downloads(fault: Fault, is_only_kind: bool, seconds: u32) -> Watch {
    let faulty = Faulty::new(&in_memory());
    let (storage, watch) = (faulty.storage(), Watch::default());
    faulty.on(Operation::GetBlob, move |call| call.subject.contains("jobqueue-payloads").then_some(fault));
    send(&storage, 3, || Large { data: "x".repeat(200_000) }).await;
    send(&storage, 5, || Large { data: String::new() }).await;
    let quick = async |_: Large, ctx: Context, State(watch): State<Watch>| {
        watch.run(&ctx, 1).await;
        Ok::<_, JobError>(())
    };
    let built = worker(&storage).shutdown_timeout(SECOND).state(watch.clone()).handle(quick);
    let built = if is_only_kind { built } else { built.handle(other) };
    let built = built.limit::<Large>(HandlerLimits::new().concurrency(1)).build().unwrap();
    let _ = built.run_until(sleep(SECOND * seconds)).await.unwrap();
    watch
}

#[tokio::test(start_paused = true)]
async fn downloads_that_hang_take_no_place_from_jobs_that_could_run() {
    for is_only_kind in [true, false] {
        let watch = with_downloads(Fault::Hang, is_only_kind, 120).await;
        assert_eq!(watch.count("large"), 5, "{is_only_kind}");
    }
}

// A download that lost its place to the next one, which loses it in turn, would never be of use.
#[tokio::test(start_paused = true)]
async fn slow_downloads_do_not_take_the_place_from_one_another() {
    for is_only_kind in [true, false] {
        let watch = with_downloads(Fault::DelayBefore(SECOND * 8), is_only_kind, 120).await;
        assert_eq!(watch.count("large"), 8, "{is_only_kind}");
    }
}

// A worker of the new release meets the job all the time, and has no place for it.
#[tokio::test(start_paused = true)]
async fn wait_for_a_worker_that_knows_the_kind_ends_although_its_limit_is_reached() {
    let (storage, watch) = (in_memory(), Watch::default());
    let settings = Metadata::new().with("unknownkindseconds", "60");
    let queue = storage.queue::<Large>().await.unwrap();
    storage.queues().set_queue_metadata(queue.name(), &settings).await.unwrap();
    let rate = RateLimit::new(1, SECOND * 600);
    let limits = || HandlerLimits::new().rate(&rate);
    send(&storage, 1, || Quick { seconds: 0 }).await;
    let first = worker(&storage).state(watch.clone()).handle(quick).limit::<Quick>(limits());
    assert_eq!(first.build().unwrap().run_until(sleep(SECOND)).await.unwrap().completed, 1);
    send(&storage, 1, || Large { data: "x".repeat(200_000) }).await;
    let old =
        || worker(&storage).state(watch.clone()).handle(other).build().unwrap().run_until(sleep(SECOND * 10));
    assert!(old().await.unwrap().released >= 2);
    let new = worker(&storage).state(watch.clone()).handle(large).handle(other).limit::<Large>(limits());
    let report = new.build().unwrap().run_until(sleep(SECOND * 30)).await.unwrap();
    assert_eq!((report.released, watch.count("large")), (1, 0), "{report:?}");
    // Until it comes back.
    sleep(SECOND * 1_300).await;
    let report = old().await.unwrap();
    assert_eq!(report.dead_lettered, 0, "{report:?}");
    assert!(report.released >= 2);
}
