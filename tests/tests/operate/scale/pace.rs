//! The pace of a queue on its page, from the looks that its viewers share.

use std::time::Duration;

use axum::Router;
use jobqueue::{JobError, Storage};
use jobqueue_admin::{AccessLevel, Admin};
use jobqueue_dashboard::Dashboard;
use jobqueue_tests::jobs::{Task, after, in_memory};
use tokio::time::sleep;

use crate::scale::support::{get, get_json, present, send};

/// Looks at the dashboard while a worker runs two jobs of ten seconds at once, for two minutes.
async fn look_while_jobs_run(storage: &Storage, look: impl AsyncFnOnce(Router)) {
    let handler = async |_: Task| {
        sleep(Duration::from_secs(10)).await;
        Ok::<_, JobError>(())
    };
    let worker = present(storage).concurrency(2).handle(handler).build().unwrap();
    let admin = Admin::builder(storage.clone()).access(AccessLevel::Operate).build();
    let looking = look(Dashboard::new(admin).router());
    let (report, ()) = tokio::join!(worker.run_until(after(120)), looking);
    let _ = report.unwrap();
}

#[tokio::test(start_paused = true)]
async fn page_of_a_queue_shows_how_fast_its_jobs_end_once_it_is_known() {
    let storage = in_memory();
    send(&storage, 60).await;
    let look = async |dashboard: Router| {
        after(20).await;
        let (_, _, page) = get(&dashboard, "/queues/tasks").await;
        assert!(page.contains("<dt>Ended</dt><dd>?</dd><dt>Empty in</dt><dd>unknown</dd>"), "{page}");
        assert!(page.contains("<code>no_free_slot</code>"), "{page}");
        assert!(page.contains("<bdi>jobqueue workers --jobs</bdi>"), "{page}");
        // The same record is not a rate of 0.
        after(6).await;
        let (_, _, page) = get(&dashboard, "/queues/tasks").await;
        assert!(page.contains("<dt>Ended</dt><dd>?</dd>"), "{page}");
        after(25).await;
        let (_, _, page) = get(&dashboard, "/queues/tasks").await;
        assert!(page.contains(" a minute</dd><dt>Empty in</dt><dd>about "), "{page}");
        let (_, found) = get_json(&dashboard, "/api/explain?queue=tasks").await;
        let rate = found["ended_per_second"].as_f64().unwrap();
        assert!((0.1..0.3).contains(&rate), "{found}");
        assert_eq!(found["slots"]["holders"][0]["jobs"], 2, "{found}");
    };
    look_while_jobs_run(&storage, look).await;
}

// newcomers 33: a queue that was empty before its jobs were sent was never to be empty again.
#[tokio::test(start_paused = true)]
async fn queue_that_is_worked_off_after_a_burst_says_when_it_is_empty() {
    let storage = in_memory();
    let look = async |dashboard: Router| {
        let empty_in = async || {
            let (_, _, page) = get(&dashboard, "/queues/tasks").await;
            let (_, text) = page.split_once("<dt>Empty in</dt><dd>").unwrap();
            text.split_once("</dd>").unwrap().0.to_owned()
        };
        after(20).await;
        send(&storage, 2).await;
        let _ = empty_in().await;
        after(20).await;
        send(&storage, 60).await;
        assert_eq!(empty_in().await, "never at this pace");
        after(11).await;
        assert_eq!(empty_in().await, "unknown", "it got shorter, but only once");
        after(20).await;
        let shown = empty_in().await;
        assert!(shown.starts_with("about "), "{shown}");
    };
    look_while_jobs_run(&storage, look).await;
}
