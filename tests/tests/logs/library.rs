//! The content of logs, and the secrets that never occur in them: I20, F92, F114.

use std::time::Duration;

use jobqueue::batch::{BatchSweepOptions, sweep_batches};
use jobqueue::storage::{
    BlobName, ContainerName, GetMessages, Operation, PutBlob, PutMessage, StoreErrorKind,
};
use jobqueue::worker::{CircuitBreaker, QueueLimits};
use jobqueue::{Context, JobError, JobInfo, QueueMessage, SendOptions, Storage, memory};
use jobqueue_test_support::postgres::Postgres;
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, worker};
use jobqueue_tests::log;
use serde::{Deserialize, Serialize};

const SECRET: &str = "s3cret-freight";

/// Runs a worker with success, failure, checkpoint, rejection, an unreadable message and a large payload.
/// Returns the receipts.
async fn run(storage: &Storage) {
    let queue = storage.queue::<Task>().await.unwrap();
    let large = format!("{SECRET}{}", "x".repeat(70_000));
    for (name, data) in
        [("good", SECRET), ("bad", SECRET), ("large", large.as_str()), ("no\n\u{1b}[31mFAKE log", SECRET)]
    {
        let options = SendOptions::new().id(format!("id\nERROR forged by {name}"));
        let _ = queue.send(&Task { name: name.into(), data: data.into() }).with(options).await.unwrap();
    }
    let rubbish = PutMessage::new(format!("rubbish {SECRET}"));
    storage.queues().put(&"tasks".parse().unwrap(), rubbish).await.unwrap();
    let handler = |task: Task, ctx: Context| async move {
        ctx.checkpoint(&format!("{SECRET} progress")).await?;
        match task.name.as_str() {
            "bad" if ctx.info().attempt < 2 => Err(JobError::retry("fails\n\u{1b}[31mERROR forged line")),
            "bad" => Err(JobError::dead_letter("no\r\nERROR forged line")),
            _ => Ok(()),
        }
    };
    let _ = worker(storage).handle(handler).build().unwrap().run_until(after(90)).await.unwrap();
}

fn check(log: &str) {
    assert!(log.contains("dead-lettered"), "the log is on");
    assert!(!log.contains(SECRET), "a payload or checkpoint is in the log");
    assert!(!log.contains("\u{1b}["), "an escape sequence got through");
    assert!(
        !log.lines().any(|line| line.starts_with("ERROR forged") || line.starts_with("FAKE")),
        "a line was forged"
    );
}

#[tokio::test(start_paused = true)]
async fn a_log_tells_that_a_worker_started_and_that_an_attempt_failed() {
    let log = log::record();
    let storage = memory::open();
    let task = Task { name: "a".into(), data: String::new() };
    let _ = storage.queue::<Task>().await.unwrap().send(&task).await.unwrap();
    let fail_once = |_: Task, info: JobInfo| async move {
        if info.attempt == 1 { Err(JobError::retry("the till is closed")) } else { Ok(()) }
    };
    let breaker = CircuitBreaker::new().failures(1).jobs(1);
    let worker = worker(&storage).circuit_breaker(breaker).handle(fail_once).build().unwrap();
    let _ = worker.run_until(after(60)).await.unwrap();
    let log = log.text();
    let line = |text: &str| log.lines().find(|line| line.contains(text)).unwrap_or_default();
    // At most one digit after the point: no nanoseconds.
    let wait = line("attempt failed").split(" wait=").nth(1).and_then(|rest| rest.split(' ').next());
    let digits = wait.and_then(|wait| wait.split('.').nth(1)).unwrap_or_else(|| panic!("{log}"));
    assert_eq!(digits.chars().filter(char::is_ascii_digit).count(), 1, "{log}");
    for (line, parts) in [
        (line("worker started"), ["INFO", r#"queues=["tasks"]"#].as_slice()),
        (line("attempt failed"), &["WARN", "queue=tasks", "kind=task", "attempt=1", "the till is closed"]),
        (line("the circuit opens"), &["WARN", "queue=tasks", "retry_in="]),
        (line("the circuit closes"), &["INFO", "queue=tasks"]),
    ] {
        for part in parts {
            assert!(line.contains(part), "{part}: {log}");
        }
    }
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "tasks", kind = "task.misspelt")]
struct Misspelt {}

// round 31, newcomer a
#[tokio::test(start_paused = true)]
async fn message_that_no_handler_reads_is_warned_of_once_an_hour() {
    let log = log::record();
    let storage = memory::open();
    let queue = storage.queue::<Misspelt>().await.unwrap();
    let sent = queue.send_all((0..2).map(|_| Misspelt {})).await.unwrap();
    assert!(sent.iter().all(Result::is_ok));
    let worker = worker(&storage).handle(|_: Task| async { Ok::<_, JobError>(()) }).build().unwrap();
    let _ = worker.run_until(after(2 * 3_600 - 300)).await.unwrap();
    let log = log.text();
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("no handler here can read it")).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    for part in ["WARN", "queue=tasks", "kind=task.misspelt", "unknown_kind"] {
        assert!(warnings[0].contains(part), "{part}: {warnings:?}");
    }
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "nights", kind = "night")]
struct Night {}

// round 31, newcomer a: the job of an operator's trigger, and then the one of the night.
#[tokio::test(start_paused = true)]
async fn batch_that_another_job_has_sealed_is_logged() {
    let log = log::record();
    let storage = in_memory();
    let nights = storage.queue::<Night>().await.unwrap();
    for lines in 0..2 {
        let night = |_: Night, ctx: Context| async move {
            let mut batch = ctx.batch("settlement-20785").await?;
            batch.send_all([Task { name: "a".into(), data: String::new() }]).await?;
            batch.then(&Task { name: "end".into(), data: String::new() }).await?;
            Ok::<_, JobError>(())
        };
        let done = |_: Task| async { Ok::<_, JobError>(()) };
        let _ = nights.send(&Night {}).await.unwrap();
        let worker = worker(&storage).handle(night).handle(done).build().unwrap();
        let report = worker.run_until(after(60)).await.unwrap();
        assert_eq!(report.completed, if lines == 0 { 3 } else { 1 }, "{report:?}");
        let log = log.text();
        let told = log.lines().filter(|line| line.contains("the batch was sealed before by another job"));
        assert_eq!(told.filter(|line| line.contains("INFO")).count(), lines);
    }
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "tasks", kind = "task.spelt")]
struct Spelt {}

// newcomers 33, b 2: once for each 100 children.
#[tokio::test(start_paused = true)]
async fn children_with_another_form_are_warned_of_once() {
    let (log, storage) = (log::record(), in_memory());
    storage.batch("import").await.unwrap().send_all((0..250).map(|_| Misspelt {})).await.unwrap();
    storage.batch("import").await.unwrap().send_all((0..250).map(|_| Spelt {})).await.unwrap();
    let log = log.text();
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("children have another form")).collect();
    assert!(matches!(warnings[..], [line] if line.contains("WARN")), "{log}");
}

#[tokio::test(start_paused = true)]
async fn refused_record_of_a_worker_is_warned_of_once() {
    let log = log::record();
    let faulty = Faulty::new(&in_memory());
    faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unauthorized));
    let builder = worker(&faulty.storage()).presence(Duration::from_secs(15));
    let worker = builder.handle(|_: Task| async { Ok::<_, JobError>(()) }).build().unwrap();
    let _ = worker.run_until(after(60)).await.unwrap();
    let log = log.text();
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("no tool shows this worker")).collect();
    assert!(matches!(warnings[..], [line] if line.contains("WARN")), "{log}");
}

// F70
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_file_in_memory_is_warned_of_and_one_on_a_disk_is_not() {
    let log = log::record();
    let memory = tempfile::tempdir_in("/dev/shm").expect("Linux has a file system in memory there");
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (folder, warned) in [(disk, false), (memory, true)] {
        let path = format!("sqlite:{}", folder.path().join("jobs.db").display());
        let _ = Storage::connect(&path).await.unwrap();
        let log = log.text();
        let warning = log.lines().find(|line| line.contains("which a restart of the machine erases"));
        assert_eq!(warning.is_some_and(|line| line.contains("WARN")), warned, "{log}");
    }
}

/// The declaration of the table is changed below its rows, as damage would change the rows.
#[tokio::test]
async fn damaged_table_of_the_application_is_warned_of_without_its_rows() {
    let log = log::record();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("jobs.db");
    let address = format!("sqlite:{}", path.display());
    let _ = Storage::connect(&address).await.unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    let damage = format!(
        "CREATE TABLE own (a TEXT, b TEXT); INSERT INTO own VALUES (NULL, '{SECRET}');
        PRAGMA writable_schema = ON;
        UPDATE sqlite_schema SET sql = 'CREATE TABLE own (a TEXT NOT NULL, b TEXT)' WHERE name = 'own';
        PRAGMA writable_schema = RESET"
    );
    connection.execute_batch(&damage).unwrap();
    drop(connection);
    let _ = Storage::connect(&address).await.unwrap();
    let log = log.text();
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("a table of the application")).collect();
    assert!(matches!(warnings[..], [line] if line.contains("WARN")), "{log}");
    assert!(warnings[0].contains("NULL value in own.a"), "{log}");
    assert!(!log.contains(SECRET), "a row is in the log");
}

/// The session of an operator may have another value.
#[tokio::test]
async fn connection_whose_commits_do_not_wait_for_the_disk_is_warned_of() {
    let log = log::record();
    let server = Postgres::shared().connection_string();
    for (value, warned) in [("on", false), ("off", true)] {
        let address = format!("{server}&options=-c%20synchronous_commit%3D{value}");
        let _ = Storage::connect(&address).await.unwrap();
        let log = log.text();
        let warning =
            log.lines().find(|line| line.contains("`synchronous_commit` is off for this connection"));
        assert_eq!(warning.is_some_and(|line| line.contains("WARN")), warned, "{value}");
    }
}

// I20, F114
#[tokio::test(start_paused = true)]
async fn trace_log_holds_no_payload_and_no_forged_line() {
    let log = log::record();
    run(&memory::open()).await;
    check(&log.text());
}

// I20, F114
#[tokio::test]
async fn receipts_are_shown_nowhere() {
    let log = log::record();
    let folder = tempfile::tempdir().unwrap();
    let storage =
        Storage::connect(&format!("sqlite:{}", folder.path().join("jobs.db").display())).await.unwrap();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&Task { name: "a".into(), data: SECRET.into() }).await.unwrap();
    let get = GetMessages::new(1, Duration::from_secs(1));
    let received = storage.queues().get(&"tasks".parse().unwrap(), get).await.unwrap();
    let receipt = received.messages[0].message.receipt.clone();
    tracing::info!(?received, ?receipt, "shown on purpose");
    let shown = format!("{received:?} {receipt:?} {storage:?} {queue:?}");
    assert!(!shown.contains(receipt.expose()) && !shown.contains(SECRET), "{shown}");
    let log = log.text();
    assert!(log.contains("PopReceipt(…)") && !log.contains(SECRET) && !log.contains(receipt.expose()));
}

// review 7, X9
#[tokio::test(start_paused = true)]
async fn batch_that_begins_again_while_a_sweep_removes_it_is_warned_of() {
    let log = log::record();
    let storage = in_memory();
    let container = ContainerName::new("jobqueue-batches").unwrap();
    let put = async |name: String| {
        let blob = BlobName::new(container.clone(), name).unwrap();
        storage.blobs().put_blob(&blob, "0".into(), PutBlob::new()).await.unwrap();
    };
    storage.blobs().create_container(&container).await.unwrap();
    // More than a page.
    for child in 0..5_010 {
        put(format!("left/names/{child:08}")).await;
    }
    after(4 * 86_400).await;
    let faulty = Faulty::new(&storage);
    let begins_again = async {
        while faulty.calls_of(Operation::DeleteBlob) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        put("left/token".to_owned()).await;
    };
    let (swept, options) =
        (faulty.storage(), BatchSweepOptions::new().abandoned(Duration::from_secs(86_400)));
    let (removed, ()) = tokio::join!(sweep_batches(&swept, options), begins_again);
    let text = log.text();
    assert_eq!(removed.unwrap(), 0);
    let warning = text.lines().find(|line| line.contains("was resumed during its sweep")).unwrap_or_default();
    assert!(warning.contains("WARN") && warning.contains("batch=left"), "{warning}");
}

/// Soon the lease ends, and the job runs a second time.
#[tokio::test(start_paused = true)]
async fn renewal_that_is_refused_again_and_again_is_a_warning() {
    let log = log::record();
    // Quiet: for refusals of which it is certain that they changed nothing.
    let faulty = Faulty::quiet(&in_memory());
    let storage = faulty.storage();
    let task = Task { name: "a".into(), data: String::new() };
    let _ = storage.queue::<Task>().await.unwrap().send(&task).await.unwrap();
    let wait = async |_: Task| {
        tokio::time::sleep(Duration::from_secs(25)).await;
        Ok::<_, JobError>(())
    };
    faulty.plan_always(Operation::Update, Fault::Refuse(StoreErrorKind::Throttled));
    let _ = worker(&storage).handle(wait).build().unwrap().run_until(after(60)).await.unwrap();
    let log = log.text();
    let is_warning =
        |line: &str| line.contains("WARN") && line.contains("the storage refused to renew a lease");
    assert!(log.lines().any(is_warning), "{log}");
    assert!(!log.contains("leases are kept"), "{log}");
}

// round 31, newcomer b 4: it named no job, and called an outage a refusal.
#[tokio::test(start_paused = true)]
async fn settlement_that_fails_names_its_job_and_what_follows() {
    let log = log::record();
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let task = Task { name: "a".into(), data: String::new() };
    let _ = storage.queue::<Task>().await.unwrap().send(&task).id("d-281").await.unwrap();
    let fail = async |_: Task| Err::<(), _>(JobError::retry("the till is closed"));
    faulty.plan_always(Operation::Update, Fault::Refuse(StoreErrorKind::Unavailable));
    let _ = worker(&storage).handle(fail).build().unwrap().run_until(after(20)).await.unwrap();
    let log = log.text();
    let line = log.lines().find(|line| line.contains("settling the delivery failed")).unwrap_or_default();
    assert!(line.contains("WARN") && line.contains("job=d-281"), "{log}");
    assert!(line.contains("is delivered again when its lease ends"), "{line}");
    assert!(line.contains("the change was not made") && !line.contains("refused"), "{line}");
}

// round 31, newcomer c 4: only the report at the end of the worker had the lost lease.
#[tokio::test(start_paused = true)]
async fn lost_lease_of_a_running_handler_is_warned_of_with_its_job() {
    let log = log::record();
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let task = Task { name: "a".into(), data: String::new() };
    let _ = storage.queue::<Task>().await.unwrap().send(&task).id("long-job").await.unwrap();
    faulty.plan_always(Operation::Update, Fault::Refuse(StoreErrorKind::Unavailable));
    let endless = async |_: Task| std::future::pending::<Result<(), JobError>>().await;
    let running = worker(&storage).handle(endless).build().unwrap().run_until(after(60));
    let healing = async {
        after(35).await;
        faulty.heal();
    };
    // The second delivery is put back by the shutdown.
    let (report, ()) = tokio::join!(running, healing);
    let report = report.unwrap();
    assert_eq!((report.lease_lost, report.released), (1, 1), "{report:?}");
    let text = log.text();
    let warnings: Vec<_> =
        text.lines().filter(|line| line.contains("lease lost; the job may run again")).collect();
    let [warning] = warnings[..] else { panic!("{warnings:?}") };
    for part in ["WARN", "queue=tasks", "job=long-job", "attempt=1", "cause=expired"] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
}

// round 31, newcomer c 5
#[tokio::test(start_paused = true)]
async fn limit_that_a_queue_cannot_reach_is_warned_of() {
    let log = log::record();
    let built = |queues: usize, limit: usize| {
        let limits = QueueLimits::new().concurrency(limit);
        let mut builder = worker(&in_memory()).concurrency(8).limit_queue("tasks-0", limits);
        for queue in 0..queues {
            builder = builder.handle_on(format!("tasks-{queue}"), async |_: Task| Ok::<_, JobError>(()));
        }
        drop(builder.build().unwrap());
    };
    let warnings = || {
        let text = log.text();
        let lines = text.lines().filter(|line| line.contains("the limit of the queue is above"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    built(6, 3);
    built(1, 8);
    assert_eq!(warnings(), Vec::<String>::new());
    // Six of the eight slots are reserved, and two are common.
    built(6, 4);
    built(1, 9);
    let warnings = warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    for part in ["WARN", "queue=tasks-0", "limit=4", "slots=3", "concurrency=8"] {
        assert!(warnings[0].contains(part), "{part}: {warnings:?}");
    }
    assert!(warnings[1].contains("limit=9") && warnings[1].contains("slots=8"), "{warnings:?}");
}
