//! Attempts are bounded, and thresholds are sane: I11, I13, F4, F22, F96, F101–F105, F108–F110.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::settings::{Metadata, SettingOverrides};
use jobqueue::storage::{BlobName, ContainerName};
use jobqueue::storage::{Operation, PutMessage, StoreErrorKind};
use jobqueue::{JobError, JobInfo, QueueMessage, Storage, memory};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Log, Task, after, in_memory, outcomes, task, worker};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

// I11, F109
#[tokio::test(start_paused = true)]
async fn absurd_thresholds_give_the_default() {
    for (value, attempts) in
        [("0", 3), ("-1", 3), ("99999999999", 3), ("abc", 3), ("", 3), ("1", 1), ("2", 2), (" 2 ", 2)]
    {
        let storage = memory::open();
        let metadata = Metadata::new().with("poisonthreshold", value);
        storage.queues().create_queue(&"tasks".parse().unwrap(), &metadata).await.unwrap();
        let _ = storage.queue::<Task>().await.unwrap().send(&task("a")).await.unwrap();
        let runs: Arc<Mutex<u32>> = Arc::default();
        let counted = Arc::clone(&runs);
        let handler = move |_: Task| {
            *counted.lock().unwrap() += 1;
            async { Err::<(), _>(JobError::retry("always")) }
        };
        let worker = worker(&storage).circuit_breaker(None).handle(handler).build().unwrap();
        let report = worker.run_until(after(600)).await.unwrap();
        assert_eq!(*runs.lock().unwrap(), attempts, "poisonthreshold {value:?}");
        assert_eq!(report.dead_lettered, 1, "poisonthreshold {value:?}");
    }
}

// F109
#[tokio::test(start_paused = true)]
async fn changed_threshold_holds_within_refresh_interval() {
    let storage = memory::open();
    let queue = storage.queue::<Task>().await.unwrap();
    let metadata = Metadata::new().with("poisonthreshold", "7");
    let change = storage.clone();
    tokio::spawn(async move {
        after(60).await;
        change.queues().set_queue_metadata(&"tasks".parse().unwrap(), &metadata).await.unwrap();
        after(31).await;
        let _ = change.queue::<Task>().await.unwrap().send(&task("late")).await.unwrap();
    });
    let seen: Arc<Mutex<Vec<u32>>> = Arc::default();
    let sink = Arc::clone(&seen);
    let handler = move |_: Task, info: JobInfo| {
        sink.lock().unwrap().push(info.max_attempts);
        async { Ok::<(), JobError>(()) }
    };
    let _ = queue.send(&task("early")).await.unwrap();
    let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(200)).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), [3, 7]);
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "shared", kind = "charge", poison_threshold = 1, lease = "5s")]
struct Charge {}

/// Another type of the same queue, which declares nothing.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "shared", kind = "report", backoff(base = "1s", max = "1s"))]
struct Report {}

/// The same type in a later release.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "shared", kind = "report", poison_threshold = 7, backoff(base = "1s", max = "1s"))]
struct LaterReport {}

/// Runs a queue of which both types always fail; returns the attempts of charges and of reports.
async fn attempts_of_both<R: QueueMessage>(storage: &Storage) -> (u32, u32) {
    let attempts: Arc<Mutex<(u32, u32)>> = Arc::default();
    let (charges, reports) = (Arc::clone(&attempts), Arc::clone(&attempts));
    let charge = move |_: Charge| {
        charges.lock().unwrap().0 += 1;
        async { Err::<(), _>(JobError::retry("always")) }
    };
    let report = move |_: R| {
        reports.lock().unwrap().1 += 1;
        async { Err::<(), _>(JobError::retry("always")) }
    };
    let worker = worker(storage).circuit_breaker(None).handle(charge).handle(report).build().unwrap();
    let _ = worker.run_until(after(600)).await.unwrap();
    *attempts.lock().unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_type_has_its_own_threshold_whoever_opened_the_queue_first() {
    let storage = in_memory();
    let charges = storage.queue::<Charge>().await.unwrap();
    let reports = storage.queue::<Report>().await.unwrap();
    let _ = charges.send(&Charge {}).await.unwrap();
    let _ = reports.send(&Report {}).await.unwrap();
    assert_eq!(attempts_of_both::<Report>(&storage).await, (1, 5));

    // A later release is not bound by what the queue was created with.
    let _ = reports.send(&Report {}).await.unwrap();
    assert_eq!(attempts_of_both::<LaterReport>(&storage).await, (0, 7));

    // An operator decides for all types.
    let metadata = Metadata::new().with("poisonthreshold", "2");
    storage.queues().set_queue_metadata(charges.name(), &metadata).await.unwrap();
    let _ = charges.send(&Charge {}).await.unwrap();
    let _ = reports.send(&Report {}).await.unwrap();
    assert_eq!(attempts_of_both::<Report>(&storage).await, (2, 2));
}

// R17-1
#[tokio::test(start_paused = true)]
async fn programs_of_other_kinds_do_not_end_the_attempts_of_a_job() {
    let storage = in_memory();
    let charges = storage.queue::<Charge>().await.unwrap();
    let _ = storage.queue::<LaterReport>().await.unwrap().send(&LaterReport {}).await.unwrap();
    let (attempts, ran) = (Arc::<Mutex<Vec<u32>>>::default(), Arc::<Notify>::default());
    let letters = charges.dead_letters().unwrap();
    for attempt in 1..=7 {
        let (sink, notify) = (Arc::clone(&attempts), Arc::clone(&ran));
        let report = move |_: LaterReport, info: JobInfo| {
            sink.lock().unwrap().push(info.attempt);
            notify.notify_one();
            async { Err::<(), _>(JobError::retry("always")) }
        };
        let knowing = worker(&storage).circuit_breaker(None).handle(report).build().unwrap();
        let _ = knowing.run_until(ran.notified()).await.unwrap();
        let stranger = worker(&storage).handle(|_: Charge| async { Ok::<(), JobError>(()) });
        let _ = stranger.build().unwrap().run_until(after(60)).await.unwrap();
        // By hand, with a threshold of 1.
        assert!(charges.receive(Duration::from_secs(60)).await.unwrap().is_none());
        assert_eq!(letters.approximate_len().await.unwrap(), u64::from(attempt == 7), "{attempt}");
    }
    assert_eq!(*attempts.lock().unwrap(), [1, 2, 3, 4, 5, 6, 7]);
    let letter = letters.peek().await.unwrap().remove(0);
    assert_eq!(letter.reason.as_str(), "attempts_exhausted");
}

#[tokio::test(start_paused = true)]
async fn a_process_overrides_queue_and_type() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let seen: Arc<Mutex<Option<u32>>> = Arc::default();
    let sink = Arc::clone(&seen);
    let handler = move |_: Task, info: JobInfo| {
        *sink.lock().unwrap() = Some(info.max_attempts);
        async { Ok::<(), JobError>(()) }
    };
    let mut overrides = SettingOverrides::default();
    overrides.poison_threshold = Some(9);
    let worker = worker(&storage).overrides(overrides).handle(handler).build().unwrap();
    let _ = worker.run_until(after(60)).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), Some(9));
}

// I11
#[tokio::test(start_paused = true)]
async fn job_that_kills_its_worker_is_bounded_by_deliveries() {
    let storage = memory::open();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("killer")).await.unwrap();
    let mut terms = jobqueue::settings::SettingOverrides::default();
    terms.max_deliveries = Some(6);
    let mut runs = 0;
    for _ in 0..10 {
        let handler = |_: Task| async {
            std::future::pending::<()>().await;
            Ok::<(), JobError>(())
        };
        let dying = worker(&storage).overrides(terms).handle(handler).build().unwrap();
        let before = queue.approximate_len().await.unwrap();
        // Dropped in the middle, as a crash would.
        let _ = tokio::time::timeout(Duration::from_secs(5), dying.run_until(std::future::pending())).await;
        runs += u32::from(before == 1 && queue.approximate_len().await.unwrap() == 1);
        after(40).await;
    }
    assert_eq!(runs, 6);
    let letters = queue.dead_letters().unwrap().peek().await.unwrap();
    assert_eq!(letters[0].reason.as_str(), "max_deliveries");
    assert_eq!(letters[0].attempts, 0);
}

#[tokio::test(start_paused = true)]
async fn job_that_is_remembered_as_done_is_not_dead_lettered_for_its_deliveries() {
    let faulty = Faulty::deleting_one_by_one(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let mut terms = SettingOverrides::default();
    terms.max_deliveries = Some(1);
    faulty.plan_always(Operation::Delete, Fault::LoseRequest(StoreErrorKind::Unavailable));
    tokio::spawn(async move {
        // Past the lease of the first delivery.
        after(32).await;
        faulty.heal();
    });
    let handler = async |_: Task| Ok::<_, JobError>(());
    let worker = worker(&storage).overrides(terms).handle(handler).build().unwrap();
    let report = worker.run_until(after(120)).await.unwrap();
    assert_eq!((report.uncertain, report.dead_lettered), (1, 0));
    assert_eq!(queue.approximate_len().await.unwrap(), 0);
}

async fn stored(storage: &Storage) -> BlobName {
    let container: ContainerName = ContainerName::new("jobqueue-payloads").unwrap();
    let page = storage.blobs().list_blobs(&container, "", None).await.unwrap();
    BlobName::new(container, page.blobs[0].0.clone()).unwrap()
}

async fn send_large(storage: &Storage) -> BlobName {
    let large = Task { name: "large".into(), data: "x".repeat(100_000) };
    let _ = storage.queue::<Task>().await.unwrap().send(&large).await.unwrap();
    stored(storage).await
}

/// Runs the waiting messages for an hour. Returns the outcomes and the reasons of the dead letters. No
/// handler may run.
async fn refused(storage: &Storage) -> (Vec<String>, Vec<String>) {
    let (log, listen) = outcomes();
    let handler = |task: Task| async move {
        assert_eq!(task.name, "never", "must not be run");
        Ok::<(), JobError>(())
    };
    let worker =
        worker(storage).handle(handler).on_event(listen).max_payload_bytes(1_000_000).build().unwrap();
    let _ = worker.run_until(after(3600)).await.unwrap();
    let letters =
        storage.queue::<Task>().await.unwrap().dead_letters().unwrap().list().await.unwrap().letters;
    let log = log.lock().unwrap().clone();
    (log, letters.into_iter().map(|letter| letter.reason.to_string()).collect())
}

// F103
#[tokio::test(start_paused = true)]
async fn missing_payload_is_retried_then_dead_lettered() {
    let storage = memory::open();
    let blob = send_large(&storage).await;
    storage.blobs().delete_blob(&blob, None).await.unwrap();
    let (mut log, reasons) = refused(&storage).await;
    // It costs no attempt: the storage may have been failed over, and show the payload later.
    assert!(log.len() > 5 && log.pop().is_some_and(|last| last == "dead_lettered"), "{log:?}");
    assert!(log.iter().all(|end| end == "released"), "{log:?}");
    assert_eq!(reasons, ["payload_missing"]);
    let letter =
        storage.queue::<Task>().await.unwrap().dead_letters().unwrap().peek().await.unwrap().remove(0);
    let error = letter.error.unwrap();
    assert!(error.contains("does not exist"), "gone and out of reach are told apart: {error}");
}

// I4, F104, F105
#[tokio::test(start_paused = true)]
async fn altered_payload_is_never_run() {
    for data in ["y".repeat(100_000), "x".repeat(99_999), "x".repeat(100_001), "x".repeat(2_000_000)] {
        let storage = memory::open();
        let blob = send_large(&storage).await;
        storage.blobs().put_blob(&blob, data.into(), jobqueue::storage::PutBlob::new()).await.unwrap();
        let (log, reasons) = refused(&storage).await;
        assert_eq!(log, vec!["dead_lettered".to_owned()]);
        assert_eq!(reasons, vec!["payload_corrupt".to_owned()]);
    }
}

// I4, F104
#[tokio::test(start_paused = true)]
async fn payload_altered_in_one_byte_is_never_run() {
    let storage = memory::open();
    let blob = send_large(&storage).await;
    let stored = storage.blobs().get_blob(&blob, 1_000_000).await.unwrap().data;
    let forged = String::from_utf8(stored.to_vec()).unwrap().replacen("xx", "xy", 1);
    storage.blobs().put_blob(&blob, forged.into(), jobqueue::storage::PutBlob::new()).await.unwrap();
    let (log, reasons) = refused(&storage).await;
    assert_eq!(log, vec!["dead_lettered".to_owned()]);
    assert_eq!(reasons, vec!["payload_corrupt".to_owned()]);
}

// F101, F102, F108
#[tokio::test(start_paused = true)]
async fn external_references_are_refused_without_a_request() {
    let faulty = Faulty::new(&memory::open());
    let storage = faulty.storage();
    let blob = send_large(&storage).await;
    let queues = storage.queues();
    let name = "tasks".parse().unwrap();
    let text = queues.peek(&name, 1).await.unwrap().remove(0).text.unwrap();
    queues.clear(&name).await.unwrap();
    let good = blob.name().to_owned();
    let other = good.replace("/tasks/", "/other/");
    let bad = [
        "http://169.254.169.254/latest/meta-data",
        "https://account.blob.core.windows.net/c/b?sig=x",
        "../../etc/passwd",
        "%2e%2e/tasks/x",
        "20260101//tasks",
        "/20260101/tasks/a",
        &format!("{good}?sig=abc"),
        &format!("{good}#x"),
        &good.to_uppercase(),
        &"a".repeat(1_025),
        &other,
    ];
    for reference in bad {
        queues.put(&name, PutMessage::new(text.replace(&good, reference))).await.unwrap();
    }
    let (log, reasons) = refused(&storage).await;
    assert_eq!(log, vec!["dead_lettered"; bad.len()]);
    assert_eq!(reasons, vec!["bad_reference"; bad.len()]);
    assert_eq!(faulty.calls_of(Operation::GetBlob), 0);
}

// F110
#[tokio::test(start_paused = true)]
async fn worker_waits_for_a_deleted_queue_to_return() {
    let faulty = Faulty::new(&memory::open());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    // As on Azure: after the deletion the name is not free for a while, then it can be made again.
    let all = [Operation::CreateQueue, Operation::Get, Operation::Put, Operation::QueueMetadata];
    let operator = faulty.clone();
    let deletes = async move {
        after(10).await;
        let _ = queue.send(&task("deleted")).delay(Duration::from_secs(60)).await.unwrap();
        operator.storage().queues().delete_queue(queue.name()).await.unwrap();
        for operation in all {
            operator.plan_always(operation, Fault::Refuse(StoreErrorKind::QueueBeingDeleted));
        }
        assert!(queue.send(&task("rejected")).await.unwrap_err().is_rejected());
        after(45).await;
        operator.heal();
        assert!(queue.send(&task("without a queue")).await.unwrap_err().is_rejected());
        let gets = operator.calls_of(Operation::Get);
        after(60).await;
        assert!(
            operator.calls_of(Operation::Get) - gets < 60,
            "a queue that is missing is asked in a hot loop"
        );
        let made_again = operator.storage().queue::<Task>().await.unwrap();
        let _ = made_again.send(&task("again")).await.unwrap();
        after(120).await;
        // Handles of before serve the new queue.
        let _ = queue.send(&task("old handle")).await.unwrap();
        after(60).await;
        assert!(made_again.is_empty().await.unwrap());
    };
    let names = Log::default();
    let sink = Arc::clone(&names);
    let handler = move |task: Task| {
        sink.lock().unwrap().push(task.name);
        async { Ok::<(), JobError>(()) }
    };
    let _ = worker(&faulty.storage()).handle(handler).build().unwrap().run_until(deletes).await.unwrap();
    assert_eq!(*names.lock().unwrap(), ["again", "old handle"]);
}

// P1
#[tokio::test(start_paused = true)]
async fn paused_queue_starts_nothing_when_a_slot_becomes_free() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for name in ["long", "next", "third"] {
        let _ = queue.send(&task(name)).await.unwrap();
    }
    let runs: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = Arc::clone(&runs);
    let handler = move |task: Task| {
        sink.lock().unwrap().push(task.name);
        async {
            after(600).await;
            Ok::<(), JobError>(())
        }
    };
    let pausing = storage.clone();
    let pause = async {
        after(60).await;
        let metadata = Metadata::new().with("paused", "true");
        pausing.queues().set_queue_metadata(queue.name(), &metadata).await.unwrap();
    };
    let worker = worker(&storage).concurrency(1).handle(handler).build().unwrap();
    let ((), report) = tokio::join!(pause, worker.run_until(after(3_000)));
    let _ = report.unwrap();
    assert_eq!(*runs.lock().unwrap(), ["long"], "nine minutes after the pause");
}
