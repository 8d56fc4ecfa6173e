//! The sweep of batches that ended long ago, or were abandoned.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jobqueue::batch::{BatchSweepOptions, OnDeadLetters, sweep_batches};
use jobqueue::clock::{Clock, ManualClock};
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::storage::{ContainerName, Operation, StoreErrorKind};
use jobqueue::{Context, ErrorKind, JobError, QueueMessage, Report, Runtime, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{clock, in_memory, worker};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};

use crate::batch_faults::{Join, Log, Slice, run};

const DAY: Duration = Duration::from_secs(86_400);

/// Returns the number of blobs of batches.
async fn left(storage: &Storage, batch: &str) -> usize {
    let container = ContainerName::new("jobqueue-batches").unwrap();
    storage.blobs().list_blobs(&container, batch, None).await.unwrap().blobs.len()
}

/// Returns the number of notes of swept batches.
async fn notes(storage: &Storage, batch: &str) -> usize {
    let container = ContainerName::new("jobqueue-swept-batches").unwrap();
    storage.blobs().list_blobs(&container, batch, None).await.unwrap().blobs.len()
}

/// Returns whether only the note is left that the batch was swept.
async fn is_swept(storage: &Storage, id: &str) -> bool {
    left(storage, &format!("{id}/")).await == 0 && notes(storage, id).await == 1
}

async fn small(storage: &Storage, id: &str) {
    let mut batch = storage.batch(id).await.unwrap();
    batch.send_all((0..3).map(|n| Slice { n })).await.unwrap();
    batch.then(&Join {}).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn sweep_removes_only_batches_that_ended_long_ago() {
    let (storage, log) = (in_memory(), Log::default());
    assert_eq!(sweep_batches(&storage, BatchSweepOptions::new()).await.unwrap(), 0, "no container yet");
    small(&storage, "old").await;
    run(&storage, &log).await;
    sleep(DAY * 10).await;
    small(&storage, "new").await;
    run(&storage, &log).await;
    small(&storage, "waiting").await;
    sleep(DAY * 5).await;
    let waiting = left(&storage, "waiting/").await;
    assert_eq!(sweep_batches(&storage, BatchSweepOptions::new()).await.unwrap(), 1);
    assert!(is_swept(&storage, "old").await);
    assert_eq!(left(&storage, "waiting/").await, waiting);
    assert!(left(&storage, "new/").await > 0);
    assert_eq!(sweep_batches(&storage, BatchSweepOptions::new()).await.unwrap(), 0);
    // The batch that was kept continues.
    run(&storage, &log).await;
    assert_eq!(log.joins.lock().unwrap().len(), 3);
    let again = storage.batch("old").await.unwrap_err();
    assert!(again.kind() == ErrorKind::Conflict && again.to_string().contains("an id of its own"), "{again}");
    sleep(DAY * 400).await;
    assert_eq!(sweep_batches(&storage, BatchSweepOptions::new()).await.unwrap(), 2);
    assert_eq!(notes(&storage, "old").await, 0);
    let _ = storage.batch("old").await.unwrap();
}

/// A batch without a plan is new only if no sweep has removed that.
#[tokio::test(start_paused = true)]
async fn batch_that_is_swept_while_it_is_opened_does_not_begin_anew() {
    let (storage, log) = (in_memory(), Log::default());
    small(&storage, "old").await;
    run(&storage, &log).await;
    sleep(DAY * 15).await;
    let faulty = Faulty::new(&storage);
    let opening = faulty.storage();
    let slow = Fault::DelayBefore(Duration::from_secs(5));
    faulty.on(Operation::GetBlob, move |call| call.subject.contains("old/plan").then_some(slow));
    let sweep = async {
        sleep(Duration::from_secs(1)).await;
        sweep_batches(&storage, BatchSweepOptions::new()).await
    };
    let (opened, swept) = tokio::join!(opening.batch("old"), sweep);
    assert_eq!(swept.unwrap(), 1);
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::Conflict);
}

// round 28, coordination C2: it was sealed anew, and its continuation was never sent.
#[tokio::test(start_paused = true)]
async fn start_that_was_opened_before_the_sweep_of_its_batch_is_tried_again() {
    let (storage, log) = (in_memory(), Log::default());
    small(&storage, "old").await;
    run(&storage, &log).await;
    sleep(DAY * 15).await;
    let mut first = storage.batch("old").await.unwrap();
    let mut second = storage.batch("old").await.unwrap();
    second.send_all((0..3).map(|n| Slice { n })).await.unwrap();
    assert_eq!(sweep_batches(&storage, BatchSweepOptions::new()).await.unwrap(), 1);
    let refused = [
        first.send_all((0..3).map(|n| Slice { n })).await.unwrap_err(),
        second.then(&Join {}).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.is_retryable(), "{error}");
    }
    // The next start reads the tombstone.
    assert!(!storage.batch("old").await.unwrap_err().is_retryable());
}

#[tokio::test(start_paused = true)]
async fn a_sweep_removes_what_was_abandoned_only_if_told_to() {
    let (storage, log) = (in_memory(), Log::default());
    small(&storage, "left").await;
    sleep(DAY * 100).await;
    assert_eq!(sweep_batches(&storage, BatchSweepOptions::new()).await.unwrap(), 0);
    assert_eq!(sweep_batches(&storage, BatchSweepOptions::new().abandoned(DAY * 101)).await.unwrap(), 0);
    assert_eq!(sweep_batches(&storage, BatchSweepOptions::new().abandoned(DAY * 99)).await.unwrap(), 1);
    assert!(is_swept(&storage, "left").await);
    assert_eq!(storage.batch("left").await.unwrap_err().kind(), ErrorKind::Conflict);
    // Its children still run; their end leads nowhere.
    run(&storage, &log).await;
    assert_eq!(log.runs.lock().unwrap().len(), 3);
    assert_eq!(log.joins.lock().unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn sweep_repeats_a_request_that_the_storage_could_not_serve() {
    for operation in [Operation::ListBlobs, Operation::DeleteBlob] {
        let (storage, log) = (in_memory(), Log::default());
        small(&storage, "one").await;
        small(&storage, "two").await;
        run(&storage, &log).await;
        sleep(DAY * 15).await;
        let faulty = Faulty::new(&storage);
        faulty.plan(operation, 2, Fault::Refuse(StoreErrorKind::Unavailable));
        assert_eq!(
            sweep_batches(&faulty.storage(), BatchSweepOptions::new()).await.unwrap(),
            2,
            "{operation:?}"
        );
        assert_eq!((left(&storage, "").await, notes(&storage, "").await), (0, 2), "{operation:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn sweep_removes_the_other_batches_when_one_cannot_be_removed() {
    let (storage, log) = (in_memory(), Log::default());
    for id in ["one", "stuck", "two"] {
        small(&storage, id).await;
    }
    run(&storage, &log).await;
    sleep(DAY * 15).await;
    let faulty = Faulty::new(&storage);
    faulty.on(Operation::DeleteBlob, |call| {
        call.subject.contains("/stuck/").then_some(Fault::Refuse(StoreErrorKind::Unavailable))
    });
    let error = sweep_batches(&faulty.storage(), BatchSweepOptions::new()).await.unwrap_err();
    assert!(error.to_string().starts_with("2 batches were removed, and 1 could not be"), "{error}");
    assert!(is_swept(&storage, "one").await && is_swept(&storage, "two").await);
    assert_eq!(left(&storage, "stuck/done").await, 1);
    assert_eq!(sweep_batches(&storage, BatchSweepOptions::new()).await.unwrap(), 1);
}

/// By virtual time: some 600 deletions at the distance of Azure, one after the other, take more than ten
/// seconds.
#[tokio::test(start_paused = true)]
async fn sweep_deletes_the_blobs_of_a_large_batch_at_once() {
    let (storage, log) = (in_memory(), Log::default());
    super::fan_out(&storage, 600, OnDeadLetters::Wait).await;
    run(&storage, &log).await;
    sleep(DAY * 15).await;
    let faulty = Faulty::new(&storage);
    let began = Instant::now();
    assert_eq!(sweep_batches(&faulty.storage(), BatchSweepOptions::new()).await.unwrap(), 1);
    assert!(faulty.calls_of(Operation::DeleteBlob) > 600);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

/// The note that a batch was swept is written first, so that the next sweep completes one that died at any
/// point.
#[tokio::test(start_paused = true)]
async fn a_sweep_that_is_interrupted_anywhere_is_finished_by_the_next() {
    let mut interrupted = 0;
    for nth in 1.. {
        let (storage, log) = (in_memory(), Log::default());
        small(&storage, "old").await;
        run(&storage, &log).await;
        sleep(DAY * 15).await;
        let faulty = Faulty::new(&storage);
        let deleted = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&deleted);
        faulty.on(Operation::DeleteBlob, move |_| {
            let dies = count.fetch_add(1, Ordering::SeqCst) + 1 >= nth;
            dies.then_some(Fault::Refuse(StoreErrorKind::Unavailable))
        });
        let swept = sweep_batches(&faulty.storage(), BatchSweepOptions::new()).await;
        if swept.is_ok() {
            break;
        }
        interrupted += 1;
        assert_eq!(storage.batch("old").await.unwrap_err().kind(), ErrorKind::Conflict, "at {nth}");
        assert_eq!(sweep_batches(&storage, BatchSweepOptions::new()).await.unwrap(), 1);
        assert!(is_swept(&storage, "old").await);
    }
    // Plan, cursor, sent, done, four claims, three markers.
    assert!(interrupted >= 10, "only {interrupted} deletions");
}

#[tokio::test(start_paused = true)]
async fn a_sweep_with_a_clock_that_is_ahead_removes_no_batch_before_its_time() {
    let (storage, log) = (in_memory(), Log::default());
    small(&storage, "ended").await;
    run(&storage, &log).await;
    small(&storage, "under_way").await;
    let ahead = Arc::new(ManualClock::at(clock().now() + DAY * 400));
    let ahead = storage.clone().with_runtime(Runtime::virtual_time(ahead));
    assert_eq!(sweep_batches(&ahead, BatchSweepOptions::new().abandoned(DAY)).await.unwrap(), 0);
}

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "mailings", kind = "mailing")]
struct Mailing {}

/// Runs a job that sends a batch.
async fn mail(storage: &Storage, fails: bool) -> Report {
    let handler = move |_: Mailing, ctx: Context| async move {
        let mut batch = ctx.batch("mailing-7").await?;
        batch.send_all((0..3).map(|n| Slice { n })).await?;
        batch.then(&Join {}).await?;
        if fails { Err(JobError::dead_letter("it failed for good")) } else { Ok(()) }
    };
    worker(storage).handle(handler).build().unwrap().run_until_idle().await.unwrap()
}

// A job sends a batch, fails for good, and is redriven after the batch has ended and was swept.
#[tokio::test(start_paused = true)]
async fn job_that_is_redriven_after_the_sweep_of_its_batch_sends_no_child_again() {
    let (storage, log) = (in_memory(), Log::default());
    let queue = storage.queue::<Mailing>().await.unwrap();
    let _ = queue.send(&Mailing {}).await.unwrap();
    assert_eq!(mail(&storage, true).await.dead_lettered, 1);
    run(&storage, &log).await;
    sleep(DAY * 15).await;
    // Quiet: both sweeps list before one deletes.
    let slow = Faulty::quiet(&storage);
    slow.plan_always(Operation::DeleteBlob, Fault::DelayBefore(Duration::from_secs(60)));
    let sweep = async |storage| sweep_batches(&storage, BatchSweepOptions::new()).await.unwrap();
    // Two at once.
    assert_eq!(tokio::join!(sweep(slow.storage()), sweep(storage.clone())), (1, 1));
    let _ = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    let report = mail(&storage, false).await;
    assert_eq!(report.completed, 1, "{report:?}");
    run(&storage, &log).await;
    let runs = log.runs.lock().unwrap().values().sum::<u32>();
    assert_eq!((runs, log.joins.lock().unwrap().len()), (3, 1));
    assert!(is_swept(&storage, "mailing-7").await);
    assert_eq!(
        storage.batch("mailing-7").await.unwrap_err().kind(),
        ErrorKind::Conflict,
        "of another program"
    );
    sleep(DAY * 400).await;
    let _ = sweep_batches(&storage, BatchSweepOptions::new()).await.unwrap();
    assert_eq!(notes(&storage, "mailing-7").await, 0);
}

// The sweep ended at the plan, when the records of what was sent and has run were gone.
#[tokio::test(start_paused = true)]
async fn child_that_is_redriven_after_an_interrupted_sweep_continues_nothing() {
    let (storage, log) = (in_memory(), Log::default());
    let queue = storage.queue::<Mailing>().await.unwrap();
    let mut batch = storage.batch("one").await.unwrap();
    batch.on_dead_letters(OnDeadLetters::Continue);
    batch.send(&Mailing {}).await.unwrap();
    batch.then(&Join {}).await.unwrap();
    let refuse = async |_: Mailing, _: Context| Err::<(), _>(JobError::dead_letter("no such list"));
    let report = worker(&storage).handle(refuse).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.dead_lettered, 1);
    run(&storage, &log).await;
    assert_eq!(log.joins.lock().unwrap().len(), 1);
    sleep(DAY * 15).await;
    let faulty = Faulty::new(&storage);
    faulty.on(Operation::DeleteBlob, |call| {
        ["/plan", "/token"].iter().any(|name| call.subject.ends_with(name)).then_some(Fault::Hang)
    });
    let stopped = faulty.storage();
    let _ = timeout(Duration::from_secs(60), sweep_batches(&stopped, BatchSweepOptions::new()))
        .await
        .unwrap_err();
    let _ = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    let finish = async |_: Mailing, _: Context| Ok::<(), JobError>(());
    let report = worker(&storage).handle(finish).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1, "{report:?}");
    run(&storage, &log).await;
    assert_eq!(log.joins.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn sweep_of_abandoned_batches_leaves_one_that_goes_on() {
    // Behind the listing of the notes: before the batch is listed by itself, and before the first page that
    // would be deleted.
    for nth in [3, 4] {
        sweep_beside_a_batch_that_goes_on(nth).await;
    }
}

async fn sweep_beside_a_batch_that_goes_on(nth: u64) {
    let (storage, log) = (in_memory(), Log::default());
    small(&storage, "left").await;
    sleep(DAY * 4).await;
    let faulty = Faulty::new(&storage);
    faulty.plan(Operation::ListBlobs, nth, Fault::DelayBefore(Duration::from_secs(60)));
    let swept = faulty.storage();
    let sweep = sweep_batches(&swept, BatchSweepOptions::new().abandoned(DAY * 3));
    // The queue was paused all the time.
    let resumed = async {
        sleep(Duration::from_secs(5)).await;
        run(&storage, &log).await;
    };
    let (swept, ()) = tokio::join!(sweep, resumed);
    assert_eq!(swept.unwrap(), 0, "listing {nth}");
    assert_eq!((log.runs.lock().unwrap().len(), log.joins.lock().unwrap().len()), (3, 1));
    assert!(left(&storage, "left/").await > 5);
}

#[tokio::test(start_paused = true)]
async fn finished_batch_stays_its_time_also_if_abandoned_ones_go_sooner() {
    let (storage, log) = (in_memory(), Log::default());
    small(&storage, "ended").await;
    run(&storage, &log).await;
    small(&storage, "left").await;
    sleep(DAY * 4).await;
    let sweep = async || sweep_batches(&storage, BatchSweepOptions::new().abandoned(DAY * 3)).await.unwrap();
    assert_eq!(sweep().await, 1);
    assert!(is_swept(&storage, "left").await);
    assert!(left(&storage, "ended/").await > 5);
    sleep(DAY * 11).await;
    assert_eq!(sweep().await, 1);
    assert!(is_swept(&storage, "ended").await);
}
