//! Two messages of one child: the second waits for the first, of which nothing is written while it runs for a
//! short time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::batch::OnDeadLetters;
use jobqueue::settings::Metadata;
use jobqueue::storage::{GetMessages, Operation, StoreErrorKind};
use jobqueue::{Context, JobError, JobInfo, State};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{after, in_memory, worker};
use tokio::time::{Instant, sleep};

use super::{Join, Log, Page, Sheet, Slice, blob, builder, fan_out, join, page, page_join, run, slice};

/// A message that is put, received and deleted, its marker, and a share of the listings of its group. The
/// results are not read.
#[tokio::test(start_paused = true)]
async fn child_costs_at_most_four_requests() {
    const CHILDREN: u64 = 1_000;
    let (faulty, log) = (Faulty::deleting_one_by_one(&in_memory()), Log::default());
    let storage = faulty.storage();
    fan_out(&storage, CHILDREN, OnDeadLetters::Wait).await;
    let join = |_: Join| async { Ok::<_, JobError>(()) };
    let worker = worker(&storage).state(log).handle(slice).handle(join).build().unwrap();
    let _ = worker.run_until_idle().await.unwrap();
    // Two children that end together may both send the continuation.
    let deletions = faulty.calls_of(Operation::Delete) as u64;
    assert!((CHILDREN + 1..=CHILDREN + 2).contains(&deletions), "{deletions} deletions");
    // On Azure a list of messages has a request for each.
    let others = faulty.calls().iter().filter(|call| call.operation != Operation::PutAll).count() as u64;
    let requests = (others + CHILDREN) as f64 / CHILDREN as f64;
    println!("{requests:.2} requests a child");
    assert!(requests <= 4.0, "{requests:.2} requests a child");
}

// It comes once a minute while the first runs.
#[tokio::test(start_paused = true)]
async fn copy_that_waits_does_not_fetch_its_payload() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    for _ in 0..2 {
        let mut batch = storage.batch("b").await.unwrap();
        batch.send_all([Sheet { data: "x".repeat(70_000) }]).await.unwrap();
        storage.blobs().delete_blob(&blob("b/cursor"), None).await.unwrap();
    }
    let sheet = async |_: Sheet| {
        after(1_800).await;
        Ok::<_, JobError>(())
    };
    let built = worker(&storage).handle(sheet).build().unwrap();
    let report = built.run_until(after(2_400)).await.unwrap();
    assert_eq!((report.completed, report.duplicates), (1, 1), "{report:?}");
    let fetched = faulty.calls().into_iter().filter(|call| call.operation == Operation::GetBlob);
    assert_eq!(fetched.filter(|call| call.subject.contains("jobqueue-payloads")).count(), 1);
}

/// Returns a fault for the first list of messages.
fn first_put(fault: Fault) -> Faulty {
    let faulty = Faulty::new(&in_memory());
    faulty.plan(Operation::PutAll, 1, fault);
    faulty
}

async fn runs_of_one_child(fault: Fault, seconds: u64) -> (BTreeMap<u64, u32>, usize) {
    let (faulty, log) = (first_put(fault), Log::default());
    let storage = faulty.storage();
    fan_out(&storage, 1, OnDeadLetters::Wait).await;
    let slice = move |slice: Slice, State(log): State<Log>| async move {
        *log.runs.lock().unwrap().entry(slice.n).or_default() += 1;
        after(seconds).await;
        Ok::<_, JobError>(())
    };
    let worker = worker(&storage).state(log.clone()).handle(slice).handle(join).build().unwrap();
    let report = worker.run_until(sleep(Duration::from_secs(2 * seconds + 120))).await.unwrap();
    assert_eq!(report.lease_lost, 0, "{report:?}");
    let runs = log.runs.lock().unwrap().clone();
    (runs, log.joins.lock().unwrap().len())
}

// I1, I12a
#[tokio::test(start_paused = true)]
async fn copy_of_a_lost_answer_waits_for_its_child() {
    for seconds in [1, 10, 40, 300] {
        let (runs, joins) = runs_of_one_child(Fault::DropAnswer(StoreErrorKind::Timeout), seconds).await;
        assert_eq!((runs, joins), (BTreeMap::from([(0, 1)]), 1), "{seconds} seconds");
    }
}

/// The claim of a child that runs is read with each sign of life.
// audit 13, C13-5
#[tokio::test(start_paused = true)]
async fn storage_that_panics_once_ends_no_signs_of_life() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    fan_out(&storage, 1, OnDeadLetters::Wait).await;
    let mut reads = 0;
    faulty.on(Operation::GetBlob, move |call| {
        if call.subject.contains("/claim/") {
            reads += 1;
            assert_ne!(reads, 3, "boom");
        }
        None
    });
    let slice = async |_: Slice| {
        after(600).await;
        Ok::<_, JobError>(())
    };
    let worker = worker(&storage).state(Log::default()).handle(slice).handle(join).build().unwrap();
    assert_eq!(worker.run_until(after(700)).await.unwrap().completed, 2);
    let reads = faulty.calls().into_iter().filter(|call| call.operation == Operation::GetBlob);
    let reads = reads.filter(|call| call.subject.contains("/claim/")).count();
    assert!(reads > 20, "{reads} signs of life in ten minutes");
}

// I1, I12a
#[tokio::test(start_paused = true)]
async fn copy_of_a_lost_request_runs_after_a_minute() {
    let (runs, joins) = runs_of_one_child(Fault::LoseRequest(StoreErrorKind::Timeout), 1).await;
    assert_eq!((runs, joins), (BTreeMap::from([(0, 1)]), 1));
}

/// The inner batch takes an hour. A second run of the child would find that its work has begun, and fail for
/// good.
// audit 23, coordination B1
#[tokio::test(start_paused = true)]
async fn child_that_has_handed_over_runs_once() {
    for is_stored_twice in [true, false] {
        let (storage, log) = (in_memory(), Log::default());
        for _ in 0..=u32::from(is_stored_twice) {
            drop(storage.blobs().delete_blob(&blob("b/cursor"), None).await);
            let mut batch = storage.batch("b").await.unwrap();
            batch.on_dead_letters(OnDeadLetters::Continue);
            batch.send_all([Page { n: 1, waits: true }]).await.unwrap();
        }
        let mut batch = storage.batch("b").await.unwrap();
        batch.send_all([Page { n: 1, waits: true }]).await.unwrap();
        batch.then(&Join {}).await.unwrap();
        let pages = Arc::new(Mutex::new(0));
        let runs = Arc::clone(&pages);
        let once = move |child: Page, ctx: Context| {
            *runs.lock().unwrap() += 1;
            let is_first = *runs.lock().unwrap() == 1;
            async move { if is_first { page(child, ctx).await } else { Err(JobError::dead_letter("begun")) } }
        };
        let long = |child: Slice, ctx: Context, log: State<Log>| async move {
            after(3_600).await;
            slice(child, ctx, log).await
        };
        let faulty = Faulty::deleting_one_by_one(&storage);
        if !is_stored_twice {
            faulty.on(Operation::Delete, |_| Some(Fault::LoseRequest(StoreErrorKind::Timeout)));
            let first = worker(&faulty.storage()).handle(once.clone()).build().unwrap();
            let _ = first.run_until(after(30)).await.unwrap();
        }
        let all =
            worker(&storage).state(log.clone()).handle(once).handle(long).handle(join).handle(page_join);
        let report = all.build().unwrap().run_until(after(9_000)).await.unwrap();
        assert_eq!((*pages.lock().unwrap(), report.duplicates), (1, 1), "{report:?}");
        assert_eq!(*log.joins.lock().unwrap(), [[Ok(Some(33))]]);
    }
}

/// The first message sends the inner batch and is dead-lettered before the second is sent.
// round 28, coordination C3: the child ended while its inner batch ran.
#[tokio::test(start_paused = true)]
async fn copy_of_a_child_that_has_handed_over_waits_for_the_inner_batch() {
    let (storage, log) = (in_memory(), Log::default());
    let send = async || {
        let mut batch = storage.batch("b").await.unwrap();
        batch.send_all([Page { n: 1, waits: true }]).await.unwrap();
        batch
    };
    drop(send().await);
    let fails = async |child: Page, ctx: Context| {
        page(child, ctx).await?;
        Err::<(), _>(JobError::dead_letter("after the inner batch"))
    };
    let report = worker(&storage).handle(fails).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.dead_lettered, 1);
    storage.blobs().delete_blob(&blob("b/cursor"), None).await.unwrap();
    send().await.then(&Join {}).await.unwrap();
    let has_sent = async |_: Page| Ok::<_, JobError>(());
    let second = builder(&storage, &log).handle(has_sent).build().unwrap();
    assert_eq!(second.run_until(after(600)).await.unwrap().completed, 1);
    assert!(log.joins.lock().unwrap().is_empty(), "the inner batch has not ended");
    run(&storage, &log).await;
    assert_eq!(*log.joins.lock().unwrap(), [[Ok(Some(33))]]);
}

/// A log keeps the order of a key. The copy has run, and comes back in two minutes; the first message, which
/// was held back until then, may not run before, and claims nothing.
#[tokio::test(start_paused = true)]
async fn copy_in_order_that_is_put_back_does_not_wait_for_the_first_message() {
    let (faulty, began) = (first_put(Fault::DropAnswer(StoreErrorKind::Timeout)), Instant::now());
    let storage = faulty.storage();
    let mut batch = storage.batch("b").await.unwrap();
    batch.send_all([Slice { n: 0 }]).in_order().await.unwrap();
    batch.then(&Join {}).await.unwrap();
    let queue = storage.queue::<Slice>().await.unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 2);
    let first = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    let (log, ran) = (Log::default(), Arc::new(Mutex::new(Vec::new())));
    let times = Arc::clone(&ran);
    let slice = move |_: Slice, info: JobInfo| {
        times.lock().unwrap().push(began.elapsed().as_secs());
        async move {
            if info.attempt > 1 {
                return Ok(());
            }
            Err(JobError::retry_after(Duration::from_secs(120), "planted"))
        }
    };
    let worker = worker(&storage).state(log.clone()).handle(slice).handle(join).build().unwrap();
    let running = tokio::spawn(worker.run_until(after(1_800)));
    sleep(Duration::from_secs(70)).await;
    let begun = ran.lock().unwrap().clone();
    assert!(begun.len() == 1 && begun[0] < 5, "the copy has waited for the first message: {begun:?}");
    first.release(Duration::ZERO).await.unwrap();
    let _ = running.await.unwrap().unwrap();
    let ran = ran.lock().unwrap();
    assert!(ran.len() == 2 && ran[1] - ran[0] < 130, "{ran:?}");
    assert_eq!(log.joins.lock().unwrap().len(), 1);
}

/// The copy has used up its deliveries while the first message runs. Its letter is not the end of the child.
#[tokio::test(start_paused = true)]
async fn dead_letter_of_a_copy_in_order_does_not_end_the_child() {
    let (faulty, log) = (first_put(Fault::DropAnswer(StoreErrorKind::Timeout)), Log::default());
    let storage = faulty.storage();
    let mut batch = storage.batch("b").await.unwrap();
    batch.on_dead_letters(OnDeadLetters::Continue);
    batch.send_all([Slice { n: 0 }]).in_order().await.unwrap();
    batch.then(&Join {}).await.unwrap();
    let queue = storage.queue::<Slice>().await.unwrap();
    let get = async |seconds| {
        let lease = GetMessages::new(1, Duration::from_secs(seconds));
        assert_eq!(storage.queues().get(queue.name(), lease).await.unwrap().messages.len(), 1);
    };
    // The first message, then twice the copy.
    get(10).await;
    get(5).await;
    sleep(Duration::from_secs(6)).await;
    get(30).await;
    let twice = Metadata::new().with("maxdeliveries", "2");
    storage.queues().set_queue_metadata(queue.name(), &twice).await.unwrap();
    let long = |child: Slice, ctx: Context, log: State<Log>| async move {
        after(120).await;
        slice(child, ctx, log).await
    };
    let worker = worker(&storage).state(log.clone()).handle(long).handle(join).build().unwrap();
    let report = worker.run_until(after(600)).await.unwrap();
    assert_eq!((report.completed, report.dead_lettered), (2, 1), "{report:?}");
    assert_eq!(*log.joins.lock().unwrap(), [[Ok(Some(0))]]);
}
