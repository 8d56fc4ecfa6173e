//! The operator's view on Azure Storage (Azurite) and on one SQLite file, in real time.

use std::time::{Duration, Instant};

use jobqueue::azure::Options;
use jobqueue::{Context, JobError, Storage, Worker};
use jobqueue_admin::{
    AccessLevel, Admin, Cancellation, DeadLetterFilter, HistoryFilter, JobReference, RawSend,
};
use jobqueue_tests::azurite::Azurite;
use jobqueue_tests::jobs::Task;
use jobqueue_tests::running::Running;

/// The time after which a test gives up.
const LIMIT: Duration = Duration::from_secs(60);

async fn azurite() -> Storage {
    let options = Options::from_connection_string(&Azurite::shared().connection_string()).unwrap();
    Storage::open(options).await.unwrap()
}

fn operator(storage: &Storage) -> Admin {
    Admin::builder(storage.clone()).access(AccessLevel::Operate).operator("ada").build()
}

/// Waits until `look` finds something.
async fn until<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(started.elapsed() < LIMIT, "it does not come");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Sends jobs, lets the odd ones die, looks at all, puts them back.
async fn letters_come_back(storage: &Storage) {
    let admin = operator(storage);
    let queue = format!("letters-{}", uuid::Uuid::new_v4().simple());
    admin.create_queue(&queue).await.unwrap();
    for n in 0..40 {
        let job = RawSend::json("task", &format!("{{\"name\":\"{n}\"}}")).unwrap().id(&n.to_string());
        let _ = admin.send(&queue, job).await.unwrap();
    }
    assert_eq!(admin.inspect(&queue, 100).await.unwrap().len(), 40);
    let handler = async |task: Task| match task.name.parse::<u32>()? % 2 {
        1 => Err(JobError::dead_letter("odd")),
        _ => Ok(()),
    };
    let worker = Worker::builder(storage.clone()).handle_on(&queue, handler).build().unwrap();
    let _ = worker.run_until_idle().await.unwrap();
    let page = admin.search_dead_letters(&queue, &DeadLetterFilter::new().text("odd"), 100).await.unwrap();
    assert_eq!(page.matching, 20);
    assert_eq!(page.letters.len(), 20);
    assert_eq!(
        admin.redrive(&queue).filter(DeadLetterFilter::all()).dry_run(true).run().await.unwrap().count,
        20
    );
    assert_eq!(
        admin.redrive(&queue).filter(DeadLetterFilter::all()).limit(15).run().await.unwrap().count,
        15
    );
    assert_eq!(admin.purge(&queue).filter(DeadLetterFilter::all()).run().await.unwrap().count, 5);
    let overview = admin.queue(&queue).await.unwrap();
    assert_eq!(overview.length, Some(15));
    assert_eq!(overview.dead_letters, Some(0));
    // Azure does not count by state; a file does.
    assert_eq!(overview.states.map_or(15, |states| states.waiting), 15);
}

/// Watches a job that runs on a worker whose record has this interval, and cancels it.
async fn running_job_is_watched_and_cancelled(storage: &Storage, interval: Duration) {
    let admin = operator(storage);
    let queue = format!("watched-{}", uuid::Uuid::new_v4().simple());
    admin.create_queue(&queue).await.unwrap();
    let _ =
        admin.send(&queue, RawSend::json("task", "{\"name\":\"long\"}").unwrap().id("long")).await.unwrap();
    let handler = async |_: Task, ctx: Context| {
        ctx.progress(3, 10, "on the way");
        std::future::pending::<Result<(), JobError>>().await
    };
    let worker = Worker::builder(storage.clone())
        .presence(interval)
        .history(Duration::from_secs(86_400))
        .handle_on(&queue, handler);
    let running = Running::start(worker).await;
    let run = until(async || {
        let workers = admin.workers().await.unwrap();
        workers.into_iter().flat_map(|worker| worker.record.running).find(|run| run.queue == queue)
    })
    .await;
    assert_eq!(run.id.as_str(), "long");
    assert_eq!(run.progress.unwrap().done, 3);
    let job = JobReference::new(&queue, "long");
    assert_eq!(admin.cancel(&job).await.unwrap().workers, 1);
    until(async || (admin.cancellation(&job).await.unwrap() == Cancellation::Cancelled).then_some(())).await;
    let _ = running.stop().await;
    let page = admin.history(&HistoryFilter::new().queue(&queue)).await.unwrap();
    assert_eq!(page.jobs[0].reason.as_deref(), Some("cancelled"));
    assert!(admin.all_workers().await.unwrap().iter().all(|worker| !worker.record.listens_to(&queue)));
}

#[tokio::test]
async fn letters_come_back_on_azure() {
    letters_come_back(&azurite().await).await;
}

#[tokio::test]
async fn running_job_is_watched_and_cancelled_on_azure() {
    running_job_is_watched_and_cancelled(&azurite().await, Duration::from_secs(1)).await;
}

// The service rounds times down to seconds, and the worker writes between most reads and writes of the
// operator.
#[tokio::test]
async fn worker_that_writes_all_the_time_is_told_on_azure() {
    for _ in 0..5 {
        running_job_is_watched_and_cancelled(&azurite().await, Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn letters_and_running_jobs_in_one_file() {
    let (storage, _folder) = crate::admin::support::storages().await.remove(1);
    letters_come_back(&storage).await;
    running_job_is_watched_and_cancelled(&storage, Duration::from_secs(1)).await;
}
