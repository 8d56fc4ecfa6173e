//! The worker of the framework.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jobqueue::{Event, WorkerBuilder};
use tokio::sync::Notify;

use super::SLOTS;

/// Runs a worker until it has completed `jobs` messages.
pub(super) async fn run(worker: WorkerBuilder, jobs: u64) -> Duration {
    let (done, all) = (AtomicU64::new(0), Arc::new(Notify::new()));
    let tell = Arc::clone(&all);
    let worker = worker.concurrency(SLOTS as usize).on_event(move |event| {
        let is_end = matches!(event, Event::Finished { .. });
        if is_end && done.fetch_add(1, Ordering::AcqRel) + 1 == jobs {
            tell.notify_one();
        }
    });
    let began = Instant::now();
    let (tell_time, time) = tokio::sync::oneshot::channel();
    let stop = async move {
        all.notified().await;
        let _ = tell_time.send(began.elapsed());
    };
    let report = worker.build().unwrap().run_until(stop).await.unwrap();
    assert_eq!(report.completed, jobs, "{report:?}");
    time.await.unwrap()
}
