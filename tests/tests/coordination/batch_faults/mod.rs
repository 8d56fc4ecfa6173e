//! Batches under many faults at once, nested, over shards, and the remains after a sweep. In paused time on
//! memory.

mod copies;
mod members;
mod sweep;
mod unrunnable;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::batch::OnDeadLetters;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::sharded::Sharded;
use jobqueue::storage::{BlobName, ContainerName};
use jobqueue::storage::{Operation, PutBlob, StoreErrorKind};
use jobqueue::{
    Context, JobError, QueueMessage, QueueName, Reason, Runtime, State, Storage, Worker, WorkerBuilder,
    memory,
};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{after, clock, in_memory, worker};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "slices", kind = "slice", poison_threshold = 4, backoff(base = "1s", max = "2s"))]
struct Slice {
    #[message(key)]
    n: u64,
}

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "joins", kind = "join")]
struct Join {}

/// A child that fans out itself.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "pages", kind = "page")]
struct Page {
    n: u64,
    waits: bool,
}

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "pagejoins", kind = "page.join")]
struct PageJoin {}

/// A child's result, or the reason of its dead letter.
type Ends = Vec<Result<Option<u64>, Reason>>;

/// A log of the handlers, and the children to dead-letter.
#[derive(Clone, Default)]
struct Log {
    runs: Arc<Mutex<BTreeMap<u64, u32>>>,
    joins: Arc<Mutex<Vec<Ends>>>,
    page_joins: Arc<Mutex<Vec<Ends>>>,
    hopeless: Arc<Mutex<Vec<u64>>>,
}

async fn slice(slice: Slice, ctx: Context, State(log): State<Log>) -> Result<(), JobError> {
    if log.hopeless.lock().unwrap().contains(&slice.n) {
        return Err(JobError::dead_letter("planted"));
    }
    *log.runs.lock().unwrap().entry(slice.n).or_default() += 1;
    Ok(ctx.set_result(&slice.n)?)
}

async fn ends(ctx: &Context) -> Result<Ends, JobError> {
    let results = ctx.batch_results::<u64>().await?;
    assert!(results.iter().map(|child| child.index).eq(0..results.len() as u64));
    Ok(results.into_iter().map(|child| child.outcome.map_err(|failure| failure.reason)).collect())
}

async fn join(_: Join, ctx: Context, State(log): State<Log>) -> Result<(), JobError> {
    let ends = ends(&ctx).await?;
    log.joins.lock().unwrap().push(ends);
    Ok(())
}

async fn page(page: Page, ctx: Context) -> Result<(), JobError> {
    let mut batch = ctx.batch(&format!("page-{}", page.n)).await?;
    batch.on_dead_letters(if page.waits { OnDeadLetters::Wait } else { OnDeadLetters::Continue });
    batch.send_all((0..3).map(|n| Slice { n: page.n * 10 + n })).await?;
    Ok(batch.then(&PageJoin {}).await?)
}

async fn page_join(_: PageJoin, ctx: Context, State(log): State<Log>) -> Result<(), JobError> {
    let ends = ends(&ctx).await?;
    ctx.set_result(&ends.iter().flatten().flatten().sum::<u64>())?;
    log.page_joins.lock().unwrap().push(ends);
    Ok(())
}

fn builder(storage: &Storage, log: &Log) -> WorkerBuilder {
    worker(storage).state(log.clone()).handle(join)
}

async fn run(storage: &Storage, log: &Log) {
    let worker = builder(storage, log).handle(slice).handle(page).handle(page_join);
    let _ = worker.build().unwrap().run_until_idle().await.unwrap();
}

async fn fan_out(storage: &Storage, count: u64, policy: OnDeadLetters) {
    let mut batch = storage.batch("b").await.unwrap();
    batch.on_dead_letters(policy);
    batch.send_all((0..count).map(|n| Slice { n })).await.unwrap();
    batch.then(&Join {}).await.unwrap();
}

fn blob(name: &str) -> BlobName {
    BlobName::new(ContainerName::new("jobqueue-batches").unwrap(), name).unwrap()
}

/// Failures that are retried, dead letters, second copies of a fifth of the messages, deletions that are
/// lost.
#[tokio::test(start_paused = true)]
async fn ten_thousand_children_with_failures_join_once() {
    const CHILDREN: u64 = 10_000;
    let seed = jobqueue_tests::seed();
    let mut random = StdRng::seed_from_u64(seed);
    let (storage, log) = (in_memory(), Log::default());
    let mut batch = storage.batch("b").await.unwrap();
    batch.on_dead_letters(OnDeadLetters::Continue);
    batch.send_all((0..CHILDREN).map(|n| Slice { n })).await.unwrap();
    drop(batch);
    // As if the fan-out had been interrupted before it could say how far it had come.
    storage.blobs().put_blob(&blob("b/cursor"), "8000".into(), PutBlob::new()).await.unwrap();
    fan_out(&storage, CHILDREN, OnDeadLetters::Continue).await;
    let slices = storage.queue::<Slice>().await.unwrap();
    assert_eq!(slices.approximate_len().await.unwrap(), CHILDREN + 2000);

    let hopeless: Vec<u64> = (0..CHILDREN).filter(|_| random.random_bool(0.01)).collect();
    *log.hopeless.lock().unwrap() = hopeless.clone();
    let faulty = Faulty::new(&storage);
    for operation in [Operation::Delete, Operation::DeleteAll] {
        let random = Mutex::new(StdRng::seed_from_u64(seed ^ operation as u64));
        faulty.on(operation, move |_| match random.lock().unwrap().random_range(0..50) {
            0 => Some(Fault::LoseRequest(StoreErrorKind::Timeout)),
            1 => Some(Fault::DropAnswer(StoreErrorKind::Timeout)),
            _ => None,
        });
    }
    let dice = Arc::new(Mutex::new(random));
    let flaky = move |child: Slice, ctx: Context, State(log): State<Log>| {
        let fails = dice.lock().unwrap().random_bool(0.1);
        async move {
            if fails && ctx.info().attempt < 4 {
                return Err(JobError::retry_after(Duration::ZERO, "planted"));
            }
            slice(child, ctx, State(log)).await
        }
    };
    while !slices.is_empty().await.unwrap() || log.joins.lock().unwrap().is_empty() {
        let worker = builder(&faulty.storage(), &log).handle(flaky.clone()).circuit_breaker(None);
        let _ = worker.build().unwrap().run_until_idle().await.unwrap();
        // A message that was not deleted is delivered again.
        sleep(Duration::from_secs(60)).await;
    }
    let joins = log.joins.lock().unwrap();
    assert_eq!(joins.len(), 1, "seed {seed}: the continuation runs once");
    for (n, end) in (0..).zip(&joins[0]) {
        let expected = if hopeless.contains(&n) { Err(Reason::REJECTED) } else { Ok(Some(n)) };
        assert_eq!(*end, expected, "seed {seed}: child {n}");
    }
    assert_eq!(joins[0].len() as u64, CHILDREN);
    let runs = log.runs.lock().unwrap();
    assert_eq!((runs.len() + hopeless.len()) as u64, CHILDREN, "seed {seed}");
    assert!(runs.values().all(|runs| *runs == 1), "seed {seed}: a child ran twice");
}

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "sheets", kind = "sheet")]
struct Sheet {
    data: String,
}

/// Checks that a duplicate of a child, whose deletion may have failed, does not count as the end of the
/// message that waits for its second attempt.
async fn a_copy_ends_nothing(size: usize, deletions_fail: bool) {
    let (storage, log) = (in_memory(), Log::default());
    for _ in 0..2 {
        let mut batch = storage.batch("b").await.unwrap();
        batch.send_all([Sheet { data: "x".repeat(size) }]).await.unwrap();
        storage.blobs().delete_blob(&blob("b/cursor"), None).await.unwrap();
    }
    let mut batch = storage.batch("b").await.unwrap();
    batch.send_all([Sheet { data: "x".repeat(size) }]).await.unwrap();
    batch.then(&Join {}).await.unwrap();
    let sheets = storage.queue::<Sheet>().await.unwrap();
    assert_eq!(sheets.approximate_len().await.unwrap(), 3);

    let faulty = Faulty::new(&storage);
    let begin = tokio::time::Instant::now();
    for operation in [Operation::Delete, Operation::DeleteAll] {
        let early = move || deletions_fail && begin.elapsed() < Duration::from_secs(15);
        faulty.on(operation, move |_| early().then_some(Fault::LoseRequest(StoreErrorKind::Timeout)));
    }
    let sheet = async |_: Sheet, ctx: Context| match ctx.info().attempt {
        1 => Err(JobError::retry_after(Duration::from_secs(20), "planted")),
        _ => Ok(ctx.set_result(&7_u64)?),
    };
    // One worker all the time, for it is its memory of what is done that must not be wrong.
    let worker = builder(&faulty.storage(), &log).handle(sheet).concurrency(1).build().unwrap();
    let _ = worker.run_until(sleep(Duration::from_secs(600))).await.unwrap();
    assert!(sheets.is_empty().await.unwrap());
    assert_eq!(*log.joins.lock().unwrap(), [[Ok(Some(7))]]);
}

// I1, I12a
#[tokio::test(start_paused = true)]
async fn duplicate_of_a_perhaps_deleted_child_does_not_end_it() {
    a_copy_ends_nothing(10, true).await;
}

// I1, I12a
#[tokio::test(start_paused = true)]
async fn duplicate_of_a_child_with_a_blob_does_not_end_it() {
    a_copy_ends_nothing(70_000, false).await;
}

/// Returns a worker whose handlers log that they begin, and then take an hour.
fn slow(storage: &Storage, log: &Log) -> Worker {
    let slice = async |slice: Slice, State(log): State<Log>| {
        *log.runs.lock().unwrap().entry(slice.n).or_default() += 1;
        after(3_600).await;
        Ok::<_, JobError>(())
    };
    let join = async |_: Join, ctx: Context, State(log): State<Log>| {
        let ends = ends(&ctx).await?;
        log.joins.lock().unwrap().push(ends);
        after(3_600).await;
        Ok::<_, JobError>(())
    };
    worker(storage).state(log.clone()).handle(slice).handle(join).build().unwrap()
}

// I1, I12a
#[tokio::test(start_paused = true)]
async fn copies_of_child_and_continuation_wait_as_long_as_the_first_runs() {
    let (storage, log) = (in_memory(), Log::default());
    let mut interrupted = storage.batch("b").await.unwrap();
    interrupted.send_all([Slice { n: 0 }]).await.unwrap();
    drop(interrupted);
    storage.blobs().delete_blob(&blob("b/cursor"), None).await.unwrap();
    fan_out(&storage, 1, OnDeadLetters::Wait).await;
    let time = async {
        after(3_700).await;
        // As if two children had ended together.
        storage.blobs().delete_blob(&blob("b/sent"), None).await.unwrap();
        fan_out(&storage, 1, OnDeadLetters::Wait).await;
        after(5_000).await;
    };
    let report = slow(&storage, &log).run_until(time).await.unwrap();
    assert_eq!((&*log.runs.lock().unwrap(), log.joins.lock().unwrap().len()), (&BTreeMap::from([(0, 1)]), 1));
    assert_eq!(report.completed + report.duplicates, 4, "{report:?}");
}

/// A copy whose payload is gone ends as a dead letter, and does not count as the child.
// I1, I12a
#[tokio::test(start_paused = true)]
async fn dead_lettered_duplicate_does_not_end_the_child() {
    let (storage, log) = (in_memory(), Log::default());
    let payloads = ContainerName::new("jobqueue-payloads").unwrap();
    let mut stored = Vec::new();
    for _ in 0..2 {
        let mut batch = storage.batch("b").await.unwrap();
        batch.on_dead_letters(OnDeadLetters::Continue);
        batch.send_all([Sheet { data: "x".repeat(70_000) }]).await.unwrap();
        drop(batch);
        storage.blobs().delete_blob(&blob("b/cursor"), None).await.unwrap();
        let now = storage.blobs().list_blobs(&payloads, "", None).await.unwrap().blobs;
        stored.push(now.into_iter().map(|(name, _)| name).collect::<Vec<_>>());
    }
    let of_the_copy = stored[1].iter().find(|name| !stored[0].contains(name)).unwrap();
    storage.blobs().delete_blob(&BlobName::new(payloads, of_the_copy).unwrap(), None).await.unwrap();
    storage.blobs().put_blob(&blob("b/cursor"), "1".into(), PutBlob::new()).await.unwrap();
    let mut batch = storage.batch("b").await.unwrap();
    batch.send_all([Sheet { data: "x".repeat(70_000) }]).await.unwrap();
    batch.then(&Join {}).await.unwrap();

    let sheet = async |_: Sheet, ctx: Context| match ctx.info().attempt {
        1 => Err(JobError::retry_after(Duration::from_secs(86_400), "planted")),
        _ => Ok(ctx.set_result(&7_u64)?),
    };
    let worker = builder(&storage, &log).handle(sheet).concurrency(1).build().unwrap();
    let _ = worker.run_until(sleep(Duration::from_secs(100_000))).await.unwrap();
    let dead = storage.queue::<Sheet>().await.unwrap().dead_letters().unwrap();
    assert_eq!(dead.approximate_len().await.unwrap(), 1);
    assert_eq!(*log.joins.lock().unwrap(), [[Ok(Some(7))]]);
}

async fn book(storage: &Storage, waits: bool) {
    let mut batch = storage.batch("book").await.unwrap();
    batch.send_all((1..=3).map(|n| Page { n, waits })).await.unwrap();
    batch.then(&Join {}).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn inner_batch_that_accepts_dead_letters_ends_the_outer() {
    let (storage, log) = (in_memory(), Log::default());
    log.hopeless.lock().unwrap().push(21);
    book(&storage, false).await;
    run(&storage, &log).await;
    let mut pages = log.page_joins.lock().unwrap().clone();
    pages.sort_by_key(|ends| ends[0].clone().unwrap());
    let rejected = || Err(Reason::REJECTED);
    assert_eq!(pages[1], [Ok(Some(20)), rejected(), Ok(Some(22))]);
    assert_eq!(pages.len(), 3);
    assert_eq!(*log.joins.lock().unwrap(), [vec![Ok(Some(33)), Ok(Some(42)), Ok(Some(93))]]);
}

#[tokio::test(start_paused = true)]
async fn inner_batch_waiting_for_a_dead_letter_blocks_the_outer() {
    let (storage, log) = (in_memory(), Log::default());
    log.hopeless.lock().unwrap().push(21);
    book(&storage, true).await;
    run(&storage, &log).await;
    assert_eq!(log.page_joins.lock().unwrap().len(), 2);
    assert_eq!(log.joins.lock().unwrap().len(), 0);
    log.hopeless.lock().unwrap().clear();
    let dead = storage.queue::<Slice>().await.unwrap().dead_letters().unwrap();
    assert_eq!(dead.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
    run(&storage, &log).await;
    assert_eq!(log.page_joins.lock().unwrap().len(), 3);
    assert_eq!(*log.joins.lock().unwrap(), [vec![Ok(Some(33)), Ok(Some(63)), Ok(Some(93))]]);
    assert!(log.runs.lock().unwrap().values().all(|runs| *runs == 1));
}

#[tokio::test(start_paused = true)]
async fn children_that_end_at_the_same_time_share_their_listings() {
    const CHILDREN: u64 = 300;
    let (storage, log) = (in_memory(), Log::default());
    fan_out(&storage, CHILDREN, OnDeadLetters::Wait).await;
    let faulty = Faulty::new(&storage);
    let worker = builder(&faulty.storage(), &log).handle(slice).concurrency(64).build().unwrap();
    let _ = worker.run_until_idle().await.unwrap();
    assert_eq!(*log.joins.lock().unwrap(), [(0..CHILDREN).map(|n| Ok(Some(n))).collect::<Ends>()]);
    let plans = faulty.calls().iter().filter(|call| call.subject.ends_with("b/plan")).count();
    // The continuation reads it too.
    assert!(plans < 30, "the plan of a sealed batch was read {plans} times");
    let listings = faulty.calls_of(Operation::ListBlobs) as u64;
    assert!(listings < CHILDREN / 3, "{listings} listings");
}

/// I17: children and continuations are on several queues of two accounts; the markers are not.
#[tokio::test(start_paused = true)]
async fn a_batch_over_shards_joins_once_also_when_they_become_more() {
    let accounts = [(); 2].map(|()| memory::open_on(Runtime::new().with_clock(clock())));
    let log = Log::default();
    let open = || {
        let builder = Sharded::builder().shards("slices", 4).shards("joins", 2);
        let named = builder.account("a", accounts[0].clone()).account("b", accounts[1].clone());
        named.build().unwrap()
    };
    let sharded = open();
    fan_out(&Storage::from(sharded.stores()), 250, OnDeadLetters::Wait).await;
    for account in &accounts {
        let queues = account.queues().list_queues("slices").await.unwrap();
        let mut filled = 0;
        for queue in queues {
            filled +=
                u32::from(account.queues().queue_properties(&queue).await.unwrap().approximate_count > 0);
        }
        assert!(filled >= 2, "not spread");
    }
    sharded.reshard(&QueueName::new("slices").unwrap(), 6).await.unwrap();
    run(&Storage::from(open().stores()), &log).await;
    assert_eq!(*log.joins.lock().unwrap(), [(0..250).map(|n| Ok(Some(n))).collect::<Ends>()]);
    // The same fan-out again sends nothing.
    fan_out(&Storage::from(sharded.stores()), 250, OnDeadLetters::Wait).await;
    run(&Storage::from(sharded.stores()), &log).await;
    assert!(log.joins.lock().unwrap().len() == 1 && log.runs.lock().unwrap().values().all(|n| *n == 1));
}
