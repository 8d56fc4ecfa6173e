//! Redriving dead letters: no job is lost, nothing stops it, and the jobs return to their queue.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::dead_letters::{DeadLetter, DeadLetterOptions};
use jobqueue::storage::{Metadata, Operation, PutMessage, StoreErrorKind};
use jobqueue::{Context, JobError, JobInfo, Queue, QueueName, Reason, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, payloads, task, worker};
use serde_json::{Value, json};

pub(super) const LARGE: usize = 100_000;

pub(super) fn large(name: &str) -> Task {
    Task { name: name.into(), data: "x".repeat(LARGE) }
}

/// Runs a worker that rejects everything.
pub(super) async fn reject_all(storage: &Storage) {
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("planted"));
    let _ = worker(storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
}

/// Runs a worker that completes everything. Returns the number of jobs, and the number of large payloads
/// among them.
pub(super) async fn finish_all(storage: &Storage) -> (u64, usize) {
    let larges = Arc::new(Mutex::new(0));
    let sink = Arc::clone(&larges);
    let handler = move |task: Task| {
        *sink.lock().unwrap() += usize::from(task.data.len() == LARGE);
        async { Ok::<_, JobError>(()) }
    };
    let report = worker(storage).handle(handler).build().unwrap().run_until(after(900)).await.unwrap();
    let larges = *larges.lock().unwrap();
    (report.completed, larges)
}

pub(super) async fn lengths(queue: &Queue<Task>) -> (u64, u64) {
    (queue.approximate_len().await.unwrap(), queue.dead_letters().unwrap().approximate_len().await.unwrap())
}

// W-redrive
#[tokio::test]
async fn jobs_that_die_again_while_a_redrive_runs_are_kept() {
    for rate in [None, Some(400)] {
        let storage = Storage::memory();
        let queue = storage.queue::<Task>().await.unwrap();
        for n in 0..100 {
            let _ = queue.send(&task(n.to_string())).await.unwrap();
        }
        let deaths: Arc<Mutex<BTreeMap<String, u32>>> = Arc::default();
        let sink = Arc::clone(&deaths);
        let handler = move |_: Task, info: JobInfo| {
            *sink.lock().unwrap().entry(info.id.to_string()).or_default() += 1;
            async { Err::<(), _>(JobError::dead_letter("planted")) }
        };
        let dying = jobqueue::Worker::builder(storage.clone()).handle(handler).rejections_per_second(None);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(dying.build().unwrap().run_until(async { drop(stopped.await) }));
        let dead_letters = queue.dead_letters().unwrap();
        while dead_letters.approximate_len().await.unwrap() < 100 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let options = rate.map_or(DeadLetterOptions::new(), |rate| DeadLetterOptions::new().per_second(rate));
        let redriven = dead_letters.redrive(options).await.unwrap();
        while deaths.lock().unwrap().values().sum::<u32>() < 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.send(()).unwrap();
        let _ = running.await.unwrap().unwrap();
        assert_eq!(redriven.moved.len(), 100);
        assert_eq!(lengths(&queue).await, (0, 100), "{rate:?}: each lies here again");
    }
}

// W-redrive: in virtual time nothing is later than the moment in which the redrive began.
#[tokio::test(start_paused = true)]
async fn a_redrive_ends_although_all_it_puts_back_dies_at_once() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..40 {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    let text = PutMessage::new("no event");
    storage.queues().put(queue.name(), text).await.unwrap();
    reject_all(&storage).await;
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("planted"));
    // At the distance of Azure, so that what it puts back dies while it runs.
    let dead_letters = Faulty::new(&storage).storage().queue::<Task>().await.unwrap().dead_letters().unwrap();
    let dying = worker(&storage).handle(handler).rejections_per_second(None).build().unwrap();
    let redriven = async {
        tokio::task::yield_now().await;
        let looked_at = AtomicU32::new(0);
        let few = move |_: &DeadLetter| {
            looked_at.fetch_add(1, Ordering::Relaxed) < 1_000 || panic!("it goes round")
        };
        let redriven = dead_letters.redrive(DeadLetterOptions::new().filter(few)).await.unwrap();
        after(10).await;
        redriven
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = dying.run_until(async { drop(stopped.await) });
    let both = async {
        let redriven = redriven.await;
        stop.send(()).unwrap();
        redriven
    };
    let (report, redriven) = tokio::join!(running, both);
    assert_eq!(report.unwrap().dead_lettered, 41);
    assert_eq!(redriven.moved.len(), 41);
    assert_eq!(lengths(&queue).await, (0, 41));
}

// B19
// I12
#[tokio::test(start_paused = true)]
async fn equal_ids_of_two_sources_are_two_dead_letters() {
    for attempts in [1, 3] {
        let storage = in_memory();
        let queue = storage.queue::<Task>().await.unwrap();
        for source in ["/shop", "/stock"] {
            let event = serde_json::json!({
                "specversion": "1.0", "id": "1", "source": source, "type": "task",
                "datacontenttype": "application/json", "data": { "name": source },
            });
            storage.queues().put(queue.name(), PutMessage::new(event.to_string())).await.unwrap();
        }
        let fail = move |_: Task| async move {
            match attempts {
                1 => Err::<(), _>(JobError::dead_letter("planted")),
                _ => Err(JobError::retry("planted")),
            }
        };
        let failing = worker(&storage).concurrency(1).handle(fail).build().unwrap();
        let _ = failing.run_until(after(300)).await.unwrap();
        assert_eq!(lengths(&queue).await, (0, 2));
        let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
        assert_eq!(redriven.moved.len(), 2);
        assert_eq!(lengths(&queue).await, (2, 0));
    }
}

// B6
#[tokio::test(start_paused = true)]
async fn dead_letters_near_the_limit_are_put_back_as_any_other() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let mut sent = 0;
    for size in (64_000..65_300).step_by(16) {
        let _ = queue.send(&Task { name: "n".into(), data: "x".repeat(size) }).await.unwrap();
        sent += 1;
    }
    for round in 0..12 {
        let error = format!("{round} {}", "no customer of this number; ".repeat(100));
        let reject = move |_: Task| {
            let error = JobError::dead_letter(error.clone());
            async { Err::<(), _>(error) }
        };
        let _ = worker(&storage).handle(reject).build().unwrap().run_until(after(60)).await.unwrap();
        assert_eq!(lengths(&queue).await, (0, sent));
        let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
        assert_eq!(redriven.moved.len() as u64, sent);
        assert!(redriven.skipped.is_empty());
        assert_eq!(lengths(&queue).await, (sent, 0));
    }
    assert_eq!(finish_all(&storage).await.0, sent);
    assert_eq!(payloads(&storage).await, 0, "each payload that moved out is removed with its job");
}

/// By virtual time: to put back 200 letters one after the other takes half a minute at the distance of Azure.
#[tokio::test(start_paused = true)]
async fn letters_are_put_back_many_at_a_time() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..200 {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    reject_all(&storage).await;
    let began = tokio::time::Instant::now();
    let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.moved.len(), 200);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    assert_eq!(lengths(&queue).await, (200, 0));
}

#[tokio::test(start_paused = true)]
async fn letters_of_jobs_in_order_are_put_back_one_after_the_other() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..20 {
        let one = Task { name: "one".into(), data: n.to_string() };
        let _ = queue.send(&one).in_order().await.unwrap();
    }
    reject_all(&storage).await;
    let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.moved.len(), 20);
    let puts: Vec<_> = faulty.calls().into_iter().filter(|call| call.operation == Operation::Put).collect();
    let last = puts[puts.len() - 20..].windows(2);
    assert!(last.clone().all(|two| two[0].at < two[1].at), "two were put back at the same time");
}

#[tokio::test(start_paused = true)]
async fn redriven_job_is_not_said_to_have_finished() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    reject_all(&storage).await;
    let dead_letters = queue.dead_letters().unwrap();
    let lying = storage.queues().peek(dead_letters.name(), 1).await.unwrap().remove(0).text.unwrap();
    let finished = lying.replace(r#""deadletterqueue""#, r#""handlerfinished":"{}","deadletterqueue""#);
    assert!(lying.len() < finished.len());
    let _ = dead_letters.purge(DeadLetterOptions::new().filter(|_| true)).await.unwrap();
    storage.queues().put(dead_letters.name(), PutMessage::new(finished)).await.unwrap();
    after(1).await;
    assert_eq!(dead_letters.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
    let put_back = storage.queues().peek(queue.name(), 1).await.unwrap().remove(0).text.unwrap();
    assert!(!put_back.contains("handlerfinished"), "{put_back}");
}

// B6, W4
#[tokio::test(start_paused = true)]
async fn one_letter_that_cannot_be_put_back_stops_no_other() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..20 {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    let _ = queue.send(&large("lost")).await.unwrap();
    reject_all(&storage).await;
    let dead_letters = queue.dead_letters().unwrap();
    // One comes from elsewhere, the payload of another is gone.
    let lying = storage.queues().peek(dead_letters.name(), 1).await.unwrap().remove(0).text.unwrap();
    let elsewhere = lying.replace(r#""deadletterqueue":"tasks""#, r#""deadletterqueue":"payments""#);
    let elsewhere = elsewhere.replace(r#""source":""#, r#""source":"/other"#);
    storage.queues().put(dead_letters.name(), PutMessage::new(elsewhere)).await.unwrap();
    let container = "jobqueue-payloads".parse().unwrap();
    for (name, _) in storage.blobs().list_blobs(&container, "", None).await.unwrap().blobs {
        let name = jobqueue::storage::BlobName::new(container.clone(), name).unwrap();
        storage.blobs().delete_blob(&name, None).await.unwrap();
    }
    after(1).await;
    faulty.plan(Operation::Put, 5, Fault::Refuse(StoreErrorKind::Unauthorized));
    let redriven = dead_letters.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.moved.len(), 19, "{redriven:?}");
    assert_eq!(redriven.skipped.len(), 3, "{redriven:?}");
    assert!(redriven.skipped.iter().all(|letter| !letter.maybe_moved && !letter.why.is_empty()));
    assert!(storage.queues().list_queues("payments").await.unwrap().is_empty());
    assert_eq!(lengths(&queue).await, (19, 3));
    // At once, since what was skipped is visible.
    let again = dead_letters.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(again.moved.len(), 1, "{again:?}");
    assert_eq!(again.skipped.len(), 2, "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn a_limit_counts_jobs_whose_letters_could_not_be_deleted() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..3 {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    reject_all(&storage).await;
    faulty.plan_always(Operation::Delete, Fault::Refuse(StoreErrorKind::Unavailable));
    let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new().limit(1)).await.unwrap();
    assert_eq!((redriven.moved.len(), redriven.skipped.len(), redriven.left), (0, 1, 2));
    faulty.heal();
    assert_eq!(lengths(&queue).await, (1, 3));
}

// W4
#[tokio::test(start_paused = true)]
async fn a_redrive_that_the_storage_fails_ends_soon_and_holds_nothing() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..50 {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    reject_all(&storage).await;
    let dead_letters = queue.dead_letters().unwrap();
    faulty.plan_always(Operation::Put, Fault::Refuse(StoreErrorKind::Unavailable));
    let redriven = dead_letters.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.moved.len(), 0);
    assert_eq!(redriven.skipped.len(), 3);
    assert_eq!(redriven.left, 29);
    assert!(redriven.stopped.is_some());
    faulty.heal();
    let again = dead_letters.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(again.moved.len(), 50);
    assert_eq!(again.stopped, None);
}

// B12
#[tokio::test(start_paused = true)]
async fn the_fence_of_a_job_grows_over_redrives() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let fences: Arc<Mutex<Vec<u64>>> = Arc::default();
    for _ in 0..4 {
        let sink = Arc::clone(&fences);
        let fail = move |_: Task, ctx: Context| {
            sink.lock().unwrap().push(ctx.fence());
            async { Err::<(), _>(JobError::retry("planted")) }
        };
        let _ = worker(&storage).handle(fail).build().unwrap().run_until(after(300)).await.unwrap();
        let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
        assert_eq!(redriven.moved.len(), 1);
    }
    let fences = fences.lock().unwrap().clone();
    assert!(fences.len() == 12 && fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
}

// M
#[tokio::test(start_paused = true)]
async fn dead_letter_shows_its_error_and_undecodable_text() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let long = format!("no event {}", "\"".repeat(21_000));
    for text in ["{\"half\":", &long] {
        storage.queues().put(queue.name(), PutMessage::new(text)).await.unwrap();
    }
    let _ = queue.send(&task("a")).await.unwrap();
    reject_all(&storage).await;
    let dead_letters = queue.dead_letters().unwrap();
    let mut letters = dead_letters.list().await.unwrap().letters;
    letters.sort_by_key(|letter| letter.reason != Reason::REJECTED);
    assert!(format!("{:?}", letters[0]).contains("planted") && letters[0].unreadable_text().is_none());
    assert!(dead_letters.text(&letters[0]).await.unwrap().contains(r#""deadletterdeliveries":1"#));
    let mut texts = Vec::new();
    for letter in &letters[1..] {
        let text = dead_letters.text(letter).await.unwrap();
        assert!(letter.unreadable_text().is_none_or(|inline| inline == text));
        texts.push(text);
    }
    texts.sort();
    assert_eq!(texts, [long, "{\"half\":".to_owned()]);
}

// A put of a redrive without an answer is repeated, and both messages had the turn of their job at once.
#[tokio::test(start_paused = true)]
async fn repeated_put_of_a_kept_text_is_another_copy_of_its_job() {
    let (below, letters) = (in_memory(), QueueName::new("tasks-poison").unwrap());
    let event = json!({
        "specversion": "1.0", "id": "a", "source": "/test", "type": "task", "key": "k", "inorder": "true",
        "fifocopy": "0123456789abcd", "data": {}
    });
    let letter = json!({
        "specversion": "1.0", "id": "m", "source": "/jobqueue/external", "type": "jobqueue.unreadable",
        "data": event.to_string()
    });
    below.queues().create_queue(&letters, &Metadata::new()).await.unwrap();
    below.queues().put(&letters, PutMessage::new(letter.to_string())).await.unwrap();
    let faulty = Faulty::new(&below);
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    faulty.plan(Operation::Put, 1, Fault::DropAnswer(StoreErrorKind::Unavailable));
    let report = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(report.moved.len(), 1, "{report:?}");
    let back = below.queues().peek(queue.name(), 32).await.unwrap();
    let copy = |text: &str| serde_json::from_str::<Value>(text).unwrap()["fifocopy"].to_string();
    let mut copies: Vec<_> = back.iter().map(|message| copy(message.text.as_ref().unwrap())).collect();
    copies.push("\"0123456789abcd\"".to_owned());
    copies.sort();
    copies.dedup();
    assert_eq!(copies.len(), 3, "{back:?}");
}

// C8
#[tokio::test(start_paused = true)]
async fn slow_redrive_with_a_filter_reads_every_letter() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..32 {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    reject_all(&storage).await;
    let dead_letters = queue.dead_letters().unwrap();
    for n in 0..645 {
        // The last become visible after the letters that the filter leaves are visible again: they come
        // behind them.
        let delay = Duration::from_secs(if n < 640 { 0 } else { 610 });
        let raw = PutMessage::new(r#"{"name":"raw","data":""}"#).with_visibility_delay(delay);
        storage.queues().put(dead_letters.name(), raw).await.unwrap();
    }
    after(1).await;
    let slow = DeadLetterOptions::new().filter(|letter| letter.reason == "unknown").per_second(1);
    let redriven = dead_letters.redrive(slow).await.unwrap();
    assert_eq!((redriven.moved.len(), redriven.left, redriven.stopped), (645, 32, None));
    assert_eq!(lengths(&queue).await, (645, 32));
}
