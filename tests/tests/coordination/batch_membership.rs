//! Membership in a batch and the proof of a child's end: counts, a storage's message ids and texts of other
//! programs prove nothing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::batch::{BatchSweepOptions, OnDeadLetters, sweep_batches};
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::sharded::Sharded;
use jobqueue::storage::PutMessage;
use jobqueue::{Context, ErrorKind, JobError, Queue, QueueMessage, Reason, Report, Storage, WorkerBuilder};
use jobqueue_tests::jobs::{after, in_memory, worker};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "slices", kind = "slice", backoff(base = "1s", max = "2s"))]
struct Slice(u64);

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "joins", kind = "join")]
struct Join {}

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "pages", kind = "page", backoff(base = "1s", max = "2s"))]
struct Page {}

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "books", kind = "book")]
struct Book {}

/// A former or newer form of a slice, which is read by a program that receives by hand.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "slices", kind = "slice", backoff(base = "1s", max = "2s"))]
struct Unreadable {
    text: String,
}

type Log = Arc<Mutex<Vec<String>>>;

/// Runs slices and joins for this time, and returns those that ran.
async fn run(storage: &Storage, seconds: u64) -> Vec<String> {
    let log = Log::default();
    let _ = handlers(worker(storage), &log).build().unwrap().run_until(after(seconds)).await.unwrap();
    let mut ran = log.lock().unwrap().clone();
    ran.sort();
    ran
}

fn handlers(worker: WorkerBuilder, log: &Log) -> WorkerBuilder {
    let (slices, joins) = (Arc::clone(log), Arc::clone(log));
    let slice = move |Slice(n): Slice| {
        slices.lock().unwrap().push(format!("slice {n}"));
        async { Ok::<_, JobError>(()) }
    };
    let join = move |_: Join, ctx: Context| {
        let joins = Arc::clone(&joins);
        async move {
            let ends = ctx.batch_results::<()>().await?;
            let failed = ends.iter().filter(|end| end.outcome.is_err()).count();
            joins.lock().unwrap().push(format!("join of {}, {failed} failed", ends.len()));
            Ok::<_, JobError>(())
        }
    };
    worker.handle(slice).handle(join)
}

async fn fan_out(
    storage: &Storage,
    children: impl IntoIterator<Item = u64, IntoIter: Send>,
) -> Result<(), jobqueue::Error> {
    let mut batch = storage.batch("b").await?;
    // Each message makes its claim at once.
    batch.on_dead_letters(OnDeadLetters::Continue);
    batch.send_all(children.into_iter().map(Slice)).await?;
    batch.then(&Join {}).await
}

fn shards(accounts: &[Storage]) -> Sharded {
    let builder = Sharded::builder().shards("slices", 4);
    let named = builder.account("a", accounts[0].clone()).account("b", accounts[1].clone());
    named.build().unwrap()
}

// D1
#[tokio::test(start_paused = true)]
async fn sharding_the_queue_of_a_batch_loses_no_child() {
    let accounts = vec![in_memory(), in_memory()];
    fan_out(&accounts[0], 0..3).await.unwrap();
    let sharded = shards(&accounts);
    assert_eq!(
        run(&Storage::from(sharded.stores()), 600).await,
        ["join of 3, 0 failed", "slice 0", "slice 1", "slice 2"]
    );
}

// D1, of a fleet in which some workers know the shards and some do not.
#[tokio::test(start_paused = true)]
async fn a_child_tried_under_another_handle_is_run() {
    let accounts = vec![in_memory(), in_memory()];
    fan_out(&accounts[0], 0..2).await.unwrap();
    let fail = async |_: Slice| Err::<(), _>(JobError::retry("planted"));
    let plain = worker(&accounts[0]).handle(fail).build().unwrap();
    let _ = plain.run_until(async { tokio::time::sleep(Duration::from_millis(500)).await }).await.unwrap();
    let sharded = shards(&accounts);
    assert_eq!(
        run(&Storage::from(sharded.stores()), 900).await,
        ["join of 2, 0 failed", "slice 0", "slice 1"]
    );
}

// D2, W-line
#[tokio::test(start_paused = true)]
async fn an_event_that_only_says_it_is_a_child_runs_and_ends_nothing() {
    let storage = in_memory();
    let mut batch = storage.batch("b").await.unwrap();
    batch.send_all([Slice(0)]).await.unwrap();
    let slices = storage.queue::<Slice>().await.unwrap();
    // It comes first, under the child's own number.
    let real = slices.receive(Duration::ZERO).await.unwrap().unwrap();
    for (index, n) in [("0", 100), ("7", 107)] {
        let forged = json!({
            "specversion": "1.0", "id": format!("b/{index}"), "source": "/stranger", "type": "slice",
            "batchid": "b", "batchindex": index, "batchtoken": "guessed", "batchof": "b", "data": n,
        });
        let _ = storage
            .queues()
            .put(&"slices".parse().unwrap(), PutMessage::new(forged.to_string()))
            .await
            .unwrap();
    }
    batch.then(&Join {}).await.unwrap();
    assert_eq!(run(&storage, 60).await, ["slice 100", "slice 107"], "the child has not ended");
    real.release(Duration::ZERO).await.unwrap();
    assert_eq!(run(&storage, 600).await, ["join of 1, 0 failed", "slice 0"]);
}

// D2
#[tokio::test(start_paused = true)]
async fn a_restart_with_fewer_children_is_refused() {
    let storage = in_memory();
    let mut batch = storage.batch("b").await.unwrap();
    batch.send_all((0..150).map(Slice)).await.unwrap();
    drop(batch);
    let error = fan_out(&storage, 0..100).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    fan_out(&storage, 0..150).await.unwrap();
    assert_eq!(run(&storage, 600).await.len(), 151);
}

// D10
#[tokio::test(start_paused = true)]
async fn an_id_used_again_for_other_children_is_refused() {
    let storage = in_memory();
    fan_out(&storage, 0..3).await.unwrap();
    fan_out(&storage, 0..3).await.unwrap();
    let error = fan_out(&storage, 3..6).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("other children"), "{error}");
    assert_eq!(run(&storage, 600).await.len(), 4, "three children and the continuation, once");
}

// D3
#[tokio::test(start_paused = true)]
async fn child_that_fans_out_and_fails_ends_with_its_batch() {
    let storage = in_memory();
    let mut outer = storage.batch("outer").await.unwrap();
    outer.send_all([Page {}]).await.unwrap();
    outer.then(&Book {}).await.unwrap();
    let log = Log::default();
    let page = async |_: Page, ctx: Context| {
        let fanned_out = ctx.clone();
        ctx.step("fan out", move || async move {
            let mut inner = fanned_out.batch("inner").await?;
            inner.send_all([Slice(1)]).await?;
            inner.then(&Join {}).await
        })
        .await?;
        if ctx.info().attempt == 1 { Err(JobError::retry("planted")) } else { Ok(()) }
    };
    let books = Arc::clone(&log);
    let book = move |_: Book| {
        books.lock().unwrap().push("book".to_owned());
        async { Ok::<_, JobError>(()) }
    };
    // The pages first, so that the slices wait.
    let _ = worker(&storage).handle(page).build().unwrap().run_until(after(60)).await.unwrap();
    let _ = worker(&storage).handle(book.clone()).build().unwrap().run_until(after(60)).await.unwrap();
    assert!(log.lock().unwrap().is_empty(), "the book is done before its page");
    let _ =
        handlers(worker(&storage), &log).handle(book).build().unwrap().run_until(after(600)).await.unwrap();
    assert_eq!(*log.lock().unwrap(), ["slice 1", "join of 1, 0 failed", "book"]);
}

/// Runs a child that fans out in a step, with a slice, and then ends as `end` says. The slice and the outer
/// batch's continuation only run when the child has had its time.
async fn fanned_out(end: fn(&Context) -> Result<(), JobError>, redrives: bool) -> (Report, Vec<String>) {
    let storage = in_memory();
    let mut outer = storage.batch("outer").await.unwrap();
    outer.send_all([Page {}]).await.unwrap();
    outer.then(&Book {}).await.unwrap();
    let page = move |_: Page, ctx: Context| async move {
        let fanned_out = ctx.clone();
        ctx.step("fan out", move || async move {
            let mut inner = fanned_out.batch("inner").await?;
            inner.send_all([Slice(1)]).await?;
            inner.then(&Join {}).await
        })
        .await?;
        end(&ctx)
    };
    let log = Log::default();
    let books = Arc::clone(&log);
    let book = move |_: Book| {
        books.lock().unwrap().push("book".to_owned());
        async { Ok::<_, JobError>(()) }
    };
    let pages = || worker(&storage).handle(page).build().unwrap().run_until(after(60));
    let rest =
        || handlers(worker(&storage), &log).handle(book.clone()).build().unwrap().run_until(after(600));
    let mut report = pages().await.unwrap();
    if redrives {
        let queue = storage.queue::<Page>().await.unwrap();
        let moved = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap().moved;
        assert_eq!(moved.len(), 1);
        report = pages().await.unwrap();
        let _ = worker(&storage).handle(book.clone()).build().unwrap().run_until(after(60)).await.unwrap();
        assert!(log.lock().unwrap().is_empty(), "the book is done before the slices of its page");
    }
    let _ = rest().await.unwrap();
    let log = log.lock().unwrap().clone();
    (report, log)
}

#[tokio::test(start_paused = true)]
async fn child_that_fanned_out_and_is_redriven_ends_with_its_batch() {
    let first_life_fails = |ctx: &Context| match ctx.fence() {
        1 => Err(JobError::dead_letter("planted")),
        _ => Ok(()),
    };
    let (report, log) = fanned_out(first_life_fails, true).await;
    assert_eq!(report.completed, 1, "{report:?}");
    assert_eq!(log, ["slice 1", "join of 1, 0 failed", "book"]);
}

// Its work after the fan-out was never done.
#[tokio::test(start_paused = true)]
async fn child_that_fails_after_its_inner_batch_is_a_dead_letter() {
    let (report, log) = fanned_out(|_| Err(JobError::dead_letter("planted")), false).await;
    assert_eq!(report.dead_lettered, 1, "{report:?}");
    assert_eq!(log, ["slice 1", "join of 1, 0 failed"], "the book waits for the page");
}

// It ends when both it and its batch have ended.
#[tokio::test(start_paused = true)]
async fn child_that_fails_beside_its_inner_batch_runs_again() {
    let storage = in_memory();
    let mut outer = storage.batch("outer").await.unwrap();
    outer.send_all([Page {}]).await.unwrap();
    outer.then(&Book {}).await.unwrap();
    let log = Log::default();
    let (pages, books) = (Arc::clone(&log), Arc::clone(&log));
    let page = move |_: Page, ctx: Context| {
        let pages = Arc::clone(&pages);
        async move {
            let fanned_out = ctx.clone();
            ctx.step("fan out", move || async move {
                let mut inner = fanned_out.batch("inner").await?;
                inner.send_all([Slice(1)]).await?;
                inner.then(&Join {}).await
            })
            .await?;
            // The inner batch ends meanwhile.
            after(60).await;
            pages.lock().unwrap().push(format!("page, attempt {}", ctx.info().attempt));
            if ctx.info().attempt == 1 { Err(JobError::retry("planted")) } else { Ok(()) }
        }
    };
    let book = move |_: Book| {
        books.lock().unwrap().push("book".to_owned());
        async { Ok::<_, JobError>(()) }
    };
    let all = handlers(worker(&storage), &log).handle(page).handle(book).build().unwrap();
    let _ = all.run_until(after(600)).await.unwrap();
    let expected = ["slice 1", "join of 1, 0 failed", "page, attempt 1", "page, attempt 2", "book"];
    assert_eq!(*log.lock().unwrap(), expected);
}

// D3b
#[tokio::test(start_paused = true)]
async fn a_child_cannot_end_with_two_batches() {
    let storage = in_memory();
    let mut outer = storage.batch("outer").await.unwrap();
    outer.send_all([Page {}]).await.unwrap();
    outer.then(&Book {}).await.unwrap();
    let told = Log::default();
    let sink = Arc::clone(&told);
    let page = move |_: Page, ctx: Context| {
        let sink = Arc::clone(&sink);
        async move {
            for id in ["one", "two"] {
                let mut inner = ctx.batch(id).await?;
                inner.send_all([Slice(1)]).await?;
                if let Err(error) = inner.then(&Join {}).await {
                    sink.lock().unwrap().push(format!("{:?}: {error}", error.kind()));
                }
            }
            Ok::<_, JobError>(())
        }
    };
    let _ = worker(&storage).handle(page).build().unwrap().run_until(after(10)).await.unwrap();
    let told = told.lock().unwrap().clone();
    assert!(told.len() == 1 && told[0].starts_with("Conflict") && told[0].contains("`one`"), "{told:?}");
}

// B26
#[tokio::test(start_paused = true)]
async fn a_child_dead_lettered_by_hand_is_run_after_a_redrive() {
    let storage = in_memory();
    fan_out(&storage, [1]).await.unwrap();
    let slices: Queue<Slice> = storage.queue().await.unwrap();
    let fail = async |_: Slice| Err::<(), _>(JobError::retry_after(Duration::from_secs(60), "planted"));
    let _ = worker(&storage).handle(fail).build().unwrap().run_until(after(5)).await.unwrap();
    after(60).await;
    let slice = slices.receive(Duration::ZERO).await.unwrap().unwrap();
    slice.dead_letter(Reason::REJECTED, "by hand").await.unwrap();
    let _ = slices.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(run(&storage, 900).await, ["join of 1, 0 failed", "slice 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_child_that_is_redriven_in_time_counts_as_done() {
    let storage = in_memory();
    let mut batch = storage.batch("b").await.unwrap();
    batch.on_dead_letters(OnDeadLetters::Continue);
    batch.send_all([Slice(0)]).await.unwrap();
    let reject = async |_: Slice| Err::<(), _>(JobError::dead_letter("planted"));
    let _ = worker(&storage).handle(reject).build().unwrap().run_until(after(5)).await.unwrap();
    let slices: Queue<Slice> = storage.queue().await.unwrap();
    let _ = slices.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(run(&storage, 60).await, ["slice 0"]);
    batch.then(&Join {}).await.unwrap();
    assert_eq!(run(&storage, 60).await, ["join of 1, 0 failed"]);
}

// D9
#[tokio::test(start_paused = true)]
async fn a_continuation_whose_queue_was_deleted_is_sent() {
    let storage = in_memory();
    fan_out(&storage, 0..2).await.unwrap();
    storage.queues().delete_queue(&"joins".parse().unwrap()).await.unwrap();
    let slice = async |_: Slice| Ok::<_, JobError>(());
    let _ = worker(&storage).handle(slice).build().unwrap().run_until(after(600)).await.unwrap();
    assert_eq!(run(&storage, 60).await, ["join of 2, 0 failed"]);
}

// D10
#[tokio::test(start_paused = true)]
async fn a_sweep_passes_over_folders_of_others() {
    let storage = in_memory();
    fan_out(&storage, 0..2).await.unwrap();
    assert_eq!(run(&storage, 60).await.len(), 3);
    let odd =
        jobqueue::storage::BlobName::new("jobqueue-batches".parse().unwrap(), "not=an=id/notes.txt").unwrap();
    let _ = storage.blobs().put_blob(&odd, "x".into(), jobqueue::storage::PutBlob::new()).await.unwrap();
    let options = BatchSweepOptions::new().finished(Duration::ZERO);
    after(60).await;
    assert_eq!(sweep_batches(&storage, options).await.unwrap(), 1);
}

// D10
#[tokio::test(start_paused = true)]
async fn a_result_over_its_limit_is_refused_when_it_is_set() {
    let storage = in_memory();
    fan_out(&storage, [1]).await.unwrap();
    let told = Log::default();
    let sink = Arc::clone(&told);
    let slice = move |_: Slice, ctx: Context| {
        let error = ctx.set_result(&"x".repeat(2 << 20)).unwrap_err();
        sink.lock().unwrap().push(format!("{:?}", error.kind()));
        async { Ok::<_, JobError>(()) }
    };
    let _ = worker(&storage).handle(slice).build().unwrap().run_until(after(5)).await.unwrap();
    assert_eq!(*told.lock().unwrap(), ["TooLarge"]);
    assert_eq!(run(&storage, 60).await, ["join of 1, 0 failed"]);
}

#[tokio::test(start_paused = true)]
async fn a_child_that_a_program_cannot_read_is_left_to_the_workers() {
    let storage = in_memory();
    fan_out(&storage, [1]).await.unwrap();
    let received = storage.queue::<Unreadable>().await.unwrap().receive(Duration::ZERO).await;
    assert!(received.unwrap().is_none());
    assert_eq!(run(&storage, 900).await, ["join of 1, 0 failed", "slice 1"]);
}
