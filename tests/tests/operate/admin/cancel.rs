//! Cancelling a job by its id: where it waits, where it runs, and where it ends before the request is read.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use jobqueue::clock::Clock;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Context, JobError, Runtime, SendOptions, Storage, Worker, memory};
use jobqueue_admin::{Admin, Cancellation, DeadLetterFilter, JobPlace, JobReference, RawSend};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, clock, in_memory, task};
use tokio::time::sleep;

use crate::admin::presence::{operator, present};

pub(super) async fn send(storage: &Storage, name: &str, options: SendOptions) -> JobReference {
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task(name)).with(options.id(name)).await.unwrap();
    JobReference::new("tasks", name)
}

/// Returns the reasons and errors of all dead letters.
pub(super) async fn dead(admin: &Admin) -> Vec<(String, String)> {
    let page = admin.dead_letters("tasks", &DeadLetterFilter::new()).await.unwrap();
    let shown = |job: &jobqueue_admin::RawJob| {
        (job.dead.as_ref().unwrap().reason.clone(), job.last_error.clone().unwrap_or_default())
    };
    page.letters.iter().map(shown).collect()
}

/// Runs jobs of ten minutes that stop when their token fires and then return `answer`; cancels `job` after a
/// minute.
pub(super) async fn cancel_running(
    storage: &Storage,
    job: &JobReference,
    answer: fn() -> Result<(), JobError>,
) -> Vec<(String, String)> {
    let admin = operator(storage);
    let handler = move |_: Task, ctx: Context| async move {
        tokio::select! {
            () = ctx.token().cancelled() => answer(),
            () = sleep(Duration::from_secs(600)) => Ok(()),
        }
    };
    let running = present(storage).handle(handler).build().unwrap().run_until(after(300));
    let cancelling = async {
        sleep(Duration::from_secs(62)).await;
        let report = admin.cancel(job).await.unwrap();
        assert_eq!(report.workers, 1);
        assert!(
            matches!(admin.cancellation(job).await.unwrap(), Cancellation::Requested { by, .. } if by == "ada")
        );
        // Its next record, and the grace.
        sleep(Duration::from_secs(18)).await;
        dead(&admin).await
    };
    let (report, letters) = tokio::join!(running, cancelling);
    let _ = report.unwrap();
    letters
}

#[derive(Debug, serde::Serialize, serde::Deserialize, jobqueue::QueueMessage)]
#[message(queue = "tasks", kind = "all_done")]
struct AllDone {}

// Its end could not be recorded at once: the hook of the batch failed.
#[tokio::test(start_paused = true)]
async fn success_within_the_grace_counts_although_a_hook_fails_after_it() {
    let faulty = Arc::new(Faulty::new(&in_memory()));
    let storage = faulty.storage();
    let mut batch = storage.batch("b").await.unwrap();
    batch.send(&task("child")).id("child").await.unwrap();
    batch.then(&AllDone {}).await.unwrap();
    let admin = operator(&storage);
    let runs: Arc<Mutex<u32>> = Arc::default();
    let (counted, outage) = (Arc::clone(&runs), Arc::clone(&faulty));
    let handler = move |_: Task, ctx: Context| {
        *counted.lock().unwrap() += 1;
        let outage = Arc::clone(&outage);
        async move {
            ctx.token().cancelled().await;
            outage.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unavailable));
            Ok::<_, JobError>(())
        }
    };
    let last = async |_: AllDone| Ok::<_, JobError>(());
    let built = present(&storage).circuit_breaker(None).handle(handler).handle(last).build().unwrap();
    let cancelling = async {
        sleep(Duration::from_secs(62)).await;
        let _ = admin.cancel(&JobReference::new("tasks", "child")).await.unwrap();
        sleep(Duration::from_secs(90)).await;
        faulty.heal();
    };
    let (report, ()) = tokio::join!(built.run_until(after(900)), cancelling);
    let report = report.unwrap();
    assert_eq!((report.completed, report.dead_lettered), (2, 0), "{report:?}");
    assert_eq!(*runs.lock().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn running_job_is_told_and_becomes_a_dead_letter() {
    let storage = in_memory();
    let job = send(&storage, "long", SendOptions::new()).await;
    let letters = cancel_running(&storage, &job, || Err(JobError::retry("<stopped> half-way"))).await;
    let [(reason, error)] = &letters[..] else { panic!("{letters:?}") };
    assert_eq!(reason, "cancelled");
    assert_eq!(error, "cancelled by ada; the handler returned: <stopped> half-way");
    assert_eq!(operator(&storage).cancellation(&job).await.unwrap(), Cancellation::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn handler_that_succeeds_all_the_same_has_completed_its_job() {
    let storage = in_memory();
    let job = send(&storage, "long", SendOptions::new()).await;
    assert!(cancel_running(&storage, &job, || Ok(())).await.is_empty());
    assert_eq!(operator(&storage).cancellation(&job).await.unwrap(), Cancellation::Completed);
    assert_eq!(storage.queue::<Task>().await.unwrap().approximate_len().await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn handler_that_ignores_its_token_is_dropped() {
    let storage = in_memory();
    let job = send(&storage, "deaf", SendOptions::new()).await;
    let admin = operator(&storage);
    let handler = async |_: Task| std::future::pending::<Result<(), JobError>>().await;
    let running = present(&storage).handle(handler).build().unwrap().run_until(after(100));
    let cancelling = async {
        sleep(Duration::from_secs(20)).await;
        let _ = admin.cancel(&job).await.unwrap();
    };
    let (report, ()) = tokio::join!(running, cancelling);
    assert_eq!(report.unwrap().dead_lettered, 1);
    assert_eq!(dead(&admin).await, [("cancelled".to_owned(), "cancelled by ada".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn waiting_job_never_runs_and_others_do() {
    let storage = in_memory();
    let admin = operator(&storage);
    let waiting = send(&storage, "waiting", SendOptions::new()).await;
    let delayed = send(&storage, "delayed", SendOptions::new().delay(Duration::from_secs(600))).await;
    let far = send(&storage, "far", SendOptions::new().delay(Duration::from_secs(20 * 86_400))).await;
    let other_sender = send(&storage, "mine", SendOptions::new()).await.with_source("/somebody/else");
    for job in [&waiting, &delayed, &far, &other_sender] {
        assert_eq!(admin.cancel(job).await.unwrap().workers, 0, "nobody is there yet");
    }
    let ran: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = Arc::clone(&ran);
    let handler = move |task: Task| {
        sink.lock().unwrap().push(task.name);
        async { Ok::<_, JobError>(()) }
    };
    let eight_days = after(8 * 86_400);
    let report = present(&storage).handle(handler).build().unwrap().run_until(eight_days).await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(report.dead_lettered, 3);
    assert_eq!(*ran.lock().unwrap(), ["mine"]);
    assert!(dead(&admin).await.iter().all(|(reason, _)| reason == "cancelled"));
}

#[tokio::test(start_paused = true)]
async fn cancelled_job_runs_after_a_redrive() {
    let storage = in_memory();
    let admin = operator(&storage);
    let job = send(&storage, "again", SendOptions::new()).await;
    let _ = admin.cancel(&job).await.unwrap();
    let run = async || {
        let handler = async |_: Task| Ok::<_, JobError>(());
        present(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap()
    };
    assert_eq!(run().await.dead_lettered, 1);
    // Also if nobody could answer, and the request stands.
    let _ = admin.cancel(&job).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(admin.redrive("tasks").filter(DeadLetterFilter::all()).run().await.unwrap().count, 1);
    let found = admin.explain(&job).await.unwrap();
    assert_eq!((found.place, found.cancellation), (JobPlace::Waiting, Cancellation::None));
    assert!(found.reasons.iter().all(|reason| reason.code != "cancel_requested"), "{:?}", found.reasons);
    assert_eq!(run().await.completed, 1);
}

#[tokio::test(start_paused = true)]
async fn request_of_an_earlier_life_is_not_that_of_a_job_that_runs() {
    let storage = in_memory();
    let admin = operator(&storage);
    let job = send(&storage, "again", SendOptions::new()).await;
    let _ = admin.cancel(&job).await.unwrap();
    let cancelled = present(&storage).handle(async |_: Task| Ok::<_, JobError>(())).build().unwrap();
    assert_eq!(cancelled.run_until(after(60)).await.unwrap().dead_lettered, 1);
    let _ = admin.cancel(&job).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(admin.redrive("tasks").filter(DeadLetterFilter::all()).run().await.unwrap().count, 1);
    let handler = async |_: Task| {
        sleep(Duration::from_secs(50)).await;
        Ok::<_, JobError>(())
    };
    let running = present(&storage).handle(handler).build().unwrap().run_until(after(60));
    let looking = async {
        sleep(Duration::from_secs(20)).await;
        admin.explain(&job).await.unwrap()
    };
    let (report, found) = tokio::join!(running, looking);
    assert_eq!(report.unwrap().completed, 1);
    assert_eq!((found.place, found.cancellation), (JobPlace::Running, Cancellation::None));
    assert!(found.run.is_some());
}

// D8
#[tokio::test(start_paused = true)]
async fn answer_of_an_earlier_life_is_not_that_of_a_redriven_job() {
    let storage = in_memory();
    let admin = operator(&storage);
    let job = send(&storage, "again", SendOptions::new()).await;
    let _ = admin.cancel(&job).await.unwrap();
    let handler = async |_: Task| Ok::<_, JobError>(());
    let _ = present(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    assert_eq!(admin.explain(&job).await.unwrap().cancellation, Cancellation::Cancelled);
    sleep(Duration::from_secs(1)).await;
    let _ = admin.redrive("tasks").filter(DeadLetterFilter::all()).run().await.unwrap();
    let found = admin.explain(&job).await.unwrap();
    assert_eq!((found.place, found.cancellation), (JobPlace::Waiting, Cancellation::None));
    // round 34, A6: nor is it that of the end which the job has then.
    let worker = present(&storage).handle(async |_: Task| Err::<(), _>(JobError::dead_letter("no address")));
    let _ = worker.build().unwrap().run_until(after(60)).await.unwrap();
    let found = admin.explain(&job).await.unwrap();
    assert_eq!((found.place, found.cancellation), (JobPlace::Dead, Cancellation::None));
    let _ = admin.redrive("tasks").filter(DeadLetterFilter::all()).run().await.unwrap();
    let worker = present(&storage).history(Duration::from_secs(86_400));
    let worker = worker.handle(async |_: Task| Ok::<_, JobError>(()));
    let _ = worker.build().unwrap().run_until(after(60)).await.unwrap();
    let found = admin.explain(&job).await.unwrap();
    assert_eq!((found.place, found.cancellation), (JobPlace::Ended, Cancellation::None));
}

// D9
#[tokio::test(start_paused = true)]
async fn jobs_of_two_senders_with_one_id_are_cancelled_both() {
    let storage = in_memory();
    let admin = operator(&storage);
    admin.create_queue("tasks").await.unwrap();
    let mut jobs = Vec::new();
    for source in ["/bank", "/shop", "/other"] {
        let job = RawSend::json("task", r#"{"name":"a","data":""}"#).unwrap().id("7").source(source);
        jobs.push(admin.send("tasks", job).await.unwrap());
    }
    for job in &jobs[..2] {
        let _ = admin.cancel(job).await.unwrap();
    }
    let handler = async |_: Task| Ok::<_, JobError>(());
    let report = present(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    assert_eq!((report.completed, report.dead_lettered), (1, 2));
    for job in &jobs[..2] {
        assert_eq!(admin.cancellation(job).await.unwrap(), Cancellation::Cancelled);
    }
    assert_eq!(admin.cancellation(&jobs[2]).await.unwrap(), Cancellation::None);
    let anybody = JobReference::new("tasks", "7");
    assert_eq!(admin.cancellation(&anybody).await.unwrap(), Cancellation::Cancelled);
}

// K48
#[tokio::test(start_paused = true)]
async fn answer_that_is_written_during_a_look_is_seen() {
    let storage = in_memory();
    let job = send(&storage, "one", SendOptions::new()).await.with_source("/s");
    let _ = operator(&storage).cancel(&JobReference::new("tasks", "one")).await.unwrap();
    let faulty = Faulty::new(&storage);
    let mut reads = 0;
    // Two for the job of its sender, and for that of any.
    faulty.on(Operation::GetBlob, move |_| {
        reads += 1;
        (reads == 3).then_some(Fault::DelayBefore(Duration::from_secs(120)))
    });
    let handler = async |_: Task| Ok::<_, JobError>(());
    let running = present(&storage).handle(handler).build().unwrap().run_until(after(60));
    let admin = operator(&faulty.storage());
    let (report, found) = tokio::join!(running, admin.cancellation(&job));
    assert_eq!(report.unwrap().dead_lettered, 1);
    assert_eq!(found.unwrap(), Cancellation::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn job_behind_another_of_its_key_is_cancelled_before_its_turn() {
    let storage = in_memory();
    let admin = operator(&storage);
    let ordered = || SendOptions::new().in_order().key("k");
    let _ = send(&storage, "first", ordered()).await;
    let second = send(&storage, "second", ordered()).await;
    let _ = send(&storage, "third", ordered()).await;
    let ran: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = Arc::clone(&ran);
    let handler = move |task: Task| {
        sink.lock().unwrap().push(task.name);
        async {
            sleep(Duration::from_secs(60)).await;
            Ok::<_, JobError>(())
        }
    };
    let running = present(&storage).handle(handler).build().unwrap().run_until(after(900));
    let cancelling = async {
        sleep(Duration::from_secs(20)).await;
        let _ = admin.cancel(&second).await.unwrap();
    };
    let (report, ()) = tokio::join!(running, cancelling);
    assert_eq!(report.unwrap().completed, 2);
    assert_eq!(*ran.lock().unwrap(), ["first", "third"]);
    assert_eq!(dead(&admin).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn cancellation_survives_faults_of_the_storage() {
    for seed in 0..20_u64 {
        let inner = in_memory();
        let faulty = Faulty::new(&inner);
        let storage = faulty.storage();
        let job = send(&inner, &format!("long-{seed}"), SendOptions::new()).await;
        let admin = operator(&inner);
        let mut calls = seed;
        for operation in
            [Operation::PutBlob, Operation::ListBlobs, Operation::GetBlob, Operation::BlobProperties]
        {
            faulty.on(operation, move |_| {
                calls = calls.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                match (calls >> 33) % 4 {
                    0 => Some(Fault::DropAnswer(StoreErrorKind::Timeout)),
                    1 => Some(Fault::Refuse(StoreErrorKind::Unavailable)),
                    _ => None,
                }
            });
        }
        let handler = async |_: Task| std::future::pending::<Result<(), JobError>>().await;
        let running = present(&storage).handle(handler).build().unwrap().run_until(after(900));
        let cancelling = async {
            sleep(Duration::from_secs(100 + seed)).await;
            let _ = admin.cancel(&job).await.unwrap();
        };
        let (report, ()) = tokio::join!(running, cancelling);
        assert_eq!(report.unwrap().dead_lettered, 1, "seed {seed}");
    }
}

/// A clock whose times are whole seconds, as those of Azure.
#[derive(Debug)]
struct WholeSeconds;

impl Clock for WholeSeconds {
    fn now(&self) -> SystemTime {
        let since = clock().now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())
    }
}

#[tokio::test(start_paused = true)]
async fn job_that_is_sent_after_the_cancellation_of_its_id_runs() {
    let storage = memory::open_on(Runtime::virtual_time(Arc::new(WholeSeconds)));
    for part in 0..20 {
        sleep(Duration::from_millis(150)).await;
        let id = part.to_string();
        let _ = operator(&storage).cancel(&JobReference::new("tasks", id.clone())).await.unwrap();
        let _ = send(&storage, &id, SendOptions::new()).await;
    }
    let handler = async |_: Task| Ok::<_, JobError>(());
    let report = present(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    assert_eq!((report.completed, report.dead_lettered), (20, 0));
}

// In real time: on paused time a worker reads requests only if it is told to keep a record.
#[tokio::test]
async fn worker_that_runs_until_idle_runs_no_cancelled_job() {
    let storage = Storage::memory();
    let admin = operator(&storage);
    let job = send(&storage, "waiting", SendOptions::new()).await;
    assert_eq!(admin.cancel(&job).await.unwrap().workers, 0);
    let _ = send(&storage, "other", SendOptions::new()).await;
    let handler = async |_: Task| Ok::<_, JobError>(());
    let worker = Worker::builder(storage.clone()).handle(handler).build().unwrap();
    let report = worker.run_until_idle().await.unwrap();
    assert_eq!((report.completed, report.dead_lettered), (1, 1));
    assert_eq!(dead(&admin).await, [("cancelled".to_owned(), "cancelled by ada".to_owned())]);
    assert_eq!(admin.cancellation(&job).await.unwrap(), Cancellation::Cancelled);
    assert!(admin.workers().await.unwrap().is_empty(), "it keeps no record");
}
