//! Batches: fan-out, join, and the faults in between.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::batch::OnDeadLetters;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Context, JobError, QueueMessage, Reason, Runtime, State, Storage, Worker, WorkerBuilder};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::death;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "slices", kind = "slice", poison_threshold = 3, backoff(base = "1s", max = "2s"))]
struct Slice {
    n: u64,
}

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "joins", kind = "join")]
struct Join {
    name: String,
}

type Outcomes = Vec<(u64, Result<Option<u64>, Reason>)>;

/// A log of the handlers.
#[derive(Clone, Default)]
struct Log {
    effects: Arc<Mutex<HashMap<u64, u32>>>,
    joins: Arc<Mutex<Vec<(String, Outcomes)>>>,
    join_ids: Arc<Mutex<HashSet<String>>>,
    failing: Arc<Mutex<Option<u64>>>,
}

async fn slice(slice: Slice, ctx: Context, State(log): State<Log>) -> Result<(), JobError> {
    if *log.failing.lock().unwrap() == Some(slice.n) {
        return Err(JobError::dead_letter("planted"));
    }
    *log.effects.lock().unwrap().entry(slice.n).or_default() += 1;
    Ok(ctx.set_result(&(slice.n * 2))?)
}

async fn join(join: Join, ctx: Context, State(log): State<Log>) -> Result<(), JobError> {
    let results = ctx.batch_results::<u64>().await?;
    let results =
        results.into_iter().map(|child| (child.index, child.outcome.map_err(|f| f.reason))).collect();
    log.join_ids.lock().unwrap().insert(ctx.info().id.to_string());
    log.joins.lock().unwrap().push((join.name, results));
    Ok(())
}

fn worker(storage: &Storage, log: &Log) -> WorkerBuilder {
    Worker::builder(storage.clone().with_runtime(Runtime::paused())).state(log.clone()).handle(join)
}

async fn fan_out(storage: &Storage, count: u64, policy: OnDeadLetters) {
    let mut batch = storage.batch("b").await.unwrap();
    batch.on_dead_letters(policy);
    batch.send_all((0..count).map(|n| Slice { n })).await.unwrap();
    batch.then(&Join { name: "b".into() }).await.unwrap();
}

async fn run(storage: &Storage, log: &Log) {
    let _ = worker(storage, log).handle(slice).build().unwrap().run_until_idle().await.unwrap();
}

fn all_done(log: &Log, count: u64) {
    let joins = log.joins.lock().unwrap();
    assert_eq!(joins.len(), 1, "the continuation runs once");
    let expected: Outcomes = (0..count).map(|n| (n, Ok(Some(n * 2)))).collect();
    assert_eq!(joins[0].1, expected);
}

#[tokio::test(start_paused = true)]
async fn the_continuation_runs_once_with_all_results() {
    for count in [0, 1, 3, 99, 100, 101, 200, 350] {
        let (storage, log) = (Storage::memory(), Log::default());
        fan_out(&storage, count, OnDeadLetters::Wait).await;
        run(&storage, &log).await;
        all_done(&log, count);
    }
}

#[tokio::test(start_paused = true)]
async fn children_may_all_end_before_the_batch_is_sealed() {
    for count in [1, 100, 101] {
        let (storage, log) = (Storage::memory(), Log::default());
        let mut batch = storage.batch("b").await.unwrap();
        batch.send_all((0..count).map(|n| Slice { n })).await.unwrap();
        run(&storage, &log).await;
        assert!(log.joins.lock().unwrap().is_empty());
        batch.then(&Join { name: "b".into() }).await.unwrap();
        run(&storage, &log).await;
        all_done(&log, count);
    }
}

#[tokio::test]
async fn a_batch_joins_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("sqlite:{}", folder.path().join("jobs.db").display());
    let (storage, log) = (Storage::connect(&path).await.unwrap(), Log::default());
    fan_out(&storage, 120, OnDeadLetters::Wait).await;
    let worker = Worker::builder(storage).state(log.clone()).handle(slice).handle(join).build().unwrap();
    let _ = worker.run_until_idle().await.unwrap();
    all_done(&log, 120);
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_fan_out_is_started_again_and_doubles_no_child() {
    let (storage, log) = (Storage::memory(), Log::default());
    // Dies after two hundred.
    let mut batch = storage.batch("b").await.unwrap();
    batch.send_all((0..200).map(|n| Slice { n })).await.unwrap();
    drop(batch);
    // The cursor was not written after the second hundred: those are sent again.
    let cursor = jobqueue::storage::BlobName::new("jobqueue-batches".parse().unwrap(), "b/cursor").unwrap();
    storage.blobs().put_blob(&cursor, "100".into(), jobqueue::storage::PutBlob::new()).await.unwrap();
    fan_out(&storage, 1000, OnDeadLetters::Wait).await;
    assert_eq!(storage.queue::<Slice>().await.unwrap().approximate_len().await.unwrap(), 1100);
    run(&storage, &log).await;
    all_done(&log, 1000);
    assert!(log.effects.lock().unwrap().values().all(|runs| *runs == 1), "a child ran twice");
    // Once more, after everything is over.
    fan_out(&storage, 1000, OnDeadLetters::Wait).await;
    run(&storage, &log).await;
    all_done(&log, 1000);
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_counts_as_ended_if_the_batch_is_to_continue() {
    let (storage, log) = (Storage::memory(), Log::default());
    *log.failing.lock().unwrap() = Some(1);
    fan_out(&storage, 3, OnDeadLetters::Continue).await;
    run(&storage, &log).await;
    let joins = log.joins.lock().unwrap();
    assert_eq!(joins.len(), 1);
    assert_eq!(joins[0].1, [(0, Ok(Some(0))), (1, Err(Reason::REJECTED)), (2, Ok(Some(4)))]);
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_holds_the_batch_up_until_it_is_redriven() {
    let (storage, log) = (Storage::memory(), Log::default());
    *log.failing.lock().unwrap() = Some(1);
    fan_out(&storage, 3, OnDeadLetters::Wait).await;
    run(&storage, &log).await;
    assert!(log.joins.lock().unwrap().is_empty());
    *log.failing.lock().unwrap() = None;
    let dead = storage.queue::<Slice>().await.unwrap().dead_letters().unwrap();
    let _ = dead.redrive(DeadLetterOptions::new()).await.unwrap();
    run(&storage, &log).await;
    all_done(&log, 3);
}

#[tokio::test(start_paused = true)]
async fn children_in_another_queue_belong_to_the_batch() {
    let (storage, log) = (Storage::memory(), Log::default());
    let urgent = storage.queue_named::<Slice>("slices-urgent").await.unwrap();
    // The first start is interrupted; the second one sends the rest.
    for count in [2, 5] {
        let mut batch = storage.batch("b").await.unwrap();
        batch.send_all((0..2).map(|n| Slice { n })).to(&urgent).await.unwrap();
        if count > 2 {
            batch.send(&Slice { n: 2 }).to(&urgent).await.unwrap();
            batch.send_all((3..5).map(|n| Slice { n })).await.unwrap();
            batch.then(&Join { name: "b".into() }).await.unwrap();
        }
    }
    assert_eq!(urgent.approximate_len().await.unwrap(), 3);
    assert_eq!(storage.queue::<Slice>().await.unwrap().approximate_len().await.unwrap(), 2);
    let worker = worker(&storage, &log).handle(slice).handle_on("slices-urgent", slice).build().unwrap();
    let _ = worker.run_until_idle().await.unwrap();
    all_done(&log, 5);
}

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "pages", kind = "page")]
struct Page {
    n: u64,
}

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "pagejoins", kind = "page.join")]
struct PageJoin {}

#[tokio::test(start_paused = true)]
async fn a_child_that_fans_out_ends_with_its_own_continuation() {
    let (storage, log) = (Storage::memory(), Log::default());
    let mut batch = storage.batch("book").await.unwrap();
    batch.send_all((0..3).map(|n| Page { n })).await.unwrap();
    batch.then(&Join { name: "book".into() }).await.unwrap();
    let page = |page: Page, ctx: Context| async move {
        let mut batch = ctx.batch(&format!("page-{}", page.n)).await?;
        batch.send_all((0..5).map(|n| Slice { n: page.n * 10 + n })).await?;
        batch.then(&PageJoin {}).await?;
        Ok::<(), JobError>(())
    };
    let page_join = |_: PageJoin, ctx: Context| async move {
        let results = ctx.batch_results::<u64>().await?;
        let sum: u64 = results.into_iter().map(|child| child.outcome.unwrap().unwrap()).sum();
        Ok::<(), JobError>(ctx.set_result(&sum)?)
    };
    let worker = worker(&storage, &log).handle(slice).handle(page).handle(page_join).build().unwrap();
    let _ = worker.run_until_idle().await.unwrap();
    let joins = log.joins.lock().unwrap();
    assert_eq!(joins.len(), 1);
    assert_eq!(joins[0].1, [(0, Ok(Some(20))), (1, Ok(Some(120))), (2, Ok(Some(220)))]);
}

#[tokio::test(start_paused = true)]
async fn a_producer_waits_while_the_queue_is_over_the_mark() {
    let storage = Storage::memory();
    let slices = storage.queue::<Slice>().await.unwrap();
    let sent = slices.send_all(&[Slice { n: 0 }, Slice { n: 1 }]).await.unwrap();
    tokio::time::advance(Duration::from_secs(60)).await;
    let backlog = slices.backlog().await.unwrap();
    assert_eq!(backlog.length, 2);
    assert!(backlog.oldest.is_some());
    let third = Slice { n: 2 };
    let waiting = slices.send(&third).when_below(2).into_future();
    tokio::pin!(waiting);
    assert!(tokio::time::timeout(Duration::from_secs(60), &mut waiting).await.is_err());
    assert!(slices.cancel(sent[0].as_ref().unwrap()).await.unwrap());
    waiting.await.unwrap();
    assert_eq!(slices.approximate_len().await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_continuation_that_is_put_twice_runs_once() {
    let (storage, log) = (Storage::memory(), Log::default());
    fan_out(&storage, 3, OnDeadLetters::Wait).await;
    let faulty = Faulty::new(&storage);
    let copied = Arc::new(AtomicU64::new(0));
    let lost = Arc::clone(&copied);
    faulty.on(Operation::Put, move |call| {
        let first = call.subject == "joins" && lost.fetch_add(1, Ordering::SeqCst) == 0;
        first.then_some(Fault::DropAnswer(StoreErrorKind::Timeout))
    });
    run(&faulty.storage(), &log).await;
    // The child whose end could not be told comes back and puts it again, when the first copy has long been
    // handled.
    tokio::time::sleep(Duration::from_secs(600)).await;
    run(&faulty.storage(), &log).await;
    assert!(copied.load(Ordering::SeqCst) >= 2, "the continuation was not put again");
    all_done(&log, 3);
}

/// The writes include the marker of each child, the continuation, and the deletions after them.
// I12b
#[tokio::test(start_paused = true)]
async fn crash_at_any_write_keeps_exactly_one_continuation() {
    let mut nth = 0;
    loop {
        nth += 1;
        let mut reached = false;
        for performed in [false, true] {
            let (storage, log) = (Storage::memory(), Log::default());
            fan_out(&storage, 2, OnDeadLetters::Wait).await;
            let faulty = Faulty::new(&storage);
            let writes = death::at_write(&faulty, nth, performed);
            let doomed = worker(&faulty.storage(), &log).handle(slice).build().unwrap();
            let doomed = tokio::spawn(async move {
                let _ = doomed.run_until(std::future::pending()).await;
            });
            tokio::time::sleep(Duration::from_secs(20)).await;
            doomed.abort();
            // Its messages come back when their leases are over.
            tokio::time::sleep(Duration::from_secs(600)).await;
            run(&storage, &log).await;
            let joins = log.joins.lock().unwrap().clone();
            let at = format!("death at write {nth}, performed: {performed}");
            // Who dies in the join runs it again, as the same job.
            assert!(!joins.is_empty(), "{at}: no continuation");
            assert!(
                joins.iter().all(|join| join.1 == [(0, Ok(Some(0))), (1, Ok(Some(2)))]),
                "{at}: {joins:?}"
            );
            assert_eq!(log.join_ids.lock().unwrap().len(), 1, "{at}: two continuations");
            reached |= writes.count() == nth;
        }
        if !reached {
            break;
        }
    }
    println!("{} writes", nth - 1);
    assert!(nth > 5, "only {nth} writes");
}

/// The numbers of a batch's progress: children, done, failed, left.
async fn progress(storage: &Storage) -> Option<(u64, u64, u64, u64)> {
    let progress = storage.batch_progress("b").await.unwrap()?;
    Some((progress.children, progress.done, progress.failed, progress.left()))
}

#[tokio::test(start_paused = true)]
async fn progress_is_read_from_outside_at_every_stage() {
    let (storage, log) = (Storage::memory(), Log::default());
    assert_eq!(progress(&storage).await, None, "no container yet");
    let mut batch = storage.batch("b").await.unwrap();
    batch.on_dead_letters(OnDeadLetters::Continue);
    assert_eq!(progress(&storage).await, None, "begun, and nothing sent");
    batch.send_all((0..2).map(|n| Slice { n })).await.unwrap();
    assert_eq!(progress(&storage).await, Some((2, 0, 0, 2)));
    *log.failing.lock().unwrap() = Some(1);
    run(&storage, &log).await;
    assert_eq!(progress(&storage).await, Some((2, 1, 1, 0)));
    batch.send_all((2..150).map(|n| Slice { n })).await.unwrap();
    assert!(!storage.batch_progress("b").await.unwrap().unwrap().sealed);
    batch.then(&Join { name: "b".into() }).await.unwrap();
    let sealed = storage.batch_progress("b").await.unwrap().unwrap();
    assert!(sealed.sealed && !sealed.finished);
    assert_eq!(progress(&storage).await, Some((150, 1, 1, 148)));
    run(&storage, &log).await;
    assert_eq!(progress(&storage).await, Some((150, 149, 1, 0)));
    assert!(storage.batch_progress("b").await.unwrap().unwrap().finished);
    // A batch whose id begins like this one's is another one.
    assert_eq!(storage.batch_progress("b-2").await.unwrap(), None);
    assert!(storage.batch_progress("b/0").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn progress_counts_a_waiting_dead_letter_as_left() {
    let (storage, log) = (Storage::memory(), Log::default());
    *log.failing.lock().unwrap() = Some(3);
    fan_out(&storage, 500, OnDeadLetters::Wait).await;
    run(&storage, &log).await;
    let faulty = Faulty::new(&storage);
    assert_eq!(progress(&faulty.storage()).await, Some((500, 499, 0, 1)));
    assert_eq!(faulty.calls_of(Operation::GetBlob), 3);
    assert_eq!(faulty.calls_of(Operation::ListBlobs), 1);
    *log.failing.lock().unwrap() = None;
    let dead = storage.queue::<Slice>().await.unwrap().dead_letters().unwrap();
    let _ = dead.redrive(DeadLetterOptions::new()).await.unwrap();
    run(&storage, &log).await;
    assert_eq!(progress(&storage).await, Some((500, 500, 0, 0)));
}
