//! Small applications, written from the documentation alone, with the mistakes they made. In paused time on
//! memory.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use jobqueue::clock::ManualClock;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::schedule::{CatchUp, Schedule};
use jobqueue::storage::{Operation, PutMessage, StoreErrorKind};
use jobqueue::worker::WorkerPhase;
use jobqueue::{
    Context, ErrorKind, JobError, JobInfo, QueueMessage, Runtime, SendOptions, State, Storage, Worker,
    WorkerBuilder, memory,
};
use jobqueue_testing::faults::{Fault, Faulty};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order")]
struct Order {
    #[message(key, non_empty)]
    id: String,
}

fn order(id: &str) -> Order {
    Order { id: id.into() }
}

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "imports", kind = "import")]
struct Import {}

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "reports", kind = "report")]
struct Report {
    slot: String,
}

type Seen = Arc<Mutex<Vec<JobInfo>>>;

async fn note(_: Order, info: JobInfo, State(seen): State<Seen>) -> Result<(), JobError> {
    seen.lock().unwrap().push(info);
    Ok(())
}

fn worker(storage: &Storage) -> WorkerBuilder {
    Worker::builder(storage.clone().with_runtime(Runtime::paused()))
}

/// Runs a worker until it is idle, and returns the jobs that were handled.
async fn handled(storage: &Storage) -> Vec<JobInfo> {
    let seen = Seen::default();
    let worker = worker(storage).state(Arc::clone(&seen)).handle(note).build().unwrap();
    let _ = worker.run_until_idle().await.unwrap();
    std::mem::take(&mut *seen.lock().unwrap())
}

fn keys(jobs: &[JobInfo]) -> Vec<&str> {
    jobs.iter().map(|job| job.key.as_deref().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn many_are_sent_in_one_request_each_with_its_options() {
    let faulty = Faulty::new(&memory::open());
    let orders = faulty.storage().queue::<Order>().await.unwrap();
    let list = [order("now"), order("later")];
    let options = |id: &str| SendOptions::new().id(id).header("tenant", "blue");
    let later = options("2").delay(Duration::from_secs(60)).key("other");
    let sent = orders.send_all([(&list[0], options("1")), (&list[1], later)]).await.unwrap();
    let ids: Vec<_> = sent.iter().map(|sent| sent.as_ref().unwrap().id()).collect();
    assert_eq!(ids, ["1", "2"]);
    assert_eq!(faulty.calls_of(Operation::PutAll), 1);
    assert_eq!(faulty.calls_of(Operation::Put), 0);

    let first = handled(&faulty.storage()).await;
    assert_eq!(keys(&first), vec!["now"]);
    assert_eq!(&*first[0].id, "1");
    assert_eq!(first[0].headers["tenant"], "blue");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(keys(&handled(&faulty.storage()).await), ["other"]);
}

#[tokio::test(start_paused = true)]
async fn many_sent_in_order_get_their_places_in_the_order_of_the_list() {
    let faulty = Faulty::new(&memory::open());
    let storage = faulty.storage();
    // The messages of the second request must not overtake those of the first.
    faulty.plan(Operation::PutAll, 1, Fault::DelayAfter(Duration::from_secs(1)));
    let orders = storage.queue::<Order>().await.unwrap();
    let list: Vec<Order> = (0..600).map(|n| order(&format!("{n}"))).collect();
    // The first becomes visible last, and holds back the others of its key.
    let options = |n| {
        let delay = Duration::from_secs(if n == 0 { 30 } else { 0 });
        SendOptions::new().in_order().key("one").id(format!("{n:03}")).delay(delay)
    };
    let sent = orders.send_all(list.iter().enumerate().map(|(n, order)| (order, options(n)))).await;
    assert!(sent.unwrap().iter().all(Result::is_ok));
    let seen = Seen::default();
    let worker = worker(&storage).state(Arc::clone(&seen)).handle(note).build().unwrap();
    let _ = worker.run_until(tokio::time::sleep(Duration::from_secs(3_600))).await.unwrap();
    let seen = seen.lock().unwrap();
    let ids: Vec<&str> = seen.iter().map(|job| &*job.id).collect();
    let expected: Vec<String> = (0..600).map(|n| format!("{n:03}")).collect();
    assert_eq!(ids, expected);
}

#[tokio::test(start_paused = true)]
async fn the_message_that_spoils_a_list_is_named() {
    let orders = memory::open().queue::<Order>().await.unwrap();
    let error = orders.send_all(&[order("a"), order("b"), order(""), order("c")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().starts_with("message 2 of the list"), "{error}");
    assert!(orders.is_empty().await.unwrap());

    // Options that contradict each other refuse one message, and not the list.
    let (a, b) = (order("a"), order("b"));
    let wrong = SendOptions::new().in_order().ttl(Duration::from_secs(60));
    let sent = orders.send_all([(&a, wrong), (&b, SendOptions::new())]).await.unwrap();
    assert_eq!(sent[0].as_ref().unwrap_err().kind(), ErrorKind::Invalid);
    assert!(sent[1].is_ok());
    assert_eq!(sent.into_result().unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(orders.approximate_len().await.unwrap(), 1);
}

/// Registers a handler whose future must be `Send`. The compiler cannot see that for a future with a closure
/// over borrowed items.
async fn fan_out(_: Import, ctx: Context, State(ids): State<Arc<Vec<String>>>) -> Result<(), JobError> {
    let orders: Vec<Order> = ids.iter().map(|id| order(id)).collect();
    let queue = ctx.queue::<Order>().await?;
    queue.send_all(orders.iter().filter(|order| order.id != "b")).await?.into_result()?;
    queue.send_all(orders.iter().map(|order| (order, SendOptions::new().key("x")))).await?.into_result()?;
    let mut batch = ctx.batch("import").await?;
    batch.send_all(ids.iter().map(|id| order(id))).await?;
    batch.send_all(orders.iter().map(|order| Order { id: order.id.clone() })).await?;
    Ok(batch.then(&Report { slot: String::new() }).await?)
}

#[tokio::test(start_paused = true)]
async fn a_handler_can_send_what_it_makes_of_borrowed_items() {
    let storage = memory::open();
    storage.queue::<Import>().await.unwrap().send(&Import {}).await.unwrap();
    let ids = Arc::new(vec!["a".to_owned(), "b".to_owned()]);
    let report = worker(&storage).state(ids).handle(fan_out).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(storage.queue::<Order>().await.unwrap().approximate_len().await.unwrap(), 1 + 2 + 2 + 2);
}

/// Writes dead letters like a WebJobs host that gives up on a message.
async fn dead_lettered_by_another_program(storage: &Storage, texts: &[&str]) {
    let dead = storage.queue::<Order>().await.unwrap().dead_letters().unwrap();
    storage.queues().create_queue(dead.name(), &Default::default()).await.unwrap();
    for text in texts {
        storage.queues().put(dead.name(), PutMessage::new(*text)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn external_dead_letters_are_listed_and_redriven_as_is() {
    let storage = memory::open();
    // Plain, in base64, and no JSON at all.
    dead_lettered_by_another_program(&storage, &[r#"{"id":"a"}"#, "eyJpZCI6ImIifQ==", "hello"]).await;
    let dead = storage.queue::<Order>().await.unwrap().dead_letters().unwrap();
    let letters = dead.list().await.unwrap().letters;
    assert_eq!(dead.peek().await.unwrap(), letters);
    assert_eq!(letters.len(), 3);
    for letter in &letters {
        assert_eq!(letter.reason.as_str(), "unknown");
        assert_eq!(&*letter.kind, "order");
        assert_eq!(&*letter.queue, "orders");
        assert!(letter.time.is_some());
    }

    let redriven = dead.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.moved.len(), 3);
    assert_eq!(redriven.left, 0);
    assert!(dead.is_empty().await.unwrap());
    let seen = Seen::default();
    // A bare payload has no envelope, and with it no key: its message is what tells it.
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&bodies);
    let take = move |order: Order| {
        let sink = Arc::clone(&sink);
        async move {
            sink.lock().unwrap().push(order.id);
            Ok::<(), JobError>(())
        }
    };
    let report = worker(&storage).state(seen).handle(take).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 2);
    assert_eq!(report.dead_lettered, 1);
    bodies.lock().unwrap().sort();
    assert_eq!(*bodies.lock().unwrap(), ["a", "b"]);
    // Now it lies there with a reason.
    assert_eq!(dead.list().await.unwrap().letters[0].reason, "decode_error");
}

#[tokio::test(start_paused = true)]
async fn dead_letters_of_another_program_can_be_purged() {
    let storage = memory::open();
    dead_lettered_by_another_program(&storage, &[r#"{"id":"a"}"#, "hello"]).await;
    let dead = storage.queue::<Order>().await.unwrap().dead_letters().unwrap();
    let unknown = DeadLetterOptions::new().filter(|letter| letter.reason == "unknown");
    let purged = dead.purge(unknown).await.unwrap();
    assert_eq!(purged.deleted.len(), 2);
    assert!(dead.is_empty().await.unwrap());
}

// F83
#[tokio::test(start_paused = true)]
async fn missed_slot_gets_a_message_for_its_own_time() {
    let storage = memory::open();
    let at = |moment: &str| SystemTime::from(moment.parse::<jiff::Timestamp>().unwrap());
    let clock = Arc::new(ManualClock::at(at("2026-03-27T12:00:00Z")));
    let lead = async || {
        let nightly = Schedule::cron("30 2 * * *", "Europe/Berlin").name("nightly").missed(CatchUp::All(7));
        let make = |slot: SystemTime| Report { slot: jiff::Timestamp::try_from(slot).unwrap().to_string() };
        let clock = Arc::<ManualClock>::clone(&clock);
        let worker = Worker::builder(storage.clone().with_runtime(Runtime::virtual_time(clock)))
            .schedule_with_slot(nightly, make)
            .build();
        let _ = worker.unwrap().run_until(tokio::time::sleep(Duration::from_secs(90))).await.unwrap();
    };
    lead().await;
    // Three nights without a worker, one of them the short one.
    clock.set(at("2026-03-30T12:00:00Z"));
    lead().await;
    let mut slots = Vec::new();
    let reports = storage.queue::<Report>().await.unwrap();
    while let Some(delivery) = reports.receive(Duration::ZERO).await.unwrap() {
        assert_eq!(*delivery.info().id, format!("schedule/nightly/{}", delivery.message().slot));
        slots.push(delivery.message().slot.clone());
        delivery.complete().await.unwrap();
    }
    assert_eq!(slots, ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]);
}

// F83
#[tokio::test(start_paused = true)]
async fn panic_in_message_factory_does_not_end_schedule() {
    let moment: jiff::Timestamp = "2026-01-01T12:00:10Z".parse().unwrap();
    let clock = Arc::new(memory::TokioClock::at(moment.into()));
    let storage = memory::open_on(Runtime::new().with_clock(Arc::<memory::TokioClock>::clone(&clock)));
    let calls = AtomicU32::new(0);
    let make = move |slot: SystemTime| {
        assert!(calls.fetch_add(1, Ordering::Relaxed) >= 2, "not yet");
        Report { slot: jiff::Timestamp::try_from(slot).unwrap().to_string() }
    };
    let every = Schedule::every(Duration::from_secs(60)).name("minutely");
    let worker = Worker::builder(storage.clone().with_runtime(Runtime::virtual_time(clock)))
        .schedule_with_slot(every, make);
    let worker = worker.build().unwrap();
    let _ = worker.run_until(tokio::time::sleep(Duration::from_secs(120))).await.unwrap();
    let reports = storage.queue::<Report>().await.unwrap().peek().await.unwrap();
    let slots: Vec<String> = reports.into_iter().map(|report| report.unwrap().slot).collect();
    assert_eq!(slots, ["2026-01-01T12:01:00Z", "2026-01-01T12:02:00Z"]);
}

/// A report that must not be empty.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "checked", kind = "checked.report")]
struct Checked {
    #[message(non_empty)]
    slot: String,
}

// F83
#[tokio::test(start_paused = true)]
async fn slot_whose_message_always_fails_is_skipped() {
    for panics in [true, false] {
        let moment: jiff::Timestamp = "2026-01-01T12:00:10Z".parse().unwrap();
        let clock = Arc::new(memory::TokioClock::at(moment.into()));
        let storage = memory::open_on(Runtime::new().with_clock(Arc::<memory::TokioClock>::clone(&clock)));
        let tries = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&tries);
        let make = move |slot: SystemTime| {
            let slot = jiff::Timestamp::try_from(slot).unwrap().to_string();
            let bad = slot == "2026-01-01T12:01:00Z";
            counted.fetch_add(u32::from(bad), Ordering::Relaxed);
            assert!(!(bad && panics), "never for this slot");
            Checked { slot: if bad { String::new() } else { slot } }
        };
        let every = Schedule::every(Duration::from_secs(60)).name("minutely");
        let worker = Worker::builder(storage.clone().with_runtime(Runtime::virtual_time(clock)))
            .schedule_with_slot(every, make);
        let worker = worker.build().unwrap();
        let _ = worker.run_until(tokio::time::sleep(Duration::from_secs(200))).await.unwrap();
        let reports = storage.queue::<Checked>().await.unwrap().peek().await.unwrap();
        let slots: Vec<String> = reports.into_iter().map(|report| report.unwrap().slot).collect();
        assert_eq!(slots, ["2026-01-01T12:02:00Z", "2026-01-01T12:03:00Z"], "panics: {panics}");
        assert_eq!(tries.load(Ordering::Relaxed), 6);
    }
}

// F83
#[tokio::test(start_paused = true)]
async fn storage_failure_skips_no_slot() {
    let moment: jiff::Timestamp = "2026-01-01T12:00:10Z".parse().unwrap();
    let clock = Arc::new(memory::TokioClock::at(moment.into()));
    let storage = memory::open_on(Runtime::new().with_clock(Arc::<memory::TokioClock>::clone(&clock)));
    let faulty = Faulty::new(&storage);
    faulty.plan_always(Operation::Put, Fault::Refuse(StoreErrorKind::Full));
    let make = |slot: SystemTime| Report { slot: jiff::Timestamp::try_from(slot).unwrap().to_string() };
    let every = Schedule::every(Duration::from_secs(600)).name("seldom");
    let worker = Worker::builder(faulty.storage().with_runtime(Runtime::virtual_time(clock)))
        .schedule_with_slot(every, make);
    let worker = worker.build().unwrap();
    let running = tokio::spawn(worker.run_until(tokio::time::sleep(Duration::from_secs(1000))));
    tokio::time::sleep(Duration::from_secs(900)).await;
    assert!(faulty.calls_of(Operation::Put) > 6);
    faulty.heal();
    let _ = running.await.unwrap().unwrap();
    let reports = storage.queue::<Report>().await.unwrap().peek().await.unwrap();
    let slots: Vec<String> = reports.into_iter().map(|report| report.unwrap().slot).collect();
    assert_eq!(slots, ["2026-01-01T12:10:00Z"]);
}

/// A deployment that stops at once, while a queue of its is being deleted.
#[tokio::test(start_paused = true)]
async fn shutdown_ends_a_start_that_waits() {
    let faulty = Faulty::new(&memory::open());
    faulty.plan_always(Operation::QueueMetadata, Fault::Refuse(StoreErrorKind::QueueBeingDeleted));
    let handler = async |_: Order| Ok::<_, JobError>(());
    let worker = Worker::builder(faulty.storage()).handle(handler).build().unwrap();
    let (health, began) = (worker.health(), tokio::time::Instant::now());
    let report = worker.run_until(tokio::time::sleep(Duration::from_secs(3))).await.unwrap();
    assert_eq!((report, health.report().phase), (jobqueue::Report::default(), WorkerPhase::Ended));
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}
