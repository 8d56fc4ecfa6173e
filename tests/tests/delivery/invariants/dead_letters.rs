//! Dead letters: I12, F47, F111, and the way back.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::storage::{Operation, PutMessage, StoreErrorKind};
use jobqueue::{Context, JobError, JobInfo, Storage, memory};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, outcomes, task, worker};

/// Runs a worker that rejects everything.
async fn reject(storage: &Storage, seconds: u64) {
    let handler = |_: Task| async { Err::<(), _>(JobError::dead_letter("no")) };
    let worker = worker(storage).handle(handler).build().unwrap();
    let _ = worker.run_until(after(seconds)).await.unwrap();
}

// I12, F47
#[tokio::test(start_paused = true)]
async fn crash_between_copy_and_delete_leaves_one_dead_letter() {
    let faulty = Faulty::new(&memory::open());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let sent = queue.send(&Task { name: "a".into(), data: "x".repeat(100_000) }).await.unwrap();
    faulty.plan(Operation::Delete, 1, Fault::Hang);
    let handler = |_: Task| async { Err::<(), _>(JobError::dead_letter("no")) };
    let dying = worker(&faulty.storage()).handle(handler).build().unwrap().run_until(std::future::pending());
    assert!(tokio::time::timeout(Duration::from_secs(1), dying).await.is_err());
    let letters = queue.dead_letters().unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 1, "in both, never in neither");
    assert_eq!(letters.approximate_len().await.unwrap(), 1, "in both, never in neither");
    reject(&faulty.storage(), 120).await;
    assert_eq!(queue.approximate_len().await.unwrap(), 0);
    assert_eq!(letters.approximate_len().await.unwrap(), 1);
    // It can be run with its payload.
    assert_eq!(letters.redrive(DeadLetterOptions::new()).await.unwrap().moved, [sent.id()]);
    let handler = |task: Task| async move {
        assert_eq!(task.data.len(), 100_000);
        Ok::<(), JobError>(())
    };
    let report = worker(&faulty.storage()).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
}

// I12, F111
#[tokio::test(start_paused = true)]
async fn unwritable_dead_letter_queue_keeps_the_original() {
    for kind in [StoreErrorKind::Throttled, StoreErrorKind::Unavailable, StoreErrorKind::Full] {
        let faulty = Faulty::new(&memory::open());
        let queue = faulty.storage().queue::<Task>().await.unwrap();
        let _ = queue.send(&task("a")).await.unwrap();
        faulty.plan_always(Operation::Put, Fault::Refuse(kind));
        let (log, listen) = outcomes();
        let runs = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&runs);
        let handler = move |_: Task| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { Err::<(), _>(JobError::dead_letter("no")) }
        };
        let refused = worker(&faulty.storage()).handle(handler).on_event(listen).build().unwrap();
        let _ = refused.run_until(after(300)).await.unwrap();
        let log = log.lock().unwrap().clone();
        assert!(log.len() > 2 && log.iter().all(|end| end == "released"), "tries cost nothing: {log:?}");
        assert_eq!(runs.load(Ordering::Relaxed), 1, "what is over is not run again: {log:?}");
        assert_eq!(queue.approximate_len().await.unwrap(), 1, "{kind:?}");
        assert_eq!(faulty.calls_of(Operation::Delete), 0, "{kind:?}");
        faulty.heal();
        reject(&faulty.storage(), 120).await;
        assert_eq!(queue.approximate_len().await.unwrap(), 0);
        assert_eq!(queue.dead_letters().unwrap().approximate_len().await.unwrap(), 1);
    }
}

// I12
#[tokio::test(start_paused = true)]
async fn a_letter_lies_beside_no_message_that_runs_again() {
    let faulty = Faulty::new(&memory::open());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    // Whether the message can still be changed is not known after it.
    faulty.plan(Operation::Update, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    let runs: Arc<Mutex<u32>> = Arc::default();
    let handler = move |_: Task, ctx: Context| {
        *runs.lock().unwrap() += 1;
        async move {
            let _ = ctx.checkpoint(&1).await?;
            Err::<(), _>(JobError::dead_letter("never"))
        }
    };
    let worker = || worker(&faulty.storage()).handle(handler.clone()).build().unwrap();
    let letters = queue.dead_letters().unwrap();
    for (seconds, expected) in [(10, (1, 0)), (120, (0, 1))] {
        let _ = worker().run_until(after(seconds)).await.unwrap();
        let found = (queue.approximate_len().await.unwrap(), letters.approximate_len().await.unwrap());
        assert_eq!(found, expected, "after {seconds} s");
    }
}

// I12
#[tokio::test(start_paused = true)]
async fn lost_answer_to_the_copy_makes_no_second_dead_letter() {
    let faulty = Faulty::new(&memory::open());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    // The first, by which the dead-letter queue is made.
    let _ = queue.send(&task("a")).await.unwrap();
    reject(&faulty.storage(), 60).await;
    let _ = queue.send(&task("b")).await.unwrap();
    faulty.plan(Operation::Put, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    let puts = faulty.calls_of(Operation::Put);
    reject(&faulty.storage(), 300).await;
    assert_eq!(faulty.calls_of(Operation::Put) - puts, 1, "the copy was found");
    let letters = queue.dead_letters().unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 0);
    assert_eq!(letters.approximate_len().await.unwrap(), 2);
    assert!(!letters.is_empty().await.unwrap());
}

// L8
#[tokio::test(start_paused = true)]
async fn dead_letter_of_a_later_delivery_looks_for_no_copy() {
    let faulty = Faulty::new(&memory::open());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let handler = |_: Task| async { Err::<(), _>(JobError::retry("no")) };
    let worker = worker(&faulty.storage()).handle(handler).build().unwrap();
    assert_eq!(worker.run_until(after(60)).await.unwrap().dead_lettered, 1);
    assert_eq!(faulty.calls_of(Operation::Peek), 0);
}

// I12
#[tokio::test(start_paused = true)]
async fn absent_dead_letter_queue_is_empty_not_an_error() {
    let faulty = Faulty::new(&memory::open());
    let letters = faulty.storage().queue::<Task>().await.unwrap().dead_letters().unwrap();
    assert_eq!(letters.approximate_len().await.unwrap(), 0);
    assert_eq!(letters.peek().await.unwrap().len(), 0);
    assert!(letters.is_empty().await.unwrap());
    faulty.plan_always(Operation::Peek, Fault::Refuse(StoreErrorKind::Unavailable));
    faulty.plan_always(Operation::QueueProperties, Fault::Refuse(StoreErrorKind::Unavailable));
    assert!(letters.peek().await.is_err() && letters.approximate_len().await.is_err());
    assert!(letters.list().await.unwrap().letters.is_empty());
    faulty.plan_always(Operation::Get, Fault::Refuse(StoreErrorKind::Unavailable));
    assert!(letters.list().await.is_err() && letters.redrive(DeadLetterOptions::new()).await.is_err());
}

// I12
#[tokio::test(start_paused = true)]
async fn dead_letter_removed_by_another_is_not_a_failure() {
    for (kind, works) in [
        (StoreErrorKind::MessageNotFound, true),
        (StoreErrorKind::Unavailable, false),
        // Another client has leased it: it is still there.
        (StoreErrorKind::PopReceiptMismatch, false),
        (StoreErrorKind::LeaseExpired, false),
    ] {
        let faulty = Faulty::new(&with_dead_letters(1).await);
        let letters = faulty.storage().queue::<Task>().await.unwrap().dead_letters().unwrap();
        faulty.plan_always(Operation::Delete, Fault::Refuse(kind));
        let redriven = letters.redrive(DeadLetterOptions::new()).await.unwrap();
        // Each letter is in one list: that of the failed, if it may still be there.
        assert_eq!(
            (redriven.moved.len(), redriven.skipped.len()),
            if works { (1, 0) } else { (0, 1) },
            "{kind:?}"
        );
        assert!(redriven.skipped.iter().all(|skipped| skipped.maybe_moved));
    }
}

// I12
#[tokio::test(start_paused = true)]
async fn purge_reports_payloads_that_stay() {
    for (kind, works) in [
        (StoreErrorKind::BlobNotFound, true),
        (StoreErrorKind::ContainerNotFound, true),
        (StoreErrorKind::Unavailable, false),
    ] {
        let faulty = Faulty::new(&memory::open());
        let queue = faulty.storage().queue::<Task>().await.unwrap();
        let _ = queue.send(&Task { name: "a".into(), data: "x".repeat(100_000) }).await.unwrap();
        reject(&faulty.storage(), 60).await;
        let letters = queue.dead_letters().unwrap();
        faulty.plan_always(Operation::DeleteBlob, Fault::Refuse(kind));
        let purged = letters.purge(DeadLetterOptions::new().filter(|_| true)).await.unwrap();
        assert_eq!((purged.deleted.len(), purged.skipped.len()), (1, 0), "{kind:?}");
        assert_eq!(purged.payloads_left, u64::from(!works), "{kind:?}");
        assert_eq!(letters.approximate_len().await.unwrap(), 0, "{kind:?}: the blob goes after its message");
    }
}

async fn with_dead_letters(letters: usize) -> Storage {
    let storage = memory::open();
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..letters {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    reject(&storage, 60).await;
    storage
}

// I12
#[tokio::test(start_paused = true)]
async fn listing_more_than_a_page_keeps_all_dead_letters() {
    let storage = with_dead_letters(100).await;
    let letters = storage.queue::<Task>().await.unwrap().dead_letters().unwrap();
    for _ in 0..2 {
        assert_eq!(letters.list().await.unwrap().letters.len(), 100);
    }
    assert_eq!(letters.peek().await.unwrap().len(), 32);
    let dry = letters.redrive(DeadLetterOptions::new().dry_run(true)).await.unwrap();
    assert_eq!(dry.moved.len(), 100);
    assert_eq!(letters.approximate_len().await.unwrap(), 100);
}

// I12
#[tokio::test(start_paused = true)]
async fn redrive_obeys_filter_limit_and_rate() {
    let storage = with_dead_letters(100).await;
    let queue = storage.queue::<Task>().await.unwrap();
    let letters = queue.dead_letters().unwrap();
    let even = |letter: &jobqueue::dead_letters::DeadLetter| {
        letter.key.as_deref().is_some_and(|key| key.parse::<u32>().is_ok_and(|n| n % 2 == 0))
    };
    let limited = letters.redrive(DeadLetterOptions::new().filter(even).limit(10)).await.unwrap();
    // Of the first page, the odd ones and all beyond the limit.
    assert_eq!(limited.moved.len(), 10);
    assert_eq!(limited.left, 22);
    let began = tokio::time::Instant::now();
    let rest = letters.redrive(DeadLetterOptions::new().filter(even).per_second(4)).await.unwrap();
    assert_eq!(rest.moved.len(), 40);
    assert_eq!(rest.left, 50);
    let took = began.elapsed();
    let pauses = Duration::from_millis(9_500)..Duration::from_millis(10_500);
    assert!(pauses.contains(&took), "39 pauses of a quarter of a second: {took:?}");
    assert_eq!(queue.approximate_len().await.unwrap(), 50);
    assert_eq!(letters.approximate_len().await.unwrap(), 50);
}

// I12
#[tokio::test(start_paused = true)]
async fn limit_beyond_a_page_leases_no_page_too_many() {
    let faulty = Faulty::new(&with_dead_letters(100).await);
    let letters = faulty.storage().queue::<Task>().await.unwrap().dead_letters().unwrap();
    let redriven = letters.redrive(DeadLetterOptions::new().limit(40)).await.unwrap();
    assert_eq!(redriven.moved.len(), 40);
    assert_eq!(redriven.left, 24);
    assert_eq!(faulty.calls_of(Operation::Get), 2);
}

// I12
#[tokio::test(start_paused = true)]
async fn two_copies_of_a_dead_letter_are_one_job() {
    for redrive in [true, false] {
        let storage = with_dead_letters(2).await;
        let queue = storage.queue::<Task>().await.unwrap();
        let letters = queue.dead_letters().unwrap();
        let copy = storage.queues().peek(letters.name(), 1).await.unwrap().remove(0).text.unwrap();
        storage.queues().put(letters.name(), PutMessage::new(copy)).await.unwrap();
        assert_eq!(letters.list().await.unwrap().letters.len(), 2);
        assert_eq!(letters.approximate_len().await.unwrap(), 3);
        let (done, jobs) = match redrive {
            true => (letters.redrive(DeadLetterOptions::new()).await.unwrap().moved, 2),
            false => (letters.purge(DeadLetterOptions::new().filter(|_| true)).await.unwrap().deleted, 0),
        };
        assert_eq!(done.len(), 2);
        assert_eq!(queue.approximate_len().await.unwrap(), jobs);
        assert_eq!(letters.approximate_len().await.unwrap(), 0);
    }
}

/// Payload and checkpoint are each in a blob that would expire with the message.
// I12
#[tokio::test(start_paused = true)]
async fn dead_letter_of_expiring_message_keeps_its_blobs() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let large = Task { name: "a".into(), data: "x".repeat(100_000) };
    let _ = queue.send(&large).ttl(Duration::from_secs(3600)).await.unwrap();
    let handler = |_: Task, ctx: Context| async move {
        ctx.checkpoint(&"p".repeat(50_000)).await?;
        Err::<(), _>(JobError::dead_letter("no"))
    };
    let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    // Long after the message would have expired, and with it its blobs.
    after(30 * 86_400).await;
    let _ = sweep(&storage, SweepOptions::new()).await.unwrap();
    assert_eq!(queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
    let handler = |task: Task, ctx: Context| async move {
        assert_eq!(task.data.len(), 100_000);
        assert_eq!(ctx.resume::<String>().await?.map(|saved| saved.len()), Some(50_000));
        Ok::<(), JobError>(())
    };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(report.retried, 0);
}

// I12
#[tokio::test(start_paused = true)]
async fn redrives_keep_history_and_restart_attempts() {
    let storage = with_dead_letters(1).await;
    let queue = storage.queue::<Task>().await.unwrap();
    let letters = queue.dead_letters().unwrap();
    let first = letters.peek().await.unwrap().remove(0);
    for round in 1..=3 {
        assert_eq!(
            letters.redrive(DeadLetterOptions::new()).await.unwrap().moved,
            std::slice::from_ref(&first.id)
        );
        let attempts: Arc<Mutex<Vec<u32>>> = Arc::default();
        let sink = Arc::clone(&attempts);
        let handler = move |_: Task, info: JobInfo| {
            sink.lock().unwrap().push(info.attempt);
            async move { Err::<(), _>(JobError::retry(format!("round {round}"))) }
        };
        let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
        assert_eq!(*attempts.lock().unwrap(), [1, 2, 3]);
        let letter = letters.peek().await.unwrap().remove(0);
        assert_eq!(&letter.id, &first.id);
        assert_eq!(letter.reason.as_str(), "attempts_exhausted");
        assert_eq!(letter.past.len(), round);
        assert_eq!(letter.attempts, 3);
        assert_eq!(letter.error.as_deref(), Some(&*format!("round {round}")));
        for (before, past) in letter.past.iter().enumerate() {
            let said = (past.reason.as_str(), past.attempts, past.error.as_deref());
            let error = format!("round {before}");
            let first = ("rejected", 1, Some("no"));
            assert_eq!(said, if before == 0 { first } else { ("attempts_exhausted", 3, Some(&*error)) });
        }
    }
}

/// Dead letters that become visible again while others are being read are not read again and again.
#[tokio::test(start_paused = true)]
async fn dead_letters_are_listed_once_however_slow_the_reader() {
    let storage = with_dead_letters(40).await;
    let faulty = Faulty::new(&storage);
    faulty.plan_always(Operation::Get, Fault::DelayBefore(Duration::from_secs(360)));
    let letters = faulty.storage().queue::<Task>().await.unwrap().dead_letters().unwrap();
    let mut told = BTreeSet::new();
    let read = letters.for_each(|letter| assert!(told.insert(letter.id.clone()), "told twice"));
    let read = tokio::time::timeout(Duration::from_secs(5 * 360), read).await.expect("it ends").unwrap();
    assert_eq!(read.visited, 40);
    assert_eq!(read.unseen, Some(0));
    assert_eq!(told.len(), 40);
    let left = tokio::time::timeout(
        Duration::from_secs(5 * 360),
        letters.redrive(DeadLetterOptions::new().filter(|_| false)),
    );
    assert_eq!(left.await.expect("it ends").unwrap().left, 40);
    assert_eq!(letters.peek().await.unwrap().len(), 32, "they are there for others at once");
}

// I12, F47
#[tokio::test(start_paused = true)]
async fn crash_within_a_redrive_loses_nothing() {
    let storage = with_dead_letters(5).await;
    let faulty = Faulty::new(&storage);
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let letters = queue.dead_letters().unwrap();
    // Put back, then the process dies before it deletes the dead letter.
    faulty.plan(Operation::Delete, 3, Fault::Hang);
    let dying = letters.redrive(DeadLetterOptions::new());
    assert!(tokio::time::timeout(Duration::from_secs(1), dying).await.is_err());
    assert_eq!(queue.approximate_len().await.unwrap(), 3);
    assert_eq!(letters.approximate_len().await.unwrap(), 3);
    after(601).await;
    let redriven = letters.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!((redriven.moved.len(), redriven.copies), (2, 1));
    let ids: Arc<Mutex<std::collections::BTreeSet<String>>> = Arc::default();
    let sink = Arc::clone(&ids);
    let handler = move |_: Task, info: JobInfo| {
        sink.lock().unwrap().insert(info.id.to_string());
        async { Ok::<(), JobError>(()) }
    };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 5, "none twice, none never");
    assert_eq!(ids.lock().unwrap().len(), 5, "none twice, none never");
}
