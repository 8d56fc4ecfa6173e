//! The messages of dead letters, read as their type. In paused time on memory.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::dead_letters::{DeadLetter, DeadLetterOptions, DeadLetters};
use jobqueue::storage::{BlobName, Operation, PutBlob, PutMessage, StoreErrorKind};
use jobqueue::{Context, ErrorKind, JobError, QueueMessage, Reason, Storage, memory};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, payloads, task, worker};
use serde::{Deserialize, Serialize};

/// The message of the first release.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order")]
struct OrderV1 {
    count: u32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order", version = 2, upgrade_from = OrderV1)]
struct Order {
    #[message(range(1..=9))]
    pieces: u32,
}

impl From<OrderV1> for Order {
    fn from(old: OrderV1) -> Self {
        Self { pieces: old.count }
    }
}

async fn reject_all(storage: &Storage) {
    let handler = |_: Task| async { Err::<(), _>(JobError::dead_letter("no")) };
    let worker = worker(storage).handle(handler).build().unwrap();
    let _ = worker.run_until(after(60)).await.unwrap();
}

/// Puts a text into the dead-letter queue like another program.
async fn dead_letter<M: QueueMessage>(storage: &Storage, texts: &[&str]) -> DeadLetters<M> {
    let dead = storage.queue::<M>().await.unwrap().dead_letters().unwrap();
    storage.queues().create_queue(dead.name(), &Default::default()).await.unwrap();
    for text in texts {
        storage.queues().put(dead.name(), PutMessage::new(*text)).await.unwrap();
    }
    dead
}

#[tokio::test(start_paused = true)]
async fn dead_letter_message_is_what_was_sent_and_stays() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let large = Task { name: "large".into(), data: "x".repeat(100_000) };
    let expiring = Task { name: "expiring".into(), ..large.clone() };
    queue.send(&task("small")).await.unwrap();
    queue.send(&large).await.unwrap();
    queue.send(&expiring).ttl(Duration::from_secs(600)).await.unwrap();
    reject_all(&storage).await;
    // The one that was to expire lies there for good, with its payload.
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let dead = queue.dead_letters().unwrap();
    for letters in [dead.peek().await.unwrap(), dead.list().await.unwrap().letters] {
        let mut found = Vec::new();
        for letter in &letters {
            let message = dead.message(letter).await.unwrap();
            assert_eq!(letter.key.as_ref(), Some(&message.name));
            found.push(message);
        }
        found.sort_by(|a, b| b.name.cmp(&a.name));
        assert_eq!(found, [task("small"), large.clone(), expiring.clone()]);
    }
    assert_eq!(dead.approximate_len().await.unwrap(), 3);
}

#[tokio::test(start_paused = true)]
async fn dead_letter_message_is_upgraded_and_validated() {
    let storage = memory::open();
    let orders = storage.queue::<OrderV1>().await.unwrap();
    for count in [3, 10] {
        orders.send(&OrderV1 { count }).await.unwrap();
        let delivery = orders.receive(Duration::ZERO).await.unwrap().unwrap();
        delivery.dead_letter(Reason::REJECTED, "not in stock").await.unwrap();
    }
    let dead = storage.queue::<Order>().await.unwrap().dead_letters().unwrap();
    let letters = dead.peek().await.unwrap();
    let mut read = Vec::new();
    for letter in &letters {
        read.push(dead.message(letter).await.map_err(|error| error.kind()));
    }
    assert_eq!(read.len(), 2);
    assert!(
        read.contains(&Ok(Order { pieces: 3 })) && read.contains(&Err(ErrorKind::Undecodable)),
        "{read:?}"
    );
    // An old program knows that it cannot read what a newer one sent.
    let orders = storage.queue::<Order>().await.unwrap();
    orders.dead_letters().unwrap().purge(DeadLetterOptions::new().filter(|_| true)).await.map(drop).unwrap();
    orders.send(&Order { pieces: 1 }).await.unwrap();
    orders.receive(Duration::ZERO).await.unwrap().unwrap().dead_letter(Reason::REJECTED, "no").await.unwrap();
    let old = storage.queue::<OrderV1>().await.unwrap().dead_letters().unwrap();
    let letter = &old.peek().await.unwrap()[0];
    assert_eq!(old.message(letter).await.unwrap_err().kind(), ErrorKind::Undecodable);
}

#[tokio::test(start_paused = true)]
async fn undecodable_dead_letter_message_is_an_error() {
    let storage = memory::open();
    let dead = dead_letter::<Task>(&storage, &[r#"{"name":"theirs"}"#, "hello"]).await;
    let letters = dead.list().await.unwrap().letters;
    assert!(letters.iter().all(|letter| letter.reason == Reason::UNKNOWN));
    let mut read = Vec::new();
    for letter in &letters {
        read.push(dead.message(letter).await.map_err(|error| error.kind()));
    }
    assert!(read.contains(&Ok(task("theirs"))) && read.contains(&Err(ErrorKind::Undecodable)), "{read:?}");
    dead.purge(DeadLetterOptions::new().filter(|_| true)).await.map(drop).unwrap();

    // A text that no worker could read, kept byte for byte: no more readable than it was.
    let queue = storage.queue::<Task>().await.unwrap();
    storage.queues().put(queue.name(), PutMessage::new("hello")).await.unwrap();
    reject_all(&storage).await;
    let letter = &dead.peek().await.unwrap()[0];
    assert_eq!(letter.reason, Reason::DECODE_ERROR);
    assert_eq!(dead.message(letter).await.unwrap_err().kind(), ErrorKind::Undecodable);
    assert_eq!(dead.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn purge_takes_the_options_of_a_redrive_and_needs_a_filter() {
    let storage = in_memory();
    let dead = dead_letter::<Task>(&storage, &["1", "2", "3", "4", "5"]).await;
    let error = dead.purge(DeadLetterOptions::new().limit(2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(dead.approximate_len().await.unwrap(), 5);

    let all = DeadLetterOptions::new().filter(|_| true);
    assert_eq!(dead.purge(all.clone().dry_run(true)).await.unwrap().deleted.len(), 5);
    assert_eq!(dead.approximate_len().await.unwrap(), 5);
    let began = tokio::time::Instant::now();
    assert_eq!(dead.purge(all.clone().limit(3).per_second(1)).await.unwrap().deleted.len(), 3);
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(dead.purge(all).await.unwrap().deleted.len(), 2);
    assert!(dead.is_empty().await.unwrap());
}

// round 31, newcomer b 6
#[tokio::test(start_paused = true)]
async fn dead_letters_are_selected_by_a_header() {
    let storage = in_memory();
    let tasks = storage.queue::<Task>().await.unwrap();
    for tenant in ["blue", "red"] {
        let _ = tasks.send(&task(tenant)).id(tenant).header("tenant", tenant).await.unwrap();
    }
    reject_all(&storage).await;
    let dead = tasks.dead_letters().unwrap();
    storage.queues().put(dead.name(), PutMessage::new("no event")).await.unwrap();
    let of_tenant = |letter: &DeadLetter| letter.headers().get("tenant").is_some_and(|of| of == "blue");
    let moved = dead.redrive(DeadLetterOptions::new().filter(of_tenant)).await.unwrap().moved;
    assert_eq!(moved.len(), 1);
    let left: Vec<_> = dead.list().await.unwrap().letters.into_iter().map(|letter| letter.id).collect();
    assert!(left.len() == 2 && !left.contains(&"blue".to_owned()), "{left:?}");
}

// The last filter replaced the others: letters that these leave were purged.
#[tokio::test(start_paused = true)]
async fn letters_are_purged_if_all_filters_select_them() {
    let storage = in_memory();
    let tasks = storage.queue::<Task>().await.unwrap();
    for id in ["a", "b", "c"] {
        let _ = tasks.send(&task(id)).id(id).await.unwrap();
    }
    reject_all(&storage).await;
    let dead = tasks.dead_letters().unwrap();
    let both = DeadLetterOptions::new().filter(|letter| letter.id != "a").filter(|letter| letter.id != "c");
    let purged = dead.purge(both).await.unwrap();
    assert_eq!((purged.deleted, purged.left), (vec!["b".to_owned()], 2));
    assert_eq!(dead.approximate_len().await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn unreadable_payload_is_told_from_a_missing_one() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    queue.send(&Task { name: "large".into(), data: "x".repeat(100_000) }).await.unwrap();
    reject_all(&storage).await;
    let dead = queue.dead_letters().unwrap();
    let letter = &dead.peek().await.unwrap()[0];
    faulty.plan_always(Operation::GetBlob, Fault::Refuse(StoreErrorKind::Unavailable));
    let error = dead.message(letter).await.unwrap_err();
    assert!(error.is_retryable() && error.kind() == ErrorKind::Storage, "{error:?}");
    faulty.heal();
    dead.purge(DeadLetterOptions::new().filter(|_| true)).await.map(drop).unwrap();
    let error = dead.message(letter).await.unwrap_err();
    assert!(!error.is_retryable() && error.kind() == ErrorKind::Undecodable, "{error:?}");
    assert!(!format!("{letter:?}{error:?}").contains("xxx"), "no payload is shown");
}

// M
#[tokio::test(start_paused = true)]
async fn a_hook_is_told_of_each_dead_letter_and_may_panic() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    storage.queues().put(queue.name(), PutMessage::new("no event")).await.unwrap();
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = Arc::clone(&told);
    let handler = |_: Task| async { Err::<(), _>(JobError::retry("planted")) };
    let worker = worker(&storage)
        .handle(handler)
        .on_dead_letter(|_| async { panic!("planted") })
        .on_dead_letter(move |dead| {
            let sink = Arc::clone(&sink);
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let attempt = dead.job.map(|job| job.attempt);
                sink.lock()
                    .unwrap()
                    .push(format!("{} {} {attempt:?} {}", dead.queue, dead.reason, dead.error));
            }
        });
    let report = worker.build().unwrap().run_until(after(300)).await.unwrap();
    assert_eq!(report.dead_lettered, 2);
    let told = told.lock().unwrap().clone();
    assert!(told.len() == 2 && told[0].starts_with("tasks decode_error None "), "{told:?}");
    assert_eq!(told[1], "tasks attempts_exhausted Some(3) planted");
}

// M
#[tokio::test(start_paused = true)]
async fn hook_learns_of_each_dead_letter_and_holds_up_no_other() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).id("job-a").await.unwrap();
    storage.queues().put(queue.name(), PutMessage::new("{")).await.unwrap();
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = Arc::clone(&told);
    let tell = move |dead: jobqueue::worker::DeadLettered| {
        let id = dead.job.as_ref().map_or_else(|| "-".to_owned(), |job| job.id.to_string());
        sink.lock().unwrap().push(format!("{id} {} {}", dead.queue, dead.reason));
        async {}
    };
    let handler = |_: Task| async { Err::<(), _>(JobError::dead_letter("no")) };
    let builder = worker(&storage).handle(handler).on_dead_letter(|_| async { panic!("planted") });
    let builder = builder.on_dead_letter(|_| std::future::pending()).on_dead_letter(tell);
    let report = builder.build().unwrap().run_until(after(300)).await.unwrap();
    assert_eq!(report.dead_lettered, 2);
    let mut told = told.lock().unwrap().clone();
    told.sort();
    assert_eq!(told, ["- tasks decode_error", "job-a tasks rejected"]);
}

// M
#[tokio::test(start_paused = true)]
async fn unreadable_payload_is_dead_lettered_with_the_name_of_its_field() {
    for (data, said) in [
        (r#"{"pieces":1e400}"#, "`pieces` of the payload is a number out of range"),
        (r#"{"pieces":1,"pieces":2}"#, "`pieces` of the payload occurs twice"),
        (
            r#"{"pieces":"secret"}"#,
            "`pieces` of the payload does not have the type of the message: expected u32",
        ),
        ("{}", "lacks the field `pieces`"),
    ] {
        let text = format!(
            r#"{{"specversion":"1.0","id":"1","source":"/s","type":"order","schemaversion":2,"data":{data}}}"#
        );
        let storage = in_memory();
        let queue = storage.queue::<Order>().await.unwrap();
        storage.queues().put(queue.name(), PutMessage::new(text)).await.unwrap();
        let handler = |_: Order| async { Ok::<(), JobError>(()) };
        let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
        let letters = queue.dead_letters().unwrap();
        let error = letters.list().await.unwrap().letters.remove(0).error.unwrap();
        assert!(error.contains(said) && !error.contains("secret") && !error.contains("column"), "{error}");
    }
}

// M
#[tokio::test(start_paused = true)]
async fn boxed_and_anyhow_errors_become_retries_with_one_word() {
    async fn boxed(_: Task) -> Result<(), JobError> {
        let read = || -> Result<(), jobqueue::job::BoxError> { Err("boxed".into()) };
        read().map_err(JobError::retry)
    }
    async fn any(_: Task) -> Result<(), JobError> {
        let read = || -> anyhow::Result<()> { Err(anyhow::anyhow!("inner").context("outer")) };
        read().map_err(JobError::retry)
    }
    use jobqueue_testing::run_one;
    run_one(boxed, &task("a")).await.unwrap().assert_retried("boxed");
    run_one(any, &task("a")).await.unwrap().assert_retried("outer: inner");
}

// A process that was stopped between its last attempt and the dead letter comes back after the next owner has
// done the job.
#[tokio::test(start_paused = true)]
async fn a_stale_owner_adds_no_dead_letter() {
    let memory = in_memory();
    let large = Task { name: "large".into(), data: "x".repeat(100_000) };
    memory.queue::<Task>().await.unwrap().send(&large).await.unwrap();
    let faulty = Faulty::new(&memory);
    let stopped = faulty.storage().queue::<Task>().await.unwrap();
    let leased = stopped.receive(Duration::ZERO).await.unwrap().unwrap();
    // Nothing is renewed meanwhile, and the copy of the payload takes longer than the lease lasts.
    faulty.on(Operation::Update, |_| Some(Fault::Refuse(StoreErrorKind::Unavailable)));
    faulty.on(Operation::GetBlob, |_| Some(Fault::DelayAfter(Duration::from_secs(600))));
    let late = tokio::spawn(async move { leased.dead_letter(Reason::REJECTED, "no").await });
    after(300).await;
    let handler = async |_: Task| Ok::<_, JobError>(());
    let report = worker(&memory).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(late.await.unwrap().unwrap_err().kind(), ErrorKind::LeaseLost);
    assert_eq!(
        stopped.dead_letters().unwrap().approximate_len().await.unwrap(),
        0,
        "a letter of a job that is done"
    );
}

#[tokio::test(start_paused = true)]
async fn handler_chooses_the_reason_of_its_dead_letter() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    queue.send(&task("gone")).await.unwrap();
    queue.send(&task("plain")).await.unwrap();
    queue.send(&task("tried")).await.unwrap();
    let handler = |job: Task| async move {
        let no_customer = Reason::new("no_customer");
        Err::<(), _>(match job.name.as_str() {
            "gone" => JobError::dead_letter("customer 7 has left").with_reason(no_customer),
            "plain" => JobError::dead_letter("no"),
            _ => JobError::retry("later").with_reason(no_customer),
        })
    };
    let worker = worker(&storage).handle(handler).build().unwrap();
    let _ = worker.run_until(after(3_600)).await.unwrap();
    let dead = queue.dead_letters().unwrap();
    let mut reasons: Vec<_> = dead.peek().await.unwrap().into_iter().map(|letter| letter.reason).collect();
    reasons.sort();
    assert_eq!(reasons, [Reason::ATTEMPTS_EXHAUSTED, Reason::new("no_customer"), Reason::REJECTED]);
    let chosen = DeadLetterOptions::new().filter(|letter| letter.reason == "no_customer");
    assert_eq!(dead.redrive(chosen).await.unwrap().moved.len(), 1);
}

// audit 5, CLM1: the process died between copy and deletion, and the redrive of the letter fails.
#[tokio::test(start_paused = true)]
async fn message_whose_letter_is_claimed_leaves_the_blobs_that_the_letter_needs() {
    let storage = in_memory();
    let faulty = Faulty::new(&storage);
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    faulty.plan(Operation::Delete, 1, Fault::Hang);
    let blobs = Arc::clone(storage.blobs());
    let handler = move |_: Task, ctx: Context| {
        let blobs = Arc::clone(&blobs);
        async move {
            ctx.checkpoint(&"p".repeat(70_000)).await?;
            let container = "jobqueue-payloads".parse().unwrap();
            let (checkpoint, _) = blobs.list_blobs(&container, "", None).await.unwrap().blobs.remove(0);
            let name = BlobName::new(container, checkpoint).unwrap();
            blobs.put_blob(&name, "damaged".into(), PutBlob::new()).await.unwrap();
            Err::<(), _>(JobError::dead_letter("planted"))
        }
    };
    let dying = worker(&faulty.storage()).handle(handler).build().unwrap().run_until(std::future::pending());
    assert!(tokio::time::timeout(Duration::from_secs(5), dying).await.is_err());
    let letters = queue.dead_letters().unwrap();
    let redriven = letters.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!((redriven.moved.len(), redriven.skipped.len()), (0, 1), "{redriven:?}");
    reject_all(&faulty.storage()).await;
    let lengths = (queue.approximate_len().await.unwrap(), letters.approximate_len().await.unwrap());
    assert_eq!((lengths, payloads(&storage).await), ((0, 1), 1));
}
