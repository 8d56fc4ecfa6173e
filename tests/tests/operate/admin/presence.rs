//! Worker presence: who is there, what they run and how far it is; a record costs what is said and holds
//! nothing up.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jobqueue::clock::Clock;
use jobqueue::settings::SettingOverrides;
use jobqueue::storage::{BlobName, ContainerName, Operation, PutBlob, StoreErrorKind};
use jobqueue::{Context, JobError, Runtime, Storage, WorkerBuilder};
use jobqueue_admin::{AccessLevel, Admin, DeadLetterFilter, JobPlace, JobReference, PauseOptions};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, clock, in_memory, task, worker};
use tokio::sync::Notify;
use tokio::time::sleep;

const EVERY: Duration = Duration::from_secs(15);

pub fn operator(storage: &Storage) -> Admin {
    Admin::builder(storage.clone()).access(AccessLevel::Operate).operator("ada").build()
}

pub fn present(storage: &Storage) -> WorkerBuilder {
    worker(storage).presence(EVERY).name("the worker")
}

pub(super) async fn send(storage: &Storage, names: &[&str]) {
    let queue = storage.queue::<Task>().await.unwrap();
    for name in names {
        let _ = queue.send(&task(*name)).id(*name).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn record_shows_running_jobs_with_their_progress() {
    let storage = in_memory();
    send(&storage, &["long"]).await;
    let handler = async |_: Task, ctx: Context| {
        for row in 0..10 {
            ctx.progress(row, 10, format!("row {row}\n\u{7}{}", "x".repeat(1000)));
            sleep(Duration::from_secs(10)).await;
        }
        Ok::<_, JobError>(())
    };
    let running = present(&storage).concurrency(7).handle(handler).build().unwrap().run_until(after(200));
    let watching = async {
        let admin = operator(&storage);
        sleep(Duration::from_secs(46)).await;
        let [worker] = &admin.workers().await.unwrap()[..] else { panic!("one worker") };
        let record = &worker.record;
        assert_eq!(record.name.as_str(), "the worker");
        assert_eq!(record.slots, 7);
        assert_eq!(record.pid, std::process::id());
        assert_eq!(record.queues[0].name.as_str(), "tasks");
        assert_eq!(&record.queues[0].kinds[..], &["task".to_owned()][..]);
        let [job] = &record.running[..] else { panic!("one job: {record:?}") };
        assert_eq!(job.id.as_str(), "long");
        assert_eq!(job.attempt, 1);
        assert_eq!(job.running_seconds, 45.0);
        let progress = job.progress.as_ref().unwrap();
        assert_eq!(progress.done, 4);
        assert_eq!(progress.total, 10);
        assert!(progress.text.starts_with("row 4 ") && progress.text.chars().count() <= 200);
        let json = serde_json::to_value(worker).unwrap();
        assert_eq!(json["running"][0]["progress"]["done"].as_u64(), Some(4));
        assert_eq!(json["stale"].as_bool(), Some(false));
        sleep(Duration::from_secs(90)).await;
        let [worker] = &admin.workers().await.unwrap()[..] else { panic!("one worker") };
        let counters = &worker.record.counters[0];
        assert!(worker.record.running.is_empty());
        assert_eq!(counters.completed, 1);
        assert_eq!(counters.run_seconds, 100.0);
        assert_eq!(counters.run_times.iter().sum::<u64>(), 1);
    };
    let (report, ()) = tokio::join!(running, watching);
    assert_eq!(report.unwrap().completed, 1);
    assert!(
        operator(&storage).all_workers().await.unwrap().is_empty(),
        "a worker that ends removes its record"
    );
}

#[tokio::test(start_paused = true)]
async fn killed_worker_disappears_within_three_intervals() {
    let storage = in_memory();
    send(&storage, &["stuck"]).await;
    let admin = operator(&storage);
    let handler = async |_: Task| std::future::pending::<Result<(), JobError>>().await;
    let mut running = Box::pin(present(&storage).handle(handler).build().unwrap().run_until(after(100_000)));
    tokio::select! {
        _ = &mut running => panic!("it runs"),
        () = sleep(Duration::from_secs(20)) => {}
    }
    assert_eq!(admin.workers().await.unwrap().len(), 1);
    drop(running);
    sleep(EVERY * 3).await;
    assert!(admin.workers().await.unwrap().is_empty());
    let [gone] = &admin.all_workers().await.unwrap()[..] else { panic!("its record is stale") };
    assert!(gone.stale && gone.record.running.len() == 1);
    // The next worker removes what was left for a day.
    sleep(Duration::from_secs(86_400)).await;
    let handler = async |_: Task| Ok::<_, JobError>(());
    let _ = present(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    assert!(admin.all_workers().await.unwrap().is_empty());
}

// K40
#[tokio::test(start_paused = true)]
async fn a_cancellation_is_no_sign_of_life_of_a_killed_worker() {
    let storage = in_memory();
    send(&storage, &["stuck"]).await;
    let admin = operator(&storage);
    let handler = async |_: Task| std::future::pending::<Result<(), JobError>>().await;
    let mut running = Box::pin(present(&storage).handle(handler).build().unwrap().run_until(after(100_000)));
    let cancel = async || admin.cancel(&JobReference::new("tasks", "other")).await.unwrap().workers;
    let age = async || admin.all_workers().await.unwrap()[0].age_seconds;
    tokio::select! {
        _ = &mut running => panic!("it runs"),
        () = async {
            sleep(Duration::from_secs(20)).await;
            assert_eq!(cancel().await, 1);
            assert!((4.0..=6.0).contains(&age().await), "{}", age().await);
            sleep(EVERY).await;
            assert!(age().await < 6.0, "its next record is one: {}", age().await);
        } => {}
    }
    drop(running);
    for seconds in [20.0, 35.0] {
        sleep(EVERY).await;
        assert_eq!(cancel().await, 1);
        assert!((age().await - seconds).abs() < 1.0, "{}", age().await);
    }
    sleep(EVERY).await;
    assert_eq!(cancel().await, 0);
    assert!(admin.workers().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn draining_is_shown_at_once() {
    let storage = in_memory();
    send(&storage, &["slow"]).await;
    let handler = async |_: Task| {
        sleep(Duration::from_secs(20)).await;
        Ok::<_, JobError>(())
    };
    let running = present(&storage).handle(handler).build().unwrap().run_until(after(5));
    let watching = async {
        sleep(Duration::from_secs(6)).await;
        let [worker] = &operator(&storage).workers().await.unwrap()[..] else { panic!("one worker") };
        assert!(worker.record.draining && worker.record.running.len() == 1);
    };
    let (report, ()) = tokio::join!(running, watching);
    assert_eq!(report.unwrap().completed, 1);
}

#[tokio::test(start_paused = true)]
async fn record_costs_one_write_an_interval_and_reads_nothing() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    send(&storage, &[]).await;
    let handler = async |_: Task| Ok::<_, JobError>(());
    let _ = present(&storage).handle(handler).build().unwrap().run_until(after(24 * 3600)).await.unwrap();
    let calls = |operation| faulty.calls_of(operation);
    // The first write finds no container.
    assert!((5_760..=5_763).contains(&calls(Operation::PutBlob)), "{}", calls(Operation::PutBlob));
    assert_eq!(calls(Operation::GetBlob), 0);
    assert_eq!(calls(Operation::BlobProperties), 0);
    assert!(calls(Operation::ListBlobs) <= 10, "{}", calls(Operation::ListBlobs));
}

#[tokio::test(start_paused = true)]
async fn worker_without_record_asks_for_nothing() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    send(&storage, &["one"]).await;
    let handler = async |_: Task, ctx: Context| {
        ctx.progress(1, 2, "nobody sees it");
        Ok::<_, JobError>(())
    };
    let worker = worker(&storage).presence(None).handle(handler).build().unwrap();
    let listed = faulty.calls_of(Operation::ListBlobs);
    assert_eq!(worker.run_until(after(3600)).await.unwrap().completed, 1);
    assert_eq!(faulty.calls_of(Operation::PutBlob), 0);
    assert_eq!(faulty.calls_of(Operation::ListBlobs), listed);
}

#[tokio::test(start_paused = true)]
async fn no_job_notices_that_the_record_cannot_be_written() {
    for fault in [
        Fault::Refuse(StoreErrorKind::Unauthorized),
        Fault::DropAnswer(StoreErrorKind::Timeout),
        Fault::Hang,
        Fault::Throttle(Duration::from_secs(60)),
    ] {
        let faulty = Faulty::new(&in_memory());
        let storage = faulty.storage();
        send(&storage, &["one", "two"]).await;
        for operation in
            [Operation::PutBlob, Operation::ListBlobs, Operation::DeleteBlob, Operation::CreateContainer]
        {
            faulty.plan_always(operation, fault);
        }
        let done = Arc::new(Notify::new());
        let told = Arc::clone(&done);
        let handler = move |_: Task| {
            told.notify_one();
            async { Ok::<_, JobError>(()) }
        };
        let report = present(&storage).handle(handler).build().unwrap().run_until(after(120)).await.unwrap();
        assert_eq!(report.completed, 2, "{fault:?}");
    }
}

/// The clock of an operator who is ahead by so many seconds, or behind.
#[derive(Debug)]
pub struct Wrong(pub i64);

impl Clock for Wrong {
    fn now(&self) -> SystemTime {
        let by = Duration::from_secs(self.0.unsigned_abs());
        if self.0 > 0 { clock().now() + by } else { clock().now() - by }
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_clock_of_an_operator_makes_no_dead_letter_old() {
    let storage = in_memory();
    send(&storage, &["one"]).await;
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("never"));
    let _ = present(&storage).handle(handler).build().unwrap().run_until(after(20)).await.unwrap();
    let ahead = storage.clone().with_runtime(Runtime::new().with_clock(Arc::new(Wrong(7_200))));
    let (admin, hour) = (operator(&ahead), Duration::from_secs(3_600));
    let (old, young) = (DeadLetterFilter::new().older_than(hour), DeadLetterFilter::new().younger_than(hour));
    assert_eq!(admin.dead_letters("tasks", &old).await.unwrap().matching, 0);
    assert_eq!(admin.dead_letters("tasks", &young).await.unwrap().matching, 1);
    assert_eq!(admin.purge("tasks").filter(old).run().await.unwrap().count, 0);
}

#[tokio::test(start_paused = true)]
async fn pause_of_an_operator_with_a_wrong_clock_has_its_length() {
    let storage = in_memory();
    // The storage tells its time with the list of the records, once there was a worker.
    let handler = async |_: Task| Ok::<_, JobError>(());
    let _ = present(&storage).handle(handler).build().unwrap().run_until(after(1)).await.unwrap();
    for by in [-7_200, 7_200] {
        let wrong = storage.clone().with_runtime(Runtime::new().with_clock(Arc::new(Wrong(by))));
        let options = PauseOptions::new().length(Duration::from_secs(3_600)).replacing(true);
        assert!(operator(&wrong).pause_with("tasks", options).await.unwrap());
        let pause = operator(&storage).queue("tasks").await.unwrap().pause.unwrap();
        let left = pause.until.unwrap().duration_since(clock().now()).unwrap();
        assert!((3_500..=3_600).contains(&left.as_secs()), "{left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_clock_makes_no_dead_letter_old_where_no_worker_has_a_record() {
    let storage = in_memory();
    send(&storage, &["one"]).await;
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("never"));
    let _ = worker(&storage).presence(None).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    let ahead = storage.clone().with_runtime(Runtime::new().with_clock(Arc::new(Wrong(7_200))));
    let (admin, hour) = (operator(&ahead), Duration::from_secs(3_600));
    let (old, young) = (DeadLetterFilter::new().older_than(hour), DeadLetterFilter::new().younger_than(hour));
    assert_eq!(admin.search_dead_letters("tasks", &young, 10).await.unwrap().matching, 1);
    assert_eq!(admin.purge("tasks").filter(old.clone()).dry_run(true).run().await.unwrap().count, 0);
    assert_eq!(admin.purge("tasks").filter(old).run().await.unwrap().count, 0);
}

#[tokio::test(start_paused = true)]
async fn operators_with_a_wrong_clock_see_who_is_there() {
    let storage = in_memory();
    send(&storage, &["stuck"]).await;
    let handler = async |_: Task| std::future::pending::<Result<(), JobError>>().await;
    let mut running = Box::pin(present(&storage).handle(handler).build().unwrap().run_until(after(100_000)));
    tokio::select! {
        _ = &mut running => panic!("it runs"),
        () = sleep(Duration::from_secs(20)) => {}
    }
    let with = |seconds, access: AccessLevel| {
        Admin::builder(storage.clone().with_runtime(Runtime::new().with_clock(Arc::new(Wrong(seconds)))))
            .access(access)
            .build()
    };
    let operators = [-3_600, -120, 120, 3_600].map(|seconds| with(seconds, AccessLevel::Operate));
    let readers = [-3_600, -120, 120, 3_600].map(|seconds| with(seconds, AccessLevel::ReadOnly));
    for admin in operators.iter().chain(&readers) {
        let [worker] = &admin.workers().await.unwrap()[..] else { panic!("the worker is there") };
        assert!((4.0..=6.0).contains(&worker.age_seconds), "{}", worker.age_seconds);
    }
    for admin in &operators {
        assert_eq!(admin.cancel(&JobReference::new("tasks", "other")).await.unwrap().workers, 1);
    }
    drop(running);
    sleep(EVERY * 4).await;
    for admin in operators.iter().chain(&readers) {
        assert!(admin.workers().await.unwrap().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn viewers_with_a_wrong_clock_see_delays_by_the_storages() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let day = Duration::from_secs(86_400);
    // The storage tells its time with the list of the records, once there was a worker.
    let handler = async |_: Task| Ok::<_, JobError>(());
    let _ = present(&storage).handle(handler).build().unwrap().run_until(after(1)).await.unwrap();
    // Longer than the storage itself can hide a message.
    let _ = queue.send(&task("late")).id("late").delay(day * 10).await.unwrap();
    sleep(day * 7 + Duration::from_secs(1)).await;
    for days in [-5, 5] {
        let admin = Admin::builder(
            storage.clone().with_runtime(Runtime::new().with_clock(Arc::new(Wrong(days * 86_400)))),
        )
        .build();
        let found = admin.explain(&JobReference::new("tasks", "late")).await.unwrap();
        assert!(found.reasons.iter().any(|reason| reason.code == "delayed_until"), "{days}: {found:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn run_of_a_dead_worker_is_shown_for_the_length_of_its_own_lease() {
    let storage = in_memory();
    send(&storage, &["stuck"]).await;
    let mut long = SettingOverrides::default();
    long.timeout = Some(Duration::from_secs(600));
    let handler = async |_: Task| std::future::pending::<Result<(), JobError>>().await;
    let worker = present(&storage).overrides(long).handle(handler).build().unwrap();
    let mut running = Box::pin(worker.run_until(after(100_000)));
    tokio::select! {
        _ = &mut running => panic!("it runs"),
        () = sleep(Duration::from_secs(20)) => {}
    }
    drop(running);
    let (admin, job) = (operator(&storage), JobReference::new("tasks", "stuck"));
    // Longer than the queue's default lease of 30 seconds.
    sleep(Duration::from_secs(300)).await;
    for seconds in [-3_600, 0, 3_600] {
        let admin =
            Admin::builder(storage.clone().with_runtime(Runtime::new().with_clock(Arc::new(Wrong(seconds)))))
                .build();
        let found = admin.explain(&job).await.unwrap();
        assert_eq!(found.place, JobPlace::Running);
        let gone = found.reasons.iter().find(|reason| reason.code == "worker_gone").unwrap();
        assert!(gone.text.contains("has written no record for 305 s"), "{gone:?}");
        assert!(gone.text.ends_with("when its lease ends, in 310 s at the latest"), "{gone:?}");
    }
    sleep(Duration::from_secs(330)).await;
    assert_eq!(admin.explain(&job).await.unwrap().place, JobPlace::Waiting);
}

/// A worker that may neither write blobs nor read them waits for nothing.
#[tokio::test(start_paused = true)]
async fn worker_without_permission_for_blobs_starts_at_once() {
    let faulty = Faulty::new(&in_memory());
    send(&faulty.storage(), &["first"]).await;
    for operation in [Operation::PutBlob, Operation::GetBlob, Operation::ListBlobs] {
        faulty.plan_always(operation, Fault::Refuse(StoreErrorKind::Unauthorized));
    }
    let handler = async |_: Task| Ok::<_, JobError>(());
    let worker = present(&faulty.storage()).handle(handler).build().unwrap();
    assert_eq!(worker.run_until(after(10)).await.unwrap().completed, 1);
}

// R17-6: two workers sweep at once.
#[tokio::test(start_paused = true)]
async fn sweep_passes_over_a_record_that_is_gone() {
    let storage = in_memory();
    let container = ContainerName::new("jobqueue-workers").unwrap();
    let old = ["old-1", "old-2"].map(|name| BlobName::new(container.clone(), name).unwrap());
    storage.blobs().create_container(&container).await.unwrap();
    for blob in &old {
        let _ = storage.blobs().put_blob(blob, "{}".into(), PutBlob::new()).await.unwrap();
    }
    after(25 * 3_600).await;
    let faulty = Faulty::new(&storage);
    faulty.plan(Operation::DeleteBlob, 1, Fault::Refuse(StoreErrorKind::BlobNotFound));
    let handler = async |_: Task| Ok::<_, JobError>(());
    let worker = present(&faulty.storage()).handle(handler).build().unwrap();
    let _ = worker.run_until(after(10)).await.unwrap();
    let left = storage.blobs().blob_properties(&old[1]).await;
    assert_eq!(left.unwrap_err().kind(), StoreErrorKind::BlobNotFound);
}
