//! A worker that is killed: how long operators see it and its job, with real processes on one SQLite file.

use std::time::{Duration, Instant};

use jobqueue::settings::SettingOverrides;
use jobqueue::{JobError, Storage, Worker};
use jobqueue_admin::{Admin, JobPlace, JobReference};
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::jobs::{Task, task};

/// The interval of the record. Three of them are shorter than the lease.
const INTERVAL: Duration = Duration::from_millis(400);
const LEASE: Duration = Duration::from_secs(15);
/// The longest wait for something that must come.
const LIMIT: Duration = Duration::from_secs(60);

/// The process that is killed while it runs a job.
#[tokio::test(flavor = "multi_thread")]
async fn worker_that_is_killed() {
    let Some(path) = part("admin::killed::worker_that_is_killed") else { return };
    let handler = async |_: Task| {
        println!(">> running");
        std::future::pending::<()>().await;
        Ok::<_, JobError>(())
    };
    let mut short = SettingOverrides::default();
    short.timeout = Some(LEASE);
    let worker = Worker::builder(Storage::connect(&path).await.unwrap())
        .presence(INTERVAL)
        .overrides(short)
        .handle(handler);
    let _ = worker.build().unwrap().run_until(std::future::pending()).await.unwrap();
}

/// Asks until the answer is there.
async fn wait_for<T>(what: &str, since: Instant, ask: impl AsyncFn() -> Option<T>) -> T {
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(since.elapsed() < LIMIT, "{what} does not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_worker_disappears_and_its_job_waits_when_its_lease_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("sqlite:{}", folder.path().join("jobs.db").display());
    let storage = Storage::connect(&path).await.unwrap();
    let _ = storage.queue::<Task>().await.unwrap().send(&task("long")).id("long").await.unwrap();
    let (admin, job) = (Admin::new(storage), JobReference::new("tasks", "long"));
    let mut worker = Part::start("admin::killed::worker_that_is_killed", &path);
    assert_eq!(worker.says().as_deref(), Some("running"));
    let shown = async || {
        // In the record of the worker, not by its lease alone.
        admin.explain(&job).await.unwrap().run.map(drop)
    };
    wait_for("the running job", Instant::now(), shown).await;
    let _ = worker.kill();
    let killed = Instant::now();

    let gone = async || admin.workers().await.unwrap().is_empty().then_some(());
    wait_for("the end of the record", killed, gone).await;
    let all = admin.all_workers().await.unwrap();
    assert!(all[0].stale && all[0].age_seconds >= 3.0 * INTERVAL.as_secs_f64(), "{}", all[0].age_seconds);

    // Until its lease is over, it is shown with the worker that ran it.
    let lost = admin.explain(&job).await.unwrap();
    let codes: Vec<_> = lost.reasons.iter().map(|reason| reason.code).collect();
    assert_eq!(lost.place, JobPlace::Running, "{}", lost.summary);
    assert_eq!(codes, vec!["worker_gone"], "{}", lost.summary);
    assert_eq!(lost.worker.as_deref(), Some(all[0].record.id.as_str()));

    let waiting = async || {
        let found = admin.explain(&job).await.unwrap();
        assert!(matches!(found.place, JobPlace::Running | JobPlace::Waiting), "{found:?}");
        (found.place == JobPlace::Waiting).then_some(found)
    };
    let found = wait_for("the job", killed, waiting).await;
    assert_eq!(found.reasons[0].code, "no_worker", "{found:?}");
    let overview = admin.queue("tasks").await.unwrap();
    assert_eq!(overview.length, Some(1));
    assert_eq!(overview.visible, Some(1));
}
