//! Links that the service detaches because nothing passes on them, and tokens over a long time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jobqueue::storage::{PutMessage, UpdateMessage};
use jobqueue::{JobError, Storage, Worker};
use jobqueue_test_support::servicebus::is_excluded;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::jobs::{Work, work};
use super::{Bench, MINUTE, options};

/// The time after which the service detaches an idle link.
const IDLE: Duration = Duration::from_secs(600);
const AS_THE_SERVICE: [&str; 2] = ["--link-idle-timeout", "600000"];

impl Bench {
    fn links_of_the_queue(&self) -> usize {
        let links = self.emulator.links();
        links.as_array().unwrap().iter().filter(|link| link["entity"] != "$cbs").count()
    }

    /// Returns the number of detaches that the client has sent.
    fn detaches(&self) -> u64 {
        self.emulator.frames()["detaches"].as_u64().unwrap()
    }

    /// Waits until the client has answered further detaches.
    pub(super) async fn hears_of(&self, links: u64, before: u64) {
        let heard = async {
            while self.detaches() < before + links {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(MINUTE, heard).await.expect("the client does not answer the detaches");
    }

    /// Detaches the links of an entity, and waits for the client's answer.
    pub(super) async fn detach(&self, entity: &str) {
        let before = self.detaches();
        let struck = self.emulator.strike("detach", Some(entity));
        assert!(struck > 0, "{entity} has no links");
        self.hears_of(struck, before).await;
    }
}

#[tokio::test]
async fn links_that_the_service_detaches_after_ten_minutes_are_opened_again() {
    if is_excluded("idling::links_that_the_service_detaches_after_ten_minutes_are_opened_again") {
        return;
    }
    let bench = Bench::with(json!({ "LockDuration": "PT5M" }), &AS_THE_SERVICE);
    for round in 0..3 {
        bench.put(PutMessage::new(round.to_string())).await.unwrap();
        let leased = bench.get().await.unwrap();
        bench.update(&leased.message, UpdateMessage::new(MINUTE)).await.unwrap();
        bench.delete(&leased.message).await.unwrap();
        assert!(bench.links_of_the_queue() >= 3, "round {round}");
        let (links, before) = (bench.links_of_the_queue() as u64, bench.detaches());
        bench.emulator.advance(IDLE);
        bench.hears_of(links, before).await;
        assert_eq!(bench.links_of_the_queue(), 0, "round {round}");
    }
}

#[tokio::test]
async fn a_link_on_which_something_passes_is_not_detached() {
    if is_excluded("idling::a_link_on_which_something_passes_is_not_detached") {
        return;
    }
    let bench = Bench::with(json!({}), &AS_THE_SERVICE);
    for round in 0..4 {
        bench.put(PutMessage::new(round.to_string())).await.unwrap();
        bench.emulator.advance(IDLE / 2);
    }
    assert_eq!(bench.emulator.calls("attach", "work", 1), 1);
}

#[tokio::test]
async fn a_worker_that_idles_for_hours_takes_the_next_job_at_once() {
    if is_excluded("idling::a_worker_that_idles_for_hours_takes_the_next_job_at_once") {
        return;
    }
    let bench = Bench::with(json!({}), &AS_THE_SERVICE);
    let queue = bench.another().queue::<Work>().await.unwrap();
    let (begun, mut jobs) = mpsc::unbounded_channel();
    let handler = move |job: Work| {
        begun.send(job.name).unwrap();
        async { Ok::<(), JobError>(()) }
    };
    // A pause longer than the test: nothing but the end of the link wakes the worker.
    let worker = Worker::builder(bench.storage.clone()).max_idle_delay(60 * MINUTE).handle(handler);
    let (stop, stopped) = oneshot::channel::<()>();
    let running = worker.build().unwrap().run_until(async { drop(stopped.await) });
    let running = tokio::spawn(async { running.await.unwrap() });
    let idles = async || {
        bench.until(|credit| credit > 0).await;
        // The get under way is over: a link that ends under a get is a failure, after which the worker pauses.
        sleep(Duration::from_millis(150)).await;
    };
    for hour in 0..3 {
        idles().await;
        for _ in 0..6 {
            bench.emulator.advance(IDLE);
            idles().await;
        }
        let name = hour.to_string();
        while let Err(error) = queue.send(&work(&name)).await {
            // A refused token is replaced once in five seconds; the emulator's last hour may have been shorter.
            let is_refused = format!("{error:?}").contains("unauthorized-access");
            assert!(error.is_retryable() || is_refused, "{error:?}");
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(timeout(MINUTE, jobs.recv()).await.expect("the job did not begin").unwrap(), name);
    }
    stop.send(()).unwrap();
    assert_eq!(running.await.unwrap().completed, 3);
}

// The machine slept, so that its monotonic clock stood while the token ran out.
#[tokio::test]
async fn a_token_that_ran_out_unnoticed_is_replaced() {
    if is_excluded("idling::a_token_that_ran_out_unnoticed_is_replaced") {
        return;
    }
    let bench = Bench::new();
    bench.put(PutMessage::new("a")).await.unwrap();
    bench.emulator.advance(2 * 60 * MINUTE);
    while let Err(error) = bench.put(PutMessage::new("b")).await {
        assert!(error.is_retryable(), "{error:?}");
    }
    assert_eq!(bench.count("active"), 2);
}

#[tokio::test]
async fn a_worker_outlives_many_tokens() {
    let bench = Bench::new();
    let options = options(&bench.emulator).token_validity(Duration::from_secs(4));
    let storage = Storage::from(options.with_blobs_of(&bench.blobs).unwrap());
    let queue = storage.queue::<Work>().await.unwrap();
    let done = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&done);
    let handler = move |_: Work| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Ok::<(), JobError>(()) }
    };
    let worker = Worker::builder(storage).max_idle_delay(60 * MINUTE).handle(handler);
    let (stop, stopped) = oneshot::channel::<()>();
    let running = worker.build().unwrap().run_until(async { drop(stopped.await) });
    let running = tokio::spawn(async { running.await.unwrap() });
    bench.until(|credit| credit > 0).await;
    let tokens = || bench.emulator.calls("put-token", "$cbs", 0);
    let before = tokens();
    let waiting = async {
        while tokens() < before + 6 {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(2 * MINUTE, waiting).await.expect("the tokens are not renewed");
    queue.send(&work("late")).await.unwrap();
    let waiting = async {
        while done.load(Ordering::Relaxed) == 0 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(MINUTE, waiting).await.expect("the job did not begin");
    stop.send(()).unwrap();
    let report = running.await.unwrap();
    assert_eq!(report.completed, 1, "{report:?}");
    assert_eq!(bench.count("active"), 0, "{report:?}");
}
