//! Checks what a worker needs of the service, on the emulator or on a real namespace.
//!
//! `JOBQUEUE_TEST_SERVICEBUS` names a namespace by a connection string with the claim Manage, tier Standard
//! or Premium. Each test makes a queue of its own there, `jobqueue-test-…`, deletes it before and after, and
//! waits by the true time. Two runs on one namespace at once disturb each other. Stock Python programs send,
//! receive and dead-letter there too. They speak to the namespace itself; the other tests of this program
//! reach it through the gateway, which plants faults.

mod dead_letters;
mod interop;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::servicebus::Options;
use jobqueue::storage::StoreErrorKind;
use jobqueue::{
    Context, JobError, JobInfo, Queue, QueueMessage, QueueName, SendOptions, Storage, Worker, WorkerBuilder,
};
use jobqueue_test_support::servicebus::{self, ServiceBus};
use serde::{Deserialize, Serialize};

/// The shortest lock of the service.
const LOCK: Duration = Duration::from_secs(5);

type Log = Arc<Mutex<Vec<String>>>;

/// Declares a message with a queue of its own.
macro_rules! message {
    ($name:ident, $queue:literal) => {
        #[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
        #[message(queue = $queue, kind = "test", poison_threshold = 2, backoff(base = "1s", max = "1s"))]
        struct $name {
            name: String,
        }

        impl From<String> for $name {
            fn from(name: String) -> Self {
                Self { name }
            }
        }
    };
}

message!(Retried, "jobqueue-test-retried");
message!(Long, "jobqueue-test-long");
message!(Many, "jobqueue-test-many");
message!(Ordered, "jobqueue-test-ordered");
message!(Delayed, "jobqueue-test-delayed");
message!(Twice, "jobqueue-test-twice");
message!(Letter, "jobqueue-test-letter");
message!(Moved, "jobqueue-test-moved");
message!(FromPython, "jobqueue-test-from-python");
message!(ForPython, "jobqueue-test-for-python");

/// Returns the connection string of the namespace, or of the emulator.
fn connection_string() -> String {
    servicebus::namespace().unwrap_or_else(|| ServiceBus::shared().connection_string().to_owned())
}

/// A queue of this test only.
struct Place<M> {
    storage: Storage,
    queue: Queue<M>,
    name: QueueName,
}

impl<M: QueueMessage + From<String>> Place<M> {
    async fn open() -> Self {
        let options = Options::from_connection_string(&connection_string()).unwrap().lock_duration(LOCK);
        let options = options.duplicate_detection(Duration::from_secs(60));
        let storage = Storage::from(options.with_blobs_of(Storage::memory()).unwrap());
        let name = QueueName::new(M::QUEUE).unwrap();
        // Left over from a run that failed.
        if let Err(error) = storage.queues().delete_queue(&name).await {
            assert_eq!(error.kind(), StoreErrorKind::QueueNotFound, "{error:?}");
        }
        let queue = storage.queue::<M>().await.unwrap();
        Self { storage, queue, name }
    }

    fn worker(&self) -> WorkerBuilder {
        Worker::builder(self.storage.clone()).max_idle_delay(Duration::from_millis(500))
    }

    fn message(&self, name: impl ToString) -> M {
        M::from(name.to_string())
    }

    async fn close(self) {
        self.storage.queues().delete_queue(&self.name).await.unwrap();
    }
}

fn note(log: &Log, text: impl Into<String>) {
    log.lock().unwrap().push(text.into());
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_retried_from_checkpoints_dead_lettered_and_redriven() {
    let place = Place::<Retried>::open().await;
    for name in ["good", "bad"] {
        place.queue.send(&place.message(name)).await.unwrap();
    }
    let log = Log::default();
    let seen = Arc::clone(&log);
    let handler = move |job: Retried, info: JobInfo, context: Context| {
        let seen = Arc::clone(&seen);
        async move {
            let step: u32 = context.resume().await?.unwrap_or_default();
            note(&seen, format!("{} {} {step}", job.name, info.attempt));
            context.checkpoint(&(step + 1)).await?;
            if job.name == "bad" || info.attempt == 1 { Err(JobError::retry("not yet")) } else { Ok(()) }
        }
    };
    let dead = place.queue.dead_letters().unwrap();
    let (mut completed, mut letters) = (0, 0);
    while completed + letters < 2 {
        let worker = place.worker().handle(handler.clone()).build().unwrap();
        let report = worker.run_until_idle().await.unwrap();
        completed += report.completed;
        letters += report.dead_lettered;
    }
    let mut seen = log.lock().unwrap().clone();
    seen.sort();
    assert_eq!(seen, ["bad 1 0", "bad 2 1", "good 1 0", "good 2 1"]);
    let letter = dead.list().await.unwrap().letters.remove(0);
    assert_eq!(letter.attempts, 2);
    assert_eq!(letter.error.as_deref(), Some("not yet"));
    assert_eq!(dead.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
    let again = place.queue.receive(Duration::from_secs(30)).await.unwrap().expect("the dead letter is back");
    assert_eq!(again.message().name.as_str(), "bad");
    assert_eq!(again.info().attempt, 1);
    again.complete().await.unwrap();
    assert!(dead.list().await.unwrap().letters.is_empty());
    place.close().await;
}

// I8
#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_two_locks_runs_once() {
    let place = Place::<Long>::open().await;
    place.queue.send(&place.message("long")).await.unwrap();
    let log = Log::default();
    let seen = Arc::clone(&log);
    let handler = move |job: Long| {
        note(&seen, job.name);
        async {
            tokio::time::sleep(2 * LOCK).await;
            Ok::<(), JobError>(())
        }
    };
    let report = place.worker().handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1, "{report:?}");
    assert_eq!(log.lock().unwrap().len(), 1, "{report:?}");
    place.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_run_once_each_in_many_slots() {
    const JOBS: usize = 200;
    let place = Place::<Many>::open().await;
    let jobs: Vec<_> = (0..JOBS).map(|number| place.message(number)).collect();
    for sent in place.queue.send_all(&jobs).await.unwrap() {
        sent.unwrap();
    }
    let log = Log::default();
    let seen = Arc::clone(&log);
    let handler = move |job: Many| {
        note(&seen, job.name);
        async { Ok::<(), JobError>(()) }
    };
    let mut completed = 0;
    while completed < JOBS as u64 {
        let worker = place.worker().concurrency(32).handle(handler.clone()).build().unwrap();
        completed += worker.run_until_idle().await.unwrap().completed;
    }
    let mut seen = log.lock().unwrap().clone();
    assert_eq!(seen.len(), JOBS);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), JOBS);
    place.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_key_keep_their_order_over_two_workers() {
    const EACH: usize = 6;
    let place = Place::<Ordered>::open().await;
    for number in 0..EACH {
        for key in ["a", "b"] {
            let job = place.message(format!("{key} {number}"));
            place.queue.send(&job).with(SendOptions::new().key(key).in_order()).await.unwrap();
        }
    }
    let log = Log::default();
    let seen = Arc::clone(&log);
    let handler = move |job: Ordered, info: JobInfo| {
        let seen = Arc::clone(&seen);
        async move {
            if job.name.ends_with(" 2") && info.attempt == 1 {
                return Err(JobError::retry("holds up its key"));
            }
            note(&seen, job.name);
            Ok(())
        }
    };
    let until = Instant::now() + Duration::from_secs(120);
    while log.lock().unwrap().len() < 2 * EACH {
        assert!(Instant::now() < until, "{:?}", log.lock().unwrap());
        let workers =
            [0, 1].map(|_| place.worker().handle(handler.clone()).build().unwrap().run_until_idle());
        for report in futures_util::future::join_all(workers).await {
            let _ = report.unwrap();
        }
    }
    let mut by_key = BTreeMap::<_, Vec<_>>::new();
    for line in log.lock().unwrap().iter() {
        let (key, number) = line.split_once(' ').unwrap();
        by_key.entry(key.to_owned()).or_default().push(number.parse::<usize>().unwrap());
    }
    for (key, numbers) in by_key {
        assert_eq!(numbers, (0..EACH).collect::<Vec<_>>(), "{key}");
    }
    place.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_jobs_wait_and_can_be_cancelled() {
    const DELAY: Duration = Duration::from_secs(3);
    let place = Place::<Delayed>::open().await;
    let (sent, before) = (Instant::now(), place.queue.send(&place.message("kept")).delay(DELAY).await);
    before.unwrap();
    let cancelled = place.queue.send(&place.message("cancelled")).delay(DELAY).await.unwrap();
    assert!(place.queue.cancel(&cancelled).await.unwrap());
    assert!(place.queue.receive(Duration::ZERO).await.unwrap().is_none(), "it did not wait");
    let kept = place.queue.receive(Duration::from_secs(60)).await.unwrap().expect("the job comes");
    // The clocks of this machine and of the service differ.
    assert!(sent.elapsed() > DELAY / 2, "it came after {:?}", sent.elapsed());
    assert_eq!(kept.message().name, "kept");
    kept.complete().await.unwrap();
    assert!(place.queue.receive(DELAY).await.unwrap().is_none(), "the cancelled job is there");
    place.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_send_is_one_job() {
    let place = Place::<Twice>::open().await;
    for _ in 0..2 {
        place.queue.send(&place.message("once")).id("job-1").await.unwrap();
    }
    let job = place.queue.receive(Duration::from_secs(30)).await.unwrap().expect("the job comes");
    job.complete().await.unwrap();
    assert!(place.queue.receive(Duration::from_secs(1)).await.unwrap().is_none(), "there are two");
    place.close().await;
}
