//! The sweeper: I15, F48, F49, F106, F107.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::maintenance::{SweepOptions, SweepReport, sweep};
use jobqueue::sharded::Sharded;
use jobqueue::storage::{BlobName, ContainerName};
use jobqueue::storage::{GetMessages, Operation, PutBlob, StoreErrorKind};
use jobqueue::{JobError, SendOptions, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, worker};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(super) const DAY: u64 = 86_400;

pub(super) fn large(name: impl Into<String>) -> Task {
    Task { name: name.into(), data: "x".repeat(70_000) }
}

pub(super) fn options() -> SweepOptions {
    SweepOptions::new()
}

pub(super) async fn blobs(storage: &Storage) -> Vec<String> {
    let container = ContainerName::new("jobqueue-payloads").unwrap();
    let page = storage.blobs().list_blobs(&container, "", None).await;
    page.map(|page| page.blobs.into_iter().map(|(name, _)| name).collect()).unwrap_or_default()
}

/// Returns a queue on the clock of the test, so that names and times of blobs agree.
pub(super) async fn queue(storage: &Storage) -> jobqueue::Queue<Task> {
    storage.queue::<Task>().await.unwrap()
}

// I15, F48
#[tokio::test(start_paused = true)]
async fn blob_precedes_its_message_and_orphans_are_swept() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = queue(&storage).await;
    faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unavailable));
    assert!(queue.send(&large("a")).await.is_err());
    assert_eq!(faulty.calls_of(Operation::Put), 0, "no message without its blob");
    faulty.heal();
    // A sender that is refused takes its blob away; one that dies after it has written its blob cannot.
    faulty.plan_always(Operation::Put, Fault::Refuse(StoreErrorKind::Unauthorized));
    assert!(queue.send(&large("a")).await.is_err());
    assert!(faulty.calls_of(Operation::PutBlob) > 1);
    assert_eq!(blobs(&storage).await.len(), 0);
    faulty.heal();
    faulty.plan_always(Operation::Put, Fault::Hang);
    let ttl = SendOptions::new().ttl(Duration::from_secs(3600));
    let dies = Duration::from_secs(1);
    assert!(tokio::time::timeout(dies, queue.send(&large("b")).with(ttl)).await.is_err());
    assert!(tokio::time::timeout(dies, queue.send(&large("c"))).await.is_err());
    faulty.heal();
    assert_eq!(blobs(&storage).await.len(), 2);
    after(DAY).await;
    assert_eq!(sweep(&storage, options()).await.unwrap().removed, 0, "its time and a day have not passed");
    after(2 * 3600).await;
    assert_eq!(sweep(&storage, options().dry_run(true)).await.unwrap().removed, 1);
    assert_eq!(sweep(&storage, options()).await.unwrap().removed, 1);
    // The one without a time goes only if that is asked for, and not before 8 days.
    let drained = || options().drained_queues(true);
    assert_eq!(sweep(&storage, drained()).await.unwrap().removed, 0);
    after(8 * DAY).await;
    assert_eq!(sweep(&storage, options()).await.unwrap().removed, 0);
    assert_eq!(sweep(&storage, drained()).await.unwrap().removed, 1);
    assert!(blobs(&storage).await.is_empty());
}

/// A storage that does not answer does not count as empty.
// I15
#[tokio::test(start_paused = true)]
async fn unreadable_blobs_are_not_swept_and_reported() {
    for operation in [Operation::QueueProperties, Operation::BlobProperties, Operation::ListBlobs] {
        let faulty = Faulty::new(&in_memory());
        let storage = faulty.storage();
        let queue = queue(&storage).await;
        for name in ["a", "b"] {
            let _ = queue.send(&large(name)).await.unwrap();
        }
        after(30 * DAY).await;
        faulty.plan_always(operation, Fault::Refuse(StoreErrorKind::Unavailable));
        let swept = sweep(&storage, options().drained_queues(true)).await;
        assert!(swept.is_err(), "{operation:?}: {swept:?}");
        faulty.heal();
        assert_eq!(blobs(&storage).await.len(), 2, "{operation:?}");
    }
}

// I15
#[tokio::test(start_paused = true)]
async fn sweep_counts_removed_and_failed_blobs() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = queue(&storage).await;
    for name in ["a", "b"] {
        let ttl = SendOptions::new().ttl(Duration::from_secs(60));
        let _ = queue.send(&large(name)).with(ttl).await.unwrap();
    }
    after(3 * DAY).await;
    faulty.plan(Operation::DeleteBlob, 1, Fault::Refuse(StoreErrorKind::Unavailable));
    let swept = sweep(&storage, options()).await.unwrap();
    assert_eq!(swept.removed, 1);
    assert_eq!(swept.failed, 1);
    assert!((70_000..80_000).contains(&swept.bytes), "{swept:?}");
    // Gone before we came: another sweep was quicker.
    faulty.plan(Operation::DeleteBlob, 1, Fault::Refuse(StoreErrorKind::BlobNotFound));
    let swept = sweep(&storage, options()).await.unwrap();
    assert_eq!(swept.removed, 1);
    assert_eq!(swept.failed, 0);
}

// I15
#[tokio::test(start_paused = true)]
async fn sweep_keeps_expired_blobs_for_the_grace() {
    let storage = in_memory();
    let ttl = || SendOptions::new().ttl(Duration::from_secs(60));
    let _ = queue(&storage).await.send(&large("a")).with(ttl()).await.unwrap();
    let with = |seconds| options().grace(Duration::from_secs(seconds));
    after(60 + 3500).await;
    assert_eq!(sweep(&storage, with(0)).await.unwrap().removed, 0);
    after(200).await;
    assert_eq!(sweep(&storage, with(10 * DAY)).await.unwrap().removed, 0);
    assert_eq!(sweep(&storage, with(0)).await.unwrap().removed, 1);
    let _ = queue(&storage).await.send(&large("b")).with(ttl()).await.unwrap();
    after(9 * DAY).await;
    assert_eq!(sweep(&storage, with(10 * DAY)).await.unwrap().removed, 0);
    after(2 * DAY).await;
    assert_eq!(sweep(&storage, with(10 * DAY)).await.unwrap().removed, 1);
}

/// Leaves a payload without a message beside a dead letter with a payload of its own.
async fn letter_and_orphan(faulty: &Faulty) -> jobqueue::Queue<Task> {
    let storage = faulty.storage();
    let queue = queue(&storage).await;
    queue.send(&large("dies")).await.unwrap();
    let handler = |_: Task| async { Err::<(), _>(JobError::dead_letter("planted")) };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.dead_lettered, 1);
    faulty.plan_always(Operation::Put, Fault::Hang);
    let dies = tokio::time::timeout(Duration::from_secs(1), queue.send(&large("orphan")));
    assert!(dies.await.is_err());
    faulty.heal();
    assert_eq!(blobs(&storage).await.len(), 2);
    after(9 * DAY).await;
    queue
}

// I15
#[tokio::test(start_paused = true)]
async fn payloads_stay_while_their_queue_has_dead_letters() {
    let faulty = Faulty::new(&in_memory());
    let queue = letter_and_orphan(&faulty).await;
    let storage = faulty.storage();
    let drained = || options().drained_queues(true);
    // Also while another holds the letter.
    let hold = GetMessages::new(1, Duration::from_secs(3600));
    let held = storage.queues().get(&queue.name().dead_letter().unwrap(), hold).await.unwrap();
    assert_eq!(held.messages.len(), 1);
    assert_eq!(sweep(&storage, drained()).await.unwrap().removed, 0);
    after(3601).await;
    assert_eq!(sweep(&storage, drained()).await.unwrap().removed, 0);
    let purged =
        queue.dead_letters().unwrap().purge(DeadLetterOptions::new().filter(|_| true)).await.unwrap();
    assert_eq!(purged.deleted.len(), 1);
    assert_eq!(sweep(&storage, drained()).await.unwrap().removed, 1);
}

// K45
#[tokio::test(start_paused = true)]
async fn stopped_sweep_removes_nothing() {
    let storage = in_memory();
    queue(&storage).await.send(&large("a")).ttl(Duration::from_secs(60)).await.unwrap();
    after(3 * DAY).await;
    let stop = CancellationToken::new();
    stop.cancel();
    assert_eq!(sweep(&storage, options().stop(stop)).await.unwrap().removed, 0);
    assert_eq!(blobs(&storage).await.len(), 1);
}

/// Leaves 500 blobs that a sweep removes.
async fn expired() -> Faulty {
    let storage = in_memory();
    let ttl = SendOptions::new().ttl(Duration::from_secs(60));
    let tasks = (0..500).map(|n| large(n.to_string()));
    let sent = queue(&storage).await.send_all(tasks).with(ttl).await.unwrap();
    assert_eq!(sent.len(), 500);
    after(3 * DAY).await;
    Faulty::new(&storage)
}

// round 29, core 1: all blobs of the page, up to 5,000, were still removed.
#[tokio::test(start_paused = true)]
async fn sweep_that_is_stopped_ends_within_its_page() {
    let faulty = expired().await;
    faulty.plan_always(Operation::DeleteBlob, Fault::DelayBefore(Duration::from_secs(1)));
    let (stop, began) = (CancellationToken::new(), Instant::now());
    let stopping = async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        stop.cancel();
    };
    let storage = faulty.storage();
    let (swept, ()) = tokio::join!(sweep(&storage, options().stop(stop.clone())), stopping);
    let swept = swept.unwrap();
    assert_eq!(swept.removed, 64, "those that had begun, and no others: {swept:?}");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(blobs(&storage).await.len(), 500 - 64);
}

// round 29, core 1: each blob of the page was tried, for 8 minutes here, and for more than an hour of 5,000.
#[tokio::test(start_paused = true)]
async fn sweep_ends_soon_while_the_storage_hangs() {
    let faulty = expired().await;
    faulty.on(Operation::DeleteBlob, |_| Some(Fault::DelayBefore(Duration::from_secs(30))));
    faulty.on(Operation::DeleteBlob, |_| Some(Fault::LoseRequest(StoreErrorKind::Timeout)));
    let began = Instant::now();
    let swept = sweep(&faulty.storage(), options()).await;
    assert!(swept.is_err(), "{swept:?}");
    assert!(began.elapsed() < Duration::from_secs(95), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn removals_that_fail_now_and_then_end_no_sweep() {
    let faulty = expired().await;
    let refused = Fault::Refuse(StoreErrorKind::Unavailable);
    faulty.on(Operation::DeleteBlob, move |call| (call.nth % 2 == 0).then_some(refused));
    let swept = sweep(&faulty.storage(), options()).await.unwrap();
    assert_eq!(swept.removed, 250);
    assert_eq!(swept.failed, 250);
}

/// By virtual time: 1,000 deletions at the distance of Azure, one after the other, take ten seconds and more.
#[tokio::test(start_paused = true)]
async fn sweep_removes_many_blobs_at_a_time() {
    let faulty = expired().await;
    let began = Instant::now();
    assert_eq!(sweep(&faulty.storage(), options()).await.unwrap().removed, 500);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

/// A handle that does not know of the shards sees an empty queue; the payloads of messages on the shards are
/// still needed.
// I15, F107
#[tokio::test(start_paused = true)]
async fn payloads_of_sharded_queues_are_not_orphans() {
    let plain = in_memory();
    let sharded = Sharded::builder().account("a", plain.clone()).default_shards(4).build().unwrap();
    let queue = queue(&Storage::from(sharded.stores())).await;
    for name in ["a", "b", "c", "d"] {
        queue.send(&large(name)).await.unwrap();
    }
    after(30 * DAY).await;
    assert_eq!(sweep(&plain, options().drained_queues(true)).await.unwrap().removed, 0);
    assert_eq!(blobs(&plain).await.len(), 4);
}

// I15, F49
#[tokio::test(start_paused = true)]
async fn blob_is_deleted_after_its_message() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let _ = queue(&storage).await.send(&large("a")).await.unwrap();
    faulty.plan_always(Operation::DeleteBlob, Fault::Refuse(StoreErrorKind::Unavailable));
    let handler = |_: Task| async { Ok::<(), JobError>(()) };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1, "done; an orphan is left");
    assert_eq!(blobs(&storage).await.len(), 1, "done; an orphan is left");
    let order: Vec<_> = faulty.calls().into_iter().map(|call| call.operation).collect();
    let first = |operation| order.iter().position(|o| *o == operation).unwrap();
    assert!(first(Operation::Delete) < first(Operation::DeleteBlob));
}

// I15, F106
#[tokio::test(start_paused = true)]
async fn payload_is_never_overwritten() {
    let storage = in_memory();
    let _ = queue(&storage).await.send(&large("a")).await.unwrap();
    let _ = queue(&storage).await.send(&large("a")).await.unwrap();
    let names = blobs(&storage).await;
    assert_eq!(names.len(), 2, "names are unique to each write");
    let name = BlobName::new(ContainerName::new("jobqueue-payloads").unwrap(), names[0].clone()).unwrap();
    let again = storage.blobs().put_blob(&name, "other".into(), PutBlob::if_absent()).await;
    assert_eq!(again.unwrap_err().kind(), StoreErrorKind::BlobAlreadyExists);
}

// I15, F107
#[tokio::test(start_paused = true)]
async fn payloads_of_delayed_and_eternal_messages_are_kept() {
    let storage = in_memory();
    let queue = queue(&storage).await;
    let _ = queue.send(&large("late")).delay(Duration::from_secs(7 * DAY)).await.unwrap();
    let _ = queue.send(&large("eternal")).await.unwrap();
    after(400 * DAY).await;
    let swept = sweep(&storage, options().drained_queues(true)).await.unwrap();
    assert_eq!(swept.seen, 2);
    assert_eq!(swept.removed, 0);
}

// I15
#[tokio::test(start_paused = true)]
async fn sweep_can_be_limited_and_keeps_external_blobs() {
    let storage = in_memory();
    let queue = queue(&storage).await;
    for n in 0..10 {
        let ttl = SendOptions::new().ttl(Duration::from_secs(60));
        let _ = queue.send(&large(n.to_string())).with(ttl).await.unwrap();
    }
    let external = BlobName::new(ContainerName::new("jobqueue-payloads").unwrap(), "notes.txt").unwrap();
    storage.blobs().put_blob(&external, "mine".into(), PutBlob::new()).await.unwrap();
    after(3 * DAY).await;
    let seen = Arc::new(std::sync::Mutex::new(SweepReport::default()));
    let sink = Arc::clone(&seen);
    let watched = options().limit(4).on_progress(move |swept| *sink.lock().unwrap() = *swept);
    let swept = sweep(&storage, watched).await.unwrap();
    assert_eq!(swept.removed, 4);
    assert_eq!(*seen.lock().unwrap(), swept);
    assert_eq!(sweep(&storage, options()).await.unwrap().removed, 6);
    assert_eq!(blobs(&storage).await, ["notes.txt"]);
}

// I15
#[tokio::test(start_paused = true)]
async fn worker_sweeps_only_when_configured() {
    let storage = in_memory();
    let queue = queue(&storage).await;
    let _ = queue.send(&large("a")).ttl(Duration::from_secs(60)).await.unwrap();
    after(3 * DAY).await;
    let handler = |_: Task| async { Ok::<(), JobError>(()) };
    let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(DAY)).await.unwrap();
    assert_eq!(blobs(&storage).await.len(), 1);
    let sweeping = worker(&storage).handle(handler).sweep_every(Duration::from_secs(3600));
    let _ = sweeping.build().unwrap().run_until(after(2 * 3600)).await.unwrap();
    assert!(blobs(&storage).await.is_empty());
}
