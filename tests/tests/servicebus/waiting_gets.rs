//! The lease of a message that comes late into a get, or whose delivery is counted slowly.

use std::time::Duration;

use jobqueue::storage::{GetMessages, Operation, PutMessage, Storage};
use jobqueue::{JobError, JobInfo, Worker};
use jobqueue_testing::faults::{Fault, Faulty};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::jobs::{Work, work};
use super::late_answers::{pass, until};
use super::{Bench, MINUTE, options};

impl Bench {
    /// Waits until a get waits for the first message of the queue.
    async fn until_a_get_waits(&self, sessions: bool) {
        let is_waiting = || {
            let links = self.emulator.links();
            let mut from_queue = links
                .as_array()
                .unwrap()
                .iter()
                .filter(|link| link["entity"] == "work" && link["role"] == "receiver");
            // The service answers the attach of a session when there is one.
            from_queue.any(|link| sessions || link["credit"].as_u64().unwrap() > 0)
        };
        until(is_waiting).await;
    }
}

// What the get had waited was taken from the lease: with a wait as long as that, the job did not run, and came again when its lock was over.
#[tokio::test]
async fn job_that_comes_late_into_a_get_has_its_whole_lease() {
    for sessions in [false, true] {
        let bench = Bench::with(json!({ "RequiresSession": sessions, "MaxDeliveryCount": 2000 }), &[]);
        let options = options(&bench.emulator).receive_wait(MINUTE);
        let patient = Storage::from(options.with_blobs_of(&bench.blobs));
        let (begun, mut deliveries) = mpsc::unbounded_channel();
        let handler = move |_: Work, info: JobInfo| {
            begun.send(info.dequeue_count).unwrap();
            async { Ok::<(), JobError>(()) }
        };
        let worker = Worker::builder(patient).concurrency(1).handle(handler).build().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(worker.run_until(async { drop(stopped.await) }));
        bench.until_a_get_waits(sessions).await;
        pass(3 * MINUTE / 4).await;
        bench.another().queue::<Work>().await.unwrap().send(&work("late")).await.unwrap();
        let delivery = timeout(MINUTE / 4, deliveries.recv()).await;
        assert_eq!(delivery.expect("the job does not run"), Some(1), "sessions: {sessions}");
        stop.send(()).unwrap();
        let report = running.await.unwrap().unwrap();
        assert_eq!((report.completed, report.lease_lost), (1, 0), "sessions: {sessions}: {report:?}");
    }
}

// What the blob took was left out: the lease, and the life of the job, ended so much too early.
#[tokio::test]
async fn blob_that_is_read_slowly_takes_nothing_from_the_lease_of_a_session() {
    let slow = MINUTE / 4;
    let bench = Bench::of_sessions();
    // Quiet: the emulator is asked in real time.
    let blobs = Faulty::quiet(&bench.blobs);
    let storage = Storage::from(options(&bench.emulator).with_blobs_of(blobs.storage()));
    bench.put(PutMessage::new("job")).await.unwrap();
    blobs.plan(Operation::PutBlob, 1, Fault::DelayBefore(slow));
    let (asking, queue) = (storage.clone(), bench.queue.clone());
    let getting = tokio::spawn(async move { asking.queues().get(&queue, GetMessages::new(1, MINUTE)).await });
    until(|| blobs.calls_of(Operation::PutBlob) > 0).await;
    pass(slow).await;
    let got = timeout(MINUTE, getting).await.unwrap().unwrap().unwrap();
    let granted = got.messages[0].granted.unwrap();
    assert!(granted > MINUTE - Duration::from_secs(5), "{granted:?}");
}
