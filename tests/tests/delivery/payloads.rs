//! Payloads in blobs: each message has its own, and nothing removes a payload that another message needs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::batch::OnDeadLetters;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::storage::{Operation, PutMessage, StoreErrorKind};
use jobqueue::{
    Context, ErrorKind, JobError, Queue, QueueMessage, Reason, SendOptions, Storage, WorkerBuilder,
};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Log, Task, after, in_memory, outcomes, payloads, task, worker};
use serde::{Deserialize, Serialize};

const LARGE: usize = 100_000;

fn large(name: &str) -> Task {
    Task { name: name.into(), data: "x".repeat(LARGE) }
}

async fn run_for(builder: WorkerBuilder, seconds: u64) {
    let _ = builder.build().unwrap().run_until(after(seconds)).await.unwrap();
}

async fn reasons(queue: &Queue<Task>) -> Vec<Reason> {
    queue
        .dead_letters()
        .unwrap()
        .list()
        .await
        .unwrap()
        .letters
        .into_iter()
        .map(|letter| letter.reason)
        .collect()
}

fn completed(log: &Log) -> usize {
    log.lock().unwrap().iter().filter(|outcome| *outcome == "completed").count()
}

/// Two messages of one job, as a sender stores them whose first request got no answer.
async fn twice(options: SendOptions) -> (Storage, Queue<Task>) {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    faulty.plan(Operation::Put, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    let _ = queue.send(&large("a")).with(options).await.unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 2, "two messages of one job");
    (storage, queue)
}

/// Fails its first attempt; the payload must still exist after that.
async fn fails_once(task: Task, ctx: Context) -> Result<(), JobError> {
    assert_eq!(task.data.len(), LARGE);
    if ctx.info().attempt == 1 { Err(JobError::retry("planted")) } else { Ok(()) }
}

// B1
async fn the_copy_that_counts_keeps_its_payload(concurrency: usize) {
    let (storage, queue) = twice(SendOptions::new().in_order()).await;
    let (log, listen) = outcomes();
    run_for(worker(&storage).concurrency(concurrency).handle(fails_once).on_event(listen), 900).await;
    assert!(reasons(&queue).await.is_empty(), "{log:?}");
    assert_eq!(completed(&log), 1, "{log:?}");
}

// I12a
#[tokio::test(start_paused = true)]
async fn duplicate_in_order_keeps_the_payload_of_the_original() {
    the_copy_that_counts_keeps_its_payload(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_in_order_leaves_the_payload_with_many_slots() {
    the_copy_that_counts_keeps_its_payload(8).await;
}

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "sheets", kind = "sheet", poison_threshold = 3, backoff(base = "1s", max = "2s"))]
struct Sheet {
    data: String,
}

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "joins", kind = "join")]
struct Join {}

// B1
// I12a
#[tokio::test(start_paused = true)]
async fn duplicate_batch_child_keeps_payload_of_the_original() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let mut batch = storage.batch("b").await.unwrap();
    batch.on_dead_letters(OnDeadLetters::Continue);
    faulty.plan(Operation::PutAll, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    batch.send_all([Sheet { data: "x".repeat(LARGE) }]).await.unwrap();
    batch.then(&Join {}).await.unwrap();
    assert_eq!(
        storage.queue::<Sheet>().await.unwrap().approximate_len().await.unwrap(),
        2,
        "two messages of one child"
    );
    type End = Result<Option<u64>, Reason>;
    let joins: Arc<Mutex<Vec<End>>> = Arc::default();
    let sink = Arc::clone(&joins);
    let join = move |_: Join, ctx: Context| {
        let sink = Arc::clone(&sink);
        async move {
            let ends = ctx.batch_results::<u64>().await?;
            sink.lock().unwrap().extend(ends.into_iter().map(|end| end.outcome.map_err(|f| f.reason)));
            Ok::<_, JobError>(())
        }
    };
    let sheet = async |sheet: Sheet, ctx: Context| match ctx.info().attempt {
        1 => Err(JobError::retry("planted")),
        _ => Ok(ctx.set_result(&(sheet.data.len() as u64))?),
    };
    run_for(worker(&storage).concurrency(1).handle(sheet).handle(join), 900).await;
    assert_eq!(*joins.lock().unwrap(), [Ok(Some(LARGE as u64))]);
}

// B1: without an order, and done by another worker than the one that gets the copy.
// I12a
#[tokio::test(start_paused = true)]
async fn duplicate_of_a_completed_job_is_not_dead_lettered() {
    let (storage, queue) = twice(SendOptions::new()).await;
    // The first worker gets one of the two.
    let first = Faulty::new(&storage);
    first.on(Operation::Get, |call| (call.nth > 1).then_some(Fault::Refuse(StoreErrorKind::Unavailable)));
    let done = worker(&first.storage()).concurrency(1).handle(async |_: Task| Ok::<_, JobError>(()));
    let report = done.build().unwrap().run_until(after(5)).await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
    run_for(worker(&storage).handle(async |_: Task| Ok::<_, JobError>(())), 900).await;
    assert!(reasons(&queue).await.is_empty());
    assert_eq!(queue.approximate_len().await.unwrap(), 0);
    let blobs = storage.blobs().list_blobs(&"jobqueue-payloads".parse().unwrap(), "", None).await.unwrap();
    assert!(blobs.blobs.is_empty(), "each copy removes its own");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_certainly_not_sent_leaves_no_payload() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    for operation in [Operation::Put, Operation::PutAll] {
        faulty.plan_always(operation, Fault::Refuse(StoreErrorKind::Unauthorized));
    }
    assert!(queue.send(&large("a")).await.unwrap_err().is_rejected());
    let sent = queue.send_all(&[large("b")]).await.unwrap();
    assert!(sent[0].as_ref().unwrap_err().is_rejected());
    let blobs = storage.blobs().list_blobs(&"jobqueue-payloads".parse().unwrap(), "", None).await.unwrap();
    assert!(blobs.blobs.is_empty(), "{blobs:?}");
}

// W3
#[tokio::test(start_paused = true)]
async fn a_message_cannot_delete_the_payload_of_another_queue() {
    let storage = in_memory();
    let victim = storage.queue::<Sheet>().await.unwrap();
    let _ = victim.send(&Sheet { data: "x".repeat(LARGE) }).await.unwrap();
    let text = storage.queues().peek(&"sheets".parse().unwrap(), 1).await.unwrap()[0].text.clone().unwrap();
    let event: serde_json::Value = serde_json::from_str(&text).unwrap();
    let queue = storage.queue::<Task>().await.unwrap();
    // One is completed, one dead-lettered and purged, one refused for its reference and purged.
    for (id, name, place) in
        [("1", "done", "checkpoint"), ("2", "dead", "checkpoint"), ("3", "refused", "data")]
    {
        let mut forged = serde_json::json!({
            "specversion": "1.0", "id": id, "source": "/forger", "type": "task",
            "datacontenttype": "application/json", "data": { "name": name },
        });
        for part in ["ref", "size", "sha256"] {
            forged[format!("{place}{part}")] = event[format!("data{part}")].clone();
        }
        let put = PutMessage::new(forged.to_string());
        let _ = storage.queues().put(&"tasks".parse().unwrap(), put).await.unwrap();
    }
    let handler = async |task: Task| match &*task.name {
        "done" => Ok(()),
        _ => Err(JobError::dead_letter("planted")),
    };
    run_for(worker(&storage).handle(handler), 60).await;
    assert_eq!(
        queue
            .dead_letters()
            .unwrap()
            .purge(DeadLetterOptions::new().filter(|_| true))
            .await
            .unwrap()
            .deleted
            .len(),
        2
    );
    let delivery = victim.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(delivery.message().data.len(), LARGE);
    delivery.complete().await.unwrap();
}

// B21
#[tokio::test(start_paused = true)]
async fn completed_duplicate_keeps_payload_of_the_dead_letter() {
    let (storage, queue) = twice(SendOptions::new()).await;
    let runs = Arc::new(Mutex::new(0));
    let handler = move |_: Task| {
        *runs.lock().unwrap() += 1;
        let first = *runs.lock().unwrap() == 1;
        async move { if first { Err(JobError::dead_letter("planted")) } else { Ok(()) } }
    };
    run_for(worker(&storage).concurrency(1).handle(handler), 60).await;
    let dead_letters = queue.dead_letters().unwrap();
    let letters = dead_letters.list().await.unwrap().letters;
    assert_eq!(letters.len(), 1);
    assert_eq!(dead_letters.message(&letters[0]).await.unwrap().data.len(), LARGE);
}

// B22: the dead letter of a message that expires must last, and so must its payload.
#[tokio::test(start_paused = true)]
async fn dead_letter_made_during_a_blob_outage_keeps_payload() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let ttl = Duration::from_secs(3600);
    let _ = queue.send(&large("a")).ttl(ttl).await.unwrap();
    let plan = faulty.clone();
    let runs = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&runs);
    let handler = move |_: Task| {
        *counted.lock().unwrap() += 1;
        // From now on for a minute.
        let end = tokio::time::Instant::now() + Duration::from_secs(60);
        plan.on(Operation::GetBlob, move |_| {
            (tokio::time::Instant::now() < end).then_some(Fault::Refuse(StoreErrorKind::Unavailable))
        });
        async { Err::<(), _>(JobError::dead_letter("planted")) }
    };
    run_for(worker(&storage).handle(handler), 900).await;
    assert_eq!(
        *runs.lock().unwrap(),
        1,
        "the dead letter waits for its payload, the handler is not run again"
    );
    let dead_letters = queue.dead_letters().unwrap();
    let letters = dead_letters.list().await.unwrap().letters;
    assert_eq!(letters.len(), 1);
    assert_eq!(queue.approximate_len().await.unwrap(), 0);
    after(30 * 86_400).await;
    let swept = sweep(&storage, SweepOptions::new()).await.unwrap();
    assert!(dead_letters.message(&letters[0]).await.is_ok(), "{swept:?}");
}

// The class of B20 to B22: a crash between copy and deletion, and then the job is done after all.
#[tokio::test(start_paused = true)]
async fn unfinished_dead_letter_shares_no_blob_with_its_message() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&large("a")).await.unwrap();
    faulty.plan(Operation::Delete, 1, Fault::Hang);
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("planted"));
    let dying = worker(&storage).handle(handler).build().unwrap().run_until(std::future::pending());
    assert!(tokio::time::timeout(Duration::from_secs(5), dying).await.is_err());
    after(60).await;
    let dead_letters = queue.dead_letters().unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
    assert_eq!(dead_letters.approximate_len().await.unwrap(), 1);
    // Somebody purges the dead letter: the message keeps its payload, until its next delivery ends it too.
    let payloads = async || {
        let container = "jobqueue-payloads".parse().unwrap();
        storage.blobs().list_blobs(&container, "", None).await.unwrap().blobs.len()
    };
    assert_eq!(payloads().await, 2);
    assert_eq!(dead_letters.purge(DeadLetterOptions::new().filter(|_| true)).await.unwrap().deleted.len(), 1);
    assert_eq!(payloads().await, 1);
    run_for(worker(&storage).handle(async |_: Task| Ok::<_, JobError>(())), 120).await;
    assert_eq!(queue.approximate_len().await.unwrap(), 0);
    assert!(dead_letters.is_empty().await.unwrap());
    // The payload of the message stays until a sweep: a letter may refer to it.
    after(9 * 86_400).await;
    let _ = sweep(&storage, SweepOptions::new().drained_queues(true)).await.unwrap();
    assert_eq!(payloads().await, 0);
}

// D4
#[tokio::test(start_paused = true)]
async fn sent_message_leaves_room_for_attempts_and_a_dead_letter() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let (mut sent, mut refused) = (0, 0);
    for (size, data) in (60_000..65_400).step_by(100).flat_map(|size| [(size, 10), (size, 5_000), (10, size)])
    {
        let message = Task { name: "a".into(), data: "x".repeat(data) };
        match queue.send(&message).header("big", "h".repeat(size)).await {
            Ok(_) => sent += 1,
            Err(error) => {
                assert!(error.kind() == ErrorKind::TooLarge && data < size, "{error}");
                refused += 1;
            }
        }
    }
    assert!(sent > 100 && refused > 20, "{sent} {refused}");
    let runs = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&runs);
    let handler = move |_: Task, ctx: Context| {
        *counted.lock().unwrap() += 1;
        async move {
            ctx.checkpoint(&"c".repeat(10_000)).await?;
            Err::<(), _>(JobError::retry("no customer of this number; ".repeat(100)))
        }
    };
    let failing = worker(&storage).name("n".repeat(500)).circuit_breaker(None).handle(handler);
    run_for(failing, 900).await;
    assert_eq!(queue.approximate_len().await.unwrap(), 0);
    assert_eq!(*runs.lock().unwrap(), 3 * sent);
    let dead_letters = queue.dead_letters().unwrap();
    let redriven = dead_letters.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.moved.len(), sent);
    assert!(redriven.skipped.is_empty());
}

// B1: two messages that share a blob, as a producer makes them whose library repeats a put by itself.
#[tokio::test(start_paused = true)]
async fn a_message_that_shares_the_blob_of_a_recorded_job_is_a_duplicate() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&large("a")).await.unwrap();
    let text = storage.queues().peek(queue.name(), 1).await.unwrap().remove(0).text.unwrap();
    let done = || worker(&storage).durable_completions(true).handle(async |_: Task| Ok::<_, JobError>(()));
    run_for(done(), 60).await;
    let _ = storage.queues().put(queue.name(), PutMessage::new(text)).await.unwrap();
    let (log, listen) = outcomes();
    run_for(done().on_event(listen), 900).await;
    assert!(reasons(&queue).await.is_empty());
    assert_eq!(queue.approximate_len().await.unwrap(), 0);
    assert_eq!(*log.lock().unwrap(), ["duplicate"]);
}

// L1
#[tokio::test(start_paused = true)]
async fn dead_letter_of_a_payload_over_the_workers_limit_keeps_it() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&large("a")).ttl(Duration::from_secs(3600)).await.unwrap();
    let handler = async |task: Task| {
        assert_eq!(task.data.len(), LARGE);
        Ok::<_, JobError>(())
    };
    run_for(worker(&storage).max_payload_bytes(50_000).handle(handler), 60).await;
    assert_eq!(reasons(&queue).await, [Reason::PAYLOAD_TOO_LARGE]);
    // Long after the message would have expired.
    after(30 * 86_400).await;
    let _ = sweep(&storage, SweepOptions::new()).await.unwrap();
    let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.moved.len(), 1, "{redriven:?}");
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!((report.completed, payloads(&storage).await), (1, 0));
}

// L2
#[tokio::test(start_paused = true)]
async fn checkpoint_over_the_limit_of_payloads_is_read_again() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let handler = async |_: Task, ctx: Context| match ctx.resume::<String>().await? {
        Some(saved) => {
            assert_eq!(saved.len(), LARGE);
            Ok(())
        }
        None => {
            let _ = ctx.checkpoint(&"x".repeat(LARGE)).await?;
            Err(JobError::retry("planted"))
        }
    };
    let (log, listen) = outcomes();
    run_for(worker(&storage).max_payload_bytes(1_000).handle(handler).on_event(listen), 60).await;
    assert_eq!(*log.lock().unwrap(), ["retried", "completed"]);
}

// L2
#[tokio::test(start_paused = true)]
async fn checkpoint_that_no_delivery_could_read_is_refused() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let handler = async |_: Task, ctx: Context| {
        let refused = ctx.checkpoint(&"x".repeat(32 << 20)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge);
        Ok::<_, JobError>(())
    };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!((report.completed, faulty.calls_of(Operation::PutBlob)), (1, 0));
}
