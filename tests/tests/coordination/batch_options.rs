//! Children of batches with the options of any send.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::batch::{BatchSweepOptions, sweep_batches};
use jobqueue::clock::Clock;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Context, ErrorKind, JobError, QueueMessage, SendOptions, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{after, clock, in_memory, worker};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::order::logged;

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "pages", kind = "page", backoff(base = "1s", max = "2s"))]
struct Page(u32);

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "books", kind = "book")]
struct Book {}

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "notes", kind = "note")]
struct Note {
    text: String,
}

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

/// The jobs that ran: a line for each page with its start in seconds, its id and a header, and one for the
/// book.
type Ran = Arc<Mutex<Vec<String>>>;

/// Runs pages, each of which takes a second, and books.
async fn run(storage: &Storage, seconds: u64) -> Vec<String> {
    let ran = Ran::default();
    let (pages, books) = (Arc::clone(&ran), Arc::clone(&ran));
    let began = Instant::now();
    let page = move |Page(n): Page, ctx: Context| {
        let tenant = ctx.info().headers.get("tenant").cloned().unwrap_or_default();
        let line = format!("{}s {n} {} {tenant}", began.elapsed().as_secs(), ctx.info().id);
        pages.lock().unwrap().push(line);
        async {
            after(1).await;
            Ok::<(), JobError>(())
        }
    };
    let book = move |_: Book, ctx: Context| {
        let books = Arc::clone(&books);
        async move {
            let results = ctx.batch_results::<()>().await?.len();
            books.lock().unwrap().push(format!("{}s book of {results}", began.elapsed().as_secs()));
            Ok::<(), JobError>(())
        }
    };
    let worker = worker(storage).concurrency(8).handle(page).handle(book).build().unwrap();
    let _ = worker.run_until(after(seconds)).await.unwrap();
    ran.lock().unwrap().clone()
}

// M
#[tokio::test(start_paused = true)]
async fn children_take_the_options_of_any_send() {
    let storage = in_memory();
    let mut batch = storage.batch("b").await.unwrap();
    batch.send(&Page(0)).delay(MINUTE).header("tenant", "blue").await.unwrap();
    batch.send(&Page(1)).at(clock().now() + 2 * MINUTE).await.unwrap();
    batch.send(&Page(2)).id("two").source("/shop").ttl(HOUR).await.unwrap();
    let own = (3..5).map(|n| (Page(n), SendOptions::new().header("tenant", "red").id(format!("own-{n}"))));
    batch.send_all(own).delay(3 * MINUTE).header("tenant", "blue").await.unwrap();
    batch.send_all([(Page(5), SendOptions::new().delay(4 * MINUTE))]).await.unwrap();
    assert_eq!(batch.children(), 6);
    batch.then(&Book {}).await.unwrap();
    let expected = [
        "0s 2 two ",
        "60s 0 b/0 blue",
        "120s 1 b/1 ",
        "180s 3 own-3 red",
        "180s 4 own-4 red",
        "240s 5 b/5 ",
        "241s book of 6",
    ];
    assert_eq!(run(&storage, 600).await, expected);
}

// M
#[tokio::test(start_paused = true)]
async fn children_in_order_run_one_at_a_time_by_key() {
    let storage = in_memory();
    let mut batch = storage.batch("b").await.unwrap();
    let by_site =
        |n: u32| (Page(n), SendOptions::new().key(if n.is_multiple_of(2) { "even" } else { "odd" }));
    batch.send_all((0..6).map(by_site)).in_order().await.unwrap();
    batch.then(&Book {}).await.unwrap();
    let ran = run(&storage, 600).await;
    for parity in [0, 1] {
        let of: Vec<_> = ran.iter().filter(|line| line.contains(" b/")).collect();
        let numbers: Vec<u32> =
            of.iter().map(|line| line.split(' ').nth(1).unwrap().parse().unwrap()).collect();
        let own: Vec<_> = numbers.into_iter().filter(|n| n % 2 == parity).collect();
        assert_eq!(own, [parity, parity + 2, parity + 4], "{ran:?}");
    }
    assert!(ran.iter().filter(|line| line.starts_with("0s")).count() == 2, "{ran:?}");
    assert_eq!(ran.last().unwrap(), "3s book of 6");
}

/// Sends a child and the end of the batch. `interrupt` fails the write of the cursor behind the child.
async fn interrupted<'s>(
    storage: &'s Storage,
    faulty: &Faulty,
    send: impl AsyncFn(&mut jobqueue::batch::Batch) -> Result<(), jobqueue::Error>,
) {
    let refuses = Arc::new(AtomicBool::new(true));
    let refused = Arc::clone(&refuses);
    faulty.on(Operation::PutBlob, move |call| {
        let refuse = refused.load(Ordering::Relaxed) && call.subject.ends_with("/cursor");
        refuse.then_some(Fault::Refuse(StoreErrorKind::Unauthorized))
    });
    let mut batch = storage.batch("b").await.unwrap();
    send(&mut batch).await.unwrap_err();
    refuses.store(false, Ordering::Relaxed);
    let mut batch = storage.batch("b").await.unwrap();
    send(&mut batch).await.unwrap();
    batch.then(&Book {}).await.unwrap();
}

// M: the child's message was sent, and the program died before it had recorded that.
#[tokio::test(start_paused = true)]
async fn restart_sends_no_child_in_order_twice() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let send = async |batch: &mut jobqueue::batch::Batch| batch.send(&Page(0)).key("k").in_order().await;
    interrupted(&storage, &faulty, send).await;
    let ran = run(&storage, 600).await;
    assert!(ran.last().unwrap().ends_with("book of 1"), "{ran:?}");
    assert_eq!(ran.iter().filter(|line| line.contains("b/0")).count(), 1, "{ran:?}");
    assert!(ran[0].contains("b/0"), "the child ran before the continuation: {ran:?}");
}

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "words", kind = "word")]
struct Word {}

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "indexes", kind = "index")]
struct Index {}

// The restart finds the child done in the log of its key, and it ends with the batch that it has sent.
#[tokio::test(start_paused = true)]
async fn restart_ends_no_child_that_handed_over_to_a_batch() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let refuses = Arc::new(AtomicBool::new(true));
    let refused = Arc::clone(&refuses);
    faulty.on(Operation::PutBlob, move |call| {
        let refuse = refused.load(Ordering::Relaxed) && call.subject.ends_with("outer/cursor");
        refuse.then_some(Fault::Refuse(StoreErrorKind::Unauthorized))
    });
    let send = async |batch: &mut jobqueue::batch::Batch| batch.send(&Page(0)).key("k").in_order().await;
    let mut outer = storage.batch("outer").await.unwrap();
    send(&mut outer).await.unwrap_err();

    let page = async |_: Page, ctx: Context| {
        let mut inner = ctx.batch("inner").await?;
        inner.send_all([Word {}]).await?;
        inner.then(&Index {}).await?;
        Ok::<_, JobError>(())
    };
    let report = worker(&storage).handle(page).build().unwrap().run_until(after(60)).await.unwrap();
    assert_eq!(report.completed, 1, "{report:?}");
    refuses.store(false, Ordering::Relaxed);
    let mut outer = storage.batch("outer").await.unwrap();
    send(&mut outer).await.unwrap();
    outer.then(&Book {}).await.unwrap();
    assert!(run(&storage, 60).await.is_empty(), "the book is done before the words of its page");

    let word = async |_: Word| Ok::<_, JobError>(());
    let index = async |_: Index| Ok::<_, JobError>(());
    let rest = worker(&storage).handle(word).handle(index).build().unwrap().run_until(after(60)).await;
    assert_eq!(rest.unwrap().completed, 2);
    assert_eq!(run(&storage, 60).await, ["0s book of 1"]);
}

// M
#[tokio::test(start_paused = true)]
async fn child_whose_work_another_job_does_ends_at_once() {
    let storage = logged();
    let queue = storage.queue::<Page>().await.unwrap();
    let done = SendOptions::new().key("o").in_order().id("done").source("/shop");
    let _ = queue.send(&Page(1)).with(done.clone()).await.unwrap();
    assert_eq!(run(&storage, 60).await, ["0s 1 done "]);
    let mut batch = storage.batch("b").await.unwrap();
    batch.send(&Page(1)).with(done).await.unwrap();
    batch.then(&Book {}).await.unwrap();
    assert_eq!(run(&storage, 60).await, ["0s book of 1"]);
}

// The job waits when the batch sends it once more, so that the batch has a message of its own, which does not
// run.
#[tokio::test(start_paused = true)]
async fn child_whose_message_is_deleted_as_a_copy_ends() {
    let storage = logged();
    let queue = storage.queue::<Page>().await.unwrap();
    let of_order = SendOptions::new().key("o").in_order().id("17").source("/shop");
    let _ = queue.send(&Page(1)).with(of_order.clone()).await.unwrap();
    let mut batch = storage.batch("b").await.unwrap();
    batch.send(&Page(1)).with(of_order).await.unwrap();
    batch.then(&Book {}).await.unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 2);
    let ran = run(&storage, 600).await;
    assert_eq!(ran.len(), 2, "{ran:?}");
    assert!(ran[1].ends_with("book of 1"), "{ran:?}");
}

// The job of the first message had its payload in a blob, so that its worker remembers it.
#[tokio::test(start_paused = true)]
async fn child_whose_job_its_worker_remembers_ends() {
    let storage = in_memory();
    let queue = storage.queue::<Note>().await.unwrap();
    let note = Note { text: "x".repeat(100_000) };
    let (options, runs) = (SendOptions::new().id("17").source("/shop"), Arc::new(AtomicUsize::new(0)));
    let _ = queue.send(&note).with(options.clone()).await.unwrap();
    let mut batch = storage.batch("b").await.unwrap();
    batch.send(&note).with(options).await.unwrap();
    batch.then(&Book {}).await.unwrap();
    let counted = Arc::clone(&runs);
    let notes = move |_: Note| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, JobError>(()) }
    };
    let books = async |_: Book| Ok::<_, JobError>(());
    let built = worker(&storage).concurrency(1).handle(notes).handle(books).build().unwrap();
    let report = built.run_until(after(60)).await.unwrap();
    let progress = storage.batch_progress("b").await.unwrap().unwrap();
    assert!(progress.done == 1 && progress.finished, "{progress:?} after {report:?}");
}

// M
#[tokio::test(start_paused = true)]
async fn restart_with_another_id_or_key_is_refused() {
    for other in
        [SendOptions::new().id("2").key("k"), SendOptions::new().id("1").key("l"), SendOptions::new()]
    {
        let storage = in_memory();
        let first = SendOptions::new().id("1").key("k");
        storage.batch("b").await.unwrap().send(&Page(0)).with(first.clone()).await.unwrap();
        let error = storage.batch("b").await.unwrap().send(&Page(0)).with(other).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        let again = first.header("tenant", "blue").delay(MINUTE);
        storage.batch("b").await.unwrap().send(&Page(0)).with(again).await.unwrap();
    }
}

// M
#[tokio::test(start_paused = true)]
async fn options_that_contradict_a_batch_are_refused() {
    let storage = in_memory();
    let mut batch = storage.batch("b").await.unwrap();
    let shared = batch.send_all([Page(0), Page(1)]).with(SendOptions::new().id("one")).await.unwrap_err();
    assert!(
        shared.kind() == ErrorKind::Invalid && shared.to_string().contains("the options of each child"),
        "{shared}"
    );
    let endless = batch.send(&Page(0)).key("k").in_order().ttl(HOUR).await.unwrap_err();
    assert_eq!(endless.kind(), ErrorKind::Invalid);
    // A header of the caller cannot move the child to another batch.
    batch.send(&Page(0)).header("batchid", "other").await.unwrap();
    batch.then(&Book {}).await.unwrap();
    assert_eq!(run(&storage, 60).await.last().unwrap(), "1s book of 1");
}

// AU20-6: the headers of the batch counted as the application's.
#[tokio::test(start_paused = true)]
async fn child_has_as_many_headers_of_its_own_as_any_job() {
    let mut batch = in_memory().batch("b").await.unwrap();
    let all = |count| (0..count).fold(SendOptions::new(), |options, n| options.header(format!("h{n}"), "1"));
    let error = batch.send(&Page(0)).with(all(201)).await.unwrap_err();
    assert!(error.to_string().contains("201 headers"), "{error}");
    batch.send(&Page(0)).with(all(200)).await.unwrap();
}

// The pages of one book make their batch under one id: its continuation ends the first of them only. A
// release that gives each an id mends it.
#[tokio::test(start_paused = true)]
async fn child_that_sends_the_batch_of_another_job_is_a_conflict() {
    let storage = in_memory();
    let mut outer = storage.batch("outer").await.unwrap();
    outer.send_all([Page(0), Page(1)]).await.unwrap();
    outer.then(&Book {}).await.unwrap();
    let page = |of_each: bool| {
        move |Page(n): Page, ctx: Context| async move {
            let id = if of_each { format!("inner-{n}") } else { "inner".to_owned() };
            let mut inner = ctx.batch(&id).await?;
            inner.send_all([Word {}]).await?;
            Ok::<_, JobError>(inner.then(&Index {}).await?)
        }
    };
    let word = async |_: Word| Ok::<_, JobError>(());
    let index = async |_: Index| Ok::<_, JobError>(());
    let rest = || worker(&storage).handle(word).handle(index);
    let report = rest().handle(page(false)).build().unwrap().run_until(after(600)).await.unwrap();
    let progress = storage.batch_progress("outer").await.unwrap().unwrap();
    assert_eq!(progress.done, 1, "{progress:?}");
    assert_eq!(report.dead_lettered, 1, "{report:?}");

    let letters = storage.queue::<Page>().await.unwrap().dead_letters().unwrap();
    let redriven = letters.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.moved.len(), 1, "{redriven:?}");
    let _ = rest().handle(page(true)).build().unwrap().run_until(after(60)).await.unwrap();
    assert_eq!(run(&storage, 60).await, ["0s book of 2"]);
}

// One page under one id: first the child of a batch that has ended and was swept, then the child of the next
// month's.
#[tokio::test(start_paused = true)]
async fn child_that_sends_a_batch_of_an_earlier_child_is_a_conflict() {
    let storage = in_memory();
    let page = async |_: Page, ctx: Context| {
        let mut inner = ctx.batch("words-7").await?;
        inner.send_all([Word {}]).await?;
        Ok::<_, JobError>(inner.then(&Index {}).await?)
    };
    let word = async |_: Word| Ok::<_, JobError>(());
    let index = async |_: Index| Ok::<_, JobError>(());
    let book = async |_: Book| Ok::<_, JobError>(());
    let mut dead = Vec::new();
    for month in ["october", "november"] {
        let mut outer = storage.batch(month).await.unwrap();
        outer.send(&Page(7)).with(SendOptions::new().source("/shop").id("page-7")).await.unwrap();
        outer.then(&Book {}).await.unwrap();
        let worker = worker(&storage).handle(page).handle(word).handle(index).handle(book);
        let report = worker.build().unwrap().run_until(after(600)).await.unwrap();
        dead.push(report.dead_lettered);
        tokio::time::sleep(HOUR * 24 * 40).await;
        let _ = sweep_batches(&storage, BatchSweepOptions::new()).await.unwrap();
    }
    assert_eq!(dead, [0, 1]);
}
