//! Payloads in blobs of jobs of a limited kind: they are fetched when the job runs, and hold up no other job
//! of the kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jobqueue::settings::Metadata;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::worker::{HandlerLimits, RateLimit};
use jobqueue::{Context, JobError, QueueMessage, State};
use jobqueue_admin::{AccessLevel, Admin, JobReference};
use jobqueue_testing::faults::{Call, Fault, Faulty};
use jobqueue_tests::jobs::{in_memory, worker};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::limits::rates::most_within;
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

/// The downloads hang, and are answered at once. Their jobs were fetched at the rate.
// audit 13, C13-3
#[tokio::test(start_paused = true)]
async fn rate_holds_for_jobs_whose_downloads_were_held_up() {
    let faulty = Faulty::new(&in_memory());
    let (storage, watch) = (faulty.storage(), Watch::default());
    send(&storage, 100, || Large { data: "x".repeat(100_000) }).await;
    let answered = Instant::now() + SECOND * 20;
    faulty.on(Operation::GetBlob, move |call| {
        let left = answered.saturating_duration_since(call.at);
        (!left.is_zero()).then_some(Fault::DelayBefore(left))
    });
    let limits = HandlerLimits::new().rate(&RateLimit::new(10, SECOND));
    let built = worker(&storage).concurrency(64).state(watch.clone()).handle(large).limit::<Large>(limits);
    let _ = built.build().unwrap().run_until(sleep(SECOND * 300)).await.unwrap();
    let ran = watch.ended();
    assert_eq!(ran.len(), 100);
    assert!(most_within(&ran, SECOND) <= 11, "{}", most_within(&ran, SECOND));
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

#[tokio::test(start_paused = true)]
async fn payload_of_a_newer_version_is_not_fetched_by_hand() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    send(&storage, 1, || Larger { data: "x".repeat(200_000) }).await;
    let queue = storage.queue::<Large>().await.unwrap();
    assert!(queue.receive(SECOND * 60).await.unwrap().is_none());
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
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

/// Runs jobs of a kind of which one may run at once: three whose downloads meet `faults`, and one each three
/// seconds that is in its message. Returns the number of jobs that ran, of each sort, and that of the
/// downloads.
async fn with_downloads(faults: &[Fault], is_only_kind: bool, seconds: u32) -> (usize, usize, usize) {
    let faulty = Faulty::new(&in_memory());
    let (storage, watch) = (faulty.storage(), Watch::default());
    let is_download = |call: &Call| call.subject.contains("jobqueue-payloads");
    for fault in faults.iter().copied() {
        faulty.on(Operation::GetBlob, move |call| is_download(call).then_some(fault));
    }
    send(&storage, 3, || Large { data: "x".repeat(200_000) }).await;
    let (large, ran) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = [Arc::clone(&large), Arc::clone(&ran)];
    let quick = move |job: Large, ctx: Context, State(watch): State<Watch>| {
        counts[usize::from(job.data.is_empty())].fetch_add(1, Ordering::SeqCst);
        async move {
            watch.run(&ctx, 1).await;
            Ok::<_, JobError>(())
        }
    };
    let built = worker(&storage).shutdown_timeout(SECOND).state(watch.clone()).handle(quick);
    let built = if is_only_kind { built } else { built.handle(other) };
    let built = built.limit::<Large>(HandlerLimits::new().concurrency(1)).build().unwrap();
    let sends = async {
        for _ in 0..seconds / 3 {
            send(&storage, 1, || Large { data: String::new() }).await;
            sleep(SECOND * 3).await;
        }
    };
    let _ = built.run_until(sends).await.unwrap();
    let downloads = faulty.calls().into_iter().filter(|call| call.operation == Operation::GetBlob);
    let downloads = downloads.filter(is_download).count();
    (large.load(Ordering::SeqCst), ran.load(Ordering::SeqCst), downloads)
}

// As on Azure, where a request fails when nothing comes for 30 seconds: the first download of each message
// has the place.
#[tokio::test(start_paused = true)]
async fn downloads_that_hang_take_no_place_from_jobs_that_could_run() {
    let hangs = [Fault::DelayBefore(SECOND * 30), Fault::Refuse(StoreErrorKind::Unavailable)];
    for is_only_kind in [true, false] {
        let (large, ran, downloads) = with_downloads(&hangs, is_only_kind, 300).await;
        assert_eq!(large, 0);
        assert!(ran > 60 && downloads > 10, "{ran} of 100 jobs, and {downloads} downloads: {is_only_kind}");
    }
}

// A download without a place for its job is in vain, and begins again.
#[tokio::test(start_paused = true)]
async fn payload_that_comes_slowly_is_downloaded_once_however_many_jobs_wait() {
    for is_only_kind in [true, false] {
        let slow = [Fault::DelayBefore(SECOND * 90)];
        let (large, ran, downloads) = with_downloads(&slow, is_only_kind, 900).await;
        assert_eq!((large, downloads), (3, 3), "{is_only_kind}");
        assert!(ran > 100, "{ran} of 300 jobs: {is_only_kind}");
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
