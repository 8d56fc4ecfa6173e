//! Jobs in order on a queue without sessions, where a log keeps the order.

use std::sync::Arc;

use jobqueue::{JobError, Worker};
use jobqueue_admin::Admin;
use jobqueue_test_support::servicebus::is_excluded;
use serde_json::json;
use tokio::sync::{Notify, mpsc};

use super::jobs::{Work, work};
use super::late_answers::until;
use super::{Bench, MINUTE};

/// A delivery whose lock was lost ended the job, which ran elsewhere under the same dequeue count, and the
/// next job of the key began beside it.
#[tokio::test]
async fn delivery_that_is_not_counted_takes_the_turn_of_the_one_before_it() {
    if is_excluded("locks::a_delivery_that_the_service_does_not_count_finds_the_saved_text") {
        return;
    }
    let uncounted = ["--locks-end-with-links", "true", "--counts-dropped-locks", "false"];
    let bench = Bench::with(json!({}), &uncounted);
    let queue = bench.storage.queue::<Work>().await.unwrap();
    for name in ["first", "second"] {
        let _ = queue.send(&work(name)).key("k").in_order().await.unwrap();
    }
    let (begun, mut begins) = mpsc::unbounded_channel();
    // Runs the jobs, the first one until `may_end` is notified.
    let worker = |place: &'static str, may_end: &Arc<Notify>| {
        let (begun, may_end) = (begun.clone(), Arc::clone(may_end));
        let handler = move |job: Work| {
            begun.send((place, job.name.clone())).unwrap();
            let may_end = Arc::clone(&may_end);
            async move {
                if job.name == "first" {
                    may_end.notified().await;
                }
                Ok::<_, JobError>(())
            }
        };
        Worker::builder(bench.another()).max_idle_delay(MINUTE / 300).handle(handler)
    };
    let (may_end, stop) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let stopped = Arc::clone(&stop);
    let earlier = worker("earlier", &may_end).concurrency(1).build().unwrap();
    let earlier = tokio::spawn(earlier.run_until(async move { stopped.notified().await }));
    assert_eq!(begins.recv().await.unwrap(), ("earlier", "first".to_owned()));
    // The worker gets no answer that would show that the lock is lost.
    let renewals = bench.emulator.plant_with("renew-lock", "hold", json!({ "times": null }));
    assert!(bench.emulator.strike("abort", None) > 0);
    let may_end_later = Arc::new(Notify::new());
    let later = worker("later", &may_end_later).build().unwrap();
    let later = later.run_until(until(|| bench.count("active") == 0));
    let rest = async {
        assert_eq!(begins.recv().await.unwrap(), ("later", "first".to_owned()));
        may_end.notify_one();
        stop.notify_one();
        let _ = earlier.await.unwrap().unwrap();
        renewals.remove();
        let groups = Admin::new(bench.another()).groups("work").await.unwrap();
        assert_eq!(groups.groups.first().map(|group| group.entries.len()), Some(2));
        may_end_later.notify_one();
        assert_eq!(begins.recv().await.unwrap(), ("later", "second".to_owned()));
    };
    let (report, ()) = tokio::join!(later, rest);
    assert_eq!(report.unwrap().completed, 2);
}
