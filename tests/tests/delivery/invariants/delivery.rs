//! Sending and receiving: I1–I4, F1–F4, F6, F87–F92, F98, F99.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use jobqueue::storage::{Operation, PutMessage, StoreErrorKind};
use jobqueue::{JobError, JobInfo, Outcome, SendOptions, Storage, memory};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Log, Task, after, outcomes, task, worker};

type Seen = Arc<Mutex<Vec<(String, String)>>>;

/// Runs everything that can run. Returns the jobs by id and name.
async fn drain(storage: &Storage) -> Vec<(String, String)> {
    let seen: Seen = Arc::default();
    let sink = Arc::clone(&seen);
    let handler = move |task: Task, info: JobInfo| {
        sink.lock().unwrap().push((info.id.to_string(), task.name));
        async { Ok::<(), JobError>(()) }
    };
    let _ = worker(storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    let seen = seen.lock().unwrap();
    seen.clone()
}

// I1, I2, F1
#[tokio::test(start_paused = true)]
async fn put_without_answer_is_resent_under_one_id() {
    let faulty = Faulty::new(&memory::open());
    let tasks = faulty.storage().queue::<Task>().await.unwrap();
    faulty.plan(Operation::Put, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    let sent = tasks.send(&task("a")).await.unwrap();
    let ran = drain(&faulty.storage()).await;
    assert_eq!(ran.len(), 2, "stored twice: at least once, not exactly once");
    assert!(ran.iter().all(|(id, _)| id == sent.id()));
}

// F1
#[tokio::test(start_paused = true)]
async fn duplicate_of_a_job_with_a_blob_is_not_a_loss() {
    let faulty = Faulty::new(&memory::open());
    let tasks = faulty.storage().queue::<Task>().await.unwrap();
    faulty.plan(Operation::Put, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    let large = Task { name: "large".into(), data: "x".repeat(100_000) };
    let _ = tasks.send(&large).await.unwrap();
    let (log, listen) = outcomes();
    let handler = |_: Task| async { Ok::<(), JobError>(()) };
    let worker = worker(&faulty.storage()).concurrency(1).handle(handler).on_event(listen).build().unwrap();
    let _ = worker.run_until(after(3600)).await.unwrap();
    assert_eq!(*log.lock().unwrap(), ["completed", "duplicate"], "no dead letter for a job that was done");
}

// F2
#[tokio::test(start_paused = true)]
async fn put_that_did_not_arrive_is_stored_once() {
    let faulty = Faulty::new(&memory::open());
    let tasks = faulty.storage().queue::<Task>().await.unwrap();
    faulty.plan(Operation::Put, 1, Fault::LoseRequest(StoreErrorKind::Timeout));
    let _ = tasks.send(&task("a")).await.unwrap();
    assert_eq!(drain(&faulty.storage()).await.len(), 1);
}

// I3, F3
#[tokio::test(start_paused = true)]
async fn failed_send_tells_rejected_from_unknown() {
    let faulty = Faulty::new(&memory::open());
    let tasks = faulty.storage().queue::<Task>().await.unwrap();
    faulty.plan_always(Operation::Put, Fault::LoseRequest(StoreErrorKind::Timeout));
    let error = tasks.send(&task("a")).await.unwrap_err();
    assert!(error.is_outcome_unknown() && !error.is_rejected(), "{error:?}");
    faulty.plan_always(Operation::Put, Fault::Refuse(StoreErrorKind::Unauthorized));
    let error = tasks.send(&task("a")).await.unwrap_err();
    assert!(error.is_rejected() && !error.is_outcome_unknown(), "{error:?}");
    faulty.plan_always(Operation::Put, Fault::LoseRequest(StoreErrorKind::Throttled));
    assert!(tasks.send(&task("a")).await.unwrap_err().is_outcome_unknown());
    // Quiet: only such a storage throttles with certainty.
    let certain = Faulty::quiet(&memory::open());
    certain.plan_always(Operation::Put, Fault::Refuse(StoreErrorKind::Throttled));
    let elsewhere = certain.storage().queue::<Task>().await.unwrap();
    assert!(elsewhere.send(&task("a")).await.unwrap_err().is_rejected());
    faulty.heal();
    // Unknown, then sent again under the same id: one or two messages, one id.
    faulty.plan(Operation::Put, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    faulty.plan(Operation::Put, 2, Fault::LoseRequest(StoreErrorKind::Timeout));
    let id = || SendOptions::new().id("order-7");
    assert!(tasks.send(&task("a")).with(id()).await.unwrap_err().is_outcome_unknown());
    let _ = tasks.send(&task("a")).with(id()).await.unwrap();
    let ran = drain(&faulty.storage()).await;
    assert_eq!(ran.into_iter().map(|(id, _)| id).collect::<BTreeSet<_>>(), ["order-7".to_owned()].into());
}

// F4
#[tokio::test(start_paused = true)]
async fn lost_get_answer_costs_a_delivery_but_no_attempt() {
    let faulty = Faulty::new(&memory::open());
    let tasks = faulty.storage().queue::<Task>().await.unwrap();
    let _ = tasks.send(&task("a")).await.unwrap();
    faulty.plan(Operation::Get, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    let seen: Arc<Mutex<Vec<(u32, u32)>>> = Arc::default();
    let sink = Arc::clone(&seen);
    let handler = move |_: Task, info: JobInfo| {
        sink.lock().unwrap().push((info.dequeue_count, info.attempt));
        async { Ok::<(), JobError>(()) }
    };
    let _ = worker(&faulty.storage()).handle(handler).build().unwrap().run_until(after(120)).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), [(2, 1)]);
}

// F6
#[tokio::test(start_paused = true)]
async fn worker_fetches_no_more_than_its_free_slots() {
    let storage = memory::open();
    let tasks = storage.queue::<Task>().await.unwrap();
    for n in 0..40 {
        let _ = tasks.send(&task(n.to_string())).await.unwrap();
    }
    let running: Arc<Mutex<(usize, usize)>> = Arc::default();
    let count = Arc::clone(&running);
    let handler = move |_: Task, info: JobInfo| {
        let count = Arc::clone(&count);
        async move {
            assert_eq!(info.dequeue_count, 1, "nothing expired in a buffer");
            let now = {
                let mut count = count.lock().unwrap();
                count.0 += 1;
                count.1 = count.1.max(count.0);
                count.0
            };
            after(60).await;
            count.lock().unwrap().0 -= 1;
            assert!(now <= 4);
            Ok::<(), JobError>(())
        }
    };
    let report =
        worker(&storage).concurrency(4).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 40);
    assert_eq!(running.lock().unwrap().1, 4);
}

// I4, F87, F88, F90
#[tokio::test(start_paused = true)]
async fn delivered_bytes_equal_sent_bytes() {
    let storage = memory::open();
    let tasks = storage.queue::<Task>().await.unwrap();
    let mut texts: Vec<String> =
        ["", " ", "  a  ", "\r\n", "\0\u{1}\u{1f}", "\u{ffff}\u{fffe}\u{feff}", "&<>'\"", "😀"]
            .map(String::from)
            .into();
    // Around every limit between inline and blob, whatever the envelope adds.
    texts.extend([48_000, 49_151, 49_152, 49_153, 65_000, 65_535, 65_536, 65_537].map(|n| "&".repeat(n)));
    texts.extend((64_700..65_100).step_by(37).map(|n| "é".repeat(n / 2)));
    for (n, text) in texts.iter().enumerate() {
        let _ = tasks.send(&Task { name: n.to_string(), data: text.clone() }).await.unwrap();
    }
    let expected = texts.clone();
    let handler = move |task: Task| {
        let same = task.data == expected[task.name.parse::<usize>().unwrap()];
        async move { if same { Ok(()) } else { Err(JobError::dead_letter("differs")) } }
    };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, texts.len() as u64);
}

async fn raw(storage: &Storage, text: impl Into<String>) {
    let queue = "tasks".parse().unwrap();
    storage.queues().put(&queue, PutMessage::new(text)).await.unwrap();
}

// I13, F91, F92, F94, F98, F99
#[tokio::test(start_paused = true)]
async fn undecodable_messages_block_no_others() {
    let storage = memory::open();
    let tasks = storage.queue::<Task>().await.unwrap();
    let bad = [
        "hello from Storage Explorer",
        "",
        "{",
        "%%%not base64%%%",
        "eyJub3QiOg==",
        "//79/A==",
        r#"{"specversion":"9.9"}"#,
        r#"{"name":1e400}"#,
        r#"{"name":"a","name":"b"}"#,
    ];
    for text in bad {
        raw(&storage, text).await;
    }
    raw(&storage, format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000))).await;
    raw(
        &storage,
        format!("{{{}}}", (0..5_000).map(|n| format!("\"k{n}\":{n}")).collect::<Vec<_>>().join(",")),
    )
    .await;
    for n in 0..2_000 {
        raw(&storage, format!("rubbish {n}")).await;
    }
    let _ = tasks.send(&task("good")).await.unwrap();
    let ran = Log::default();
    let sink = Arc::clone(&ran);
    let handler = move |task: Task| {
        sink.lock().unwrap().push(task.name);
        async { Ok::<(), JobError>(()) }
    };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(*ran.lock().unwrap(), ["good"]);
    assert_eq!(report.completed, 1);
    assert_eq!(report.dead_lettered, bad.len() as u64 + 2_002);
    assert!(tasks.is_empty().await.unwrap());
    // Nothing is lost, and the cause stands with it without the text.
    let letters = tasks.dead_letters().unwrap().list().await.unwrap().letters;
    assert_eq!(letters.len(), bad.len() + 2_002);
    assert!(letters.iter().all(|letter| !letter.error.as_deref().unwrap_or_default().contains("Explorer")));
}

// F12, F20, F21
#[tokio::test(start_paused = true)]
async fn refusing_storage_is_polled_seldom_until_it_recovers() {
    let faulty = Faulty::new(&memory::open());
    let tasks = faulty.storage().queue::<Task>().await.unwrap();
    let _ = tasks.send(&task("a")).await.unwrap();
    faulty.plan_always(Operation::Get, Fault::Refuse(StoreErrorKind::Unavailable));
    let heal = faulty.clone();
    tokio::spawn(async move {
        after(300).await;
        heal.heal();
    });
    let (log, listen) = outcomes();
    let handler = |_: Task| async { Ok::<(), JobError>(()) };
    let worker = worker(&faulty.storage()).handle(handler).on_event(listen).build().unwrap();
    let _ = worker.run_until(after(420)).await.unwrap();
    assert_eq!(*log.lock().unwrap(), [Outcome::Completed.as_str()]);
    let asked = faulty.calls().into_iter().filter(|call| call.operation == Operation::Get).count();
    assert!(asked < 100, "{asked} requests in seven minutes are a hot loop");
}
