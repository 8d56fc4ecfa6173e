//! Workers on Service Bus.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::{Context, Event, JobError, JobInfo, Queue, QueueMessage, Reason, Worker, WorkerBuilder};
use jobqueue_tests::example;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Bench;

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "work", kind = "work", poison_threshold = 2, backoff(base = "1s", max = "1s"))]
pub(crate) struct Work {
    pub(crate) name: String,
}

pub(crate) fn work(name: &str) -> Work {
    Work { name: name.to_owned() }
}

/// Makes a dead letter of the next message.
pub(crate) async fn kill(queue: &Queue<Work>, why: &'static str) {
    let delivery = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    delivery.dead_letter(Reason::REJECTED, why).await.unwrap();
}

fn worker(bench: &Bench) -> WorkerBuilder {
    Worker::builder(bench.storage.clone()).max_idle_delay(Duration::from_millis(200))
}

#[tokio::test]
async fn a_failed_job_goes_on_from_its_checkpoint_and_a_bad_one_is_dead_lettered() {
    let bench = Bench::new();
    let queue = bench.storage.queue::<Work>().await.unwrap();
    for name in ["good", "bad"] {
        queue.send(&work(name)).await.unwrap();
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let handler = move |job: Work, info: JobInfo, context: Context| {
        let log = Arc::clone(&log);
        async move {
            let step: u32 = context.resume().await?.unwrap_or_default();
            log.lock().unwrap().push((job.name.clone(), info.attempt, step));
            context.checkpoint(&(step + 1)).await?;
            if job.name == "bad" || info.attempt == 1 { Err(JobError::retry("not yet")) } else { Ok(()) }
        }
    };
    let (mut completed, mut dead_lettered) = (0, 0);
    while completed + dead_lettered < 2 {
        let worker = worker(&bench).handle(handler.clone()).build().unwrap();
        let report = worker.run_until_idle().await.unwrap();
        completed += report.completed;
        dead_lettered += report.dead_lettered;
        // The back-off.
        bench.emulator.advance(Duration::from_secs(2));
    }
    assert_eq!(completed, 1);
    assert_eq!(dead_lettered, 1);
    let mut seen = seen.lock().unwrap().clone();
    seen.sort();
    let run = |name: &str, attempt, step| (name.to_owned(), attempt, step);
    assert_eq!(seen, [run("bad", 1, 0), run("bad", 2, 1), run("good", 1, 0), run("good", 2, 1)]);
    assert_eq!(bench.count("active"), 0);
    assert_eq!(bench.count("scheduled"), 0);
}

#[tokio::test]
async fn dead_letters_are_reported_whether_a_worker_or_a_receiver_stores_them() {
    let bench = Bench::new();
    let reported = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&reported);
    let storage = bench.storage.clone().on_event(move |event| {
        if let Event::DeadLettered { job, queue, reason, .. } = event {
            let id = job.as_ref().map(|job| job.id.to_string());
            log.lock().unwrap().push((id, queue.to_string(), reason.to_string()));
        }
    });
    let queue = storage.queue::<Work>().await.unwrap();
    queue.send(&work("by hand")).id("a").await.unwrap();
    let delivery = queue.receive(Duration::from_secs(5)).await.unwrap().unwrap();
    delivery.dead_letter(Reason::REJECTED, "refused").await.unwrap();
    queue.send(&work("by a worker")).id("b").await.unwrap();
    let handler = |_: Work| async { Err::<(), _>(JobError::dead_letter("no address")) };
    let report = Worker::builder(storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.dead_lettered, 1);
    let dead = |id: &str| (Some(id.to_owned()), "work".to_owned(), "rejected".to_owned());
    assert_eq!(*reported.lock().unwrap(), ["a", "b"].map(dead));
}

// I8
#[tokio::test]
async fn a_job_longer_than_its_lock_runs_once() {
    let bench = Bench::with(json!({ "LockDuration": "PT5S" }), &[]);
    let queue = bench.storage.queue::<Work>().await.unwrap();
    queue.send(&work("long")).await.unwrap();
    let runs = Arc::new(Mutex::new(0));
    let (count, emulator) = (Arc::clone(&runs), Arc::new(bench.emulator));
    let renewals = Arc::clone(&emulator);
    let handler = move |_: Work| {
        *count.lock().unwrap() += 1;
        let renewals = Arc::clone(&renewals);
        async move {
            // Three renewals at 70 % of a lock take longer than two locks.
            let wait = tokio::task::spawn_blocking(move || renewals.calls("renew-lock", "work", 3));
            assert!(wait.await.unwrap() >= 3);
            Ok::<(), JobError>(())
        }
    };
    let worker = Worker::builder(bench.storage.clone()).max_idle_delay(Duration::from_millis(200));
    let report = worker.handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1, "{report:?}");
    assert_eq!(*runs.lock().unwrap(), 1, "{report:?}");
    assert_eq!(emulator.queue("work")["counts"]["active"], 0);
}

#[tokio::test]
async fn a_worker_that_runs_until_idle_waits_for_what_is_on_its_way() {
    let bench = Bench::new();
    // A message is always later than a get waits.
    let storage = bench.over_late_network().await;
    let queue = storage.queue::<Work>().await.unwrap();
    for round in 1..=5 {
        queue.send(&work("late")).await.unwrap();
        let worker = Worker::builder(storage.clone()).handle(|_: Work| async { Ok::<(), JobError>(()) });
        let report = worker.build().unwrap().run_until_idle().await.unwrap();
        assert_eq!(report.completed, 1, "round {round}: {report:?}");
    }
}

// I6
#[tokio::test]
async fn a_job_whose_completion_gets_no_answer_is_done_once() {
    for end in ["detach", "abort"] {
        let bench = Bench::new();
        let queue = bench.storage.queue::<Work>().await.unwrap();
        queue.send(&work("once")).await.unwrap();
        bench.emulator.plant("complete", end);
        let runs = Arc::new(Mutex::new(0));
        let count = Arc::clone(&runs);
        let handler = move |_: Work| {
            *count.lock().unwrap() += 1;
            async { Ok::<(), JobError>(()) }
        };
        let report = worker(&bench).handle(handler).build().unwrap().run_until_idle().await.unwrap();
        // A lock that is lost after a lost answer does not say that the message is gone.
        assert_eq!((report.completed, report.uncertain), (0, 1), "{end}: {report:?}");
        assert_eq!(*runs.lock().unwrap(), 1, "{end}: {report:?}");
        assert_eq!(bench.count("active"), 0, "{end}");
    }
}

// S2
#[test]
fn the_example_of_the_message_lock_runs() {
    let bench = Bench::new();
    let program = example::built("message_lock");
    let folder = tempfile::tempdir().unwrap();
    let blobs = folder.path().join("blobs.db");
    let storage = format!("{};Blobs=sqlite:{}", bench.emulator.connection_string(), blobs.display());
    let output = Command::new(program).env("LESSON_STORAGE", storage).output().unwrap();
    let text = example::text(&output);
    assert!(output.status.success(), "{text}");
    for line in [
        "worked 7 s on parcel 1 under a lease of 6 s; no other worker got it",
        "dropped parcel 2 without a word: it is back, attempt 1, delivery 2",
        "completed parcel 2 with its progress: weighed",
    ] {
        assert!(text.contains(line), "{line:?} is missing in\n{text}");
    }
}

/// The lock of the service is longer than the lease that is asked for, and than the job's life.
#[tokio::test]
async fn a_job_whose_life_is_shorter_than_the_lock_runs() {
    for sessions in [false, true] {
        let bench = Bench::with(json!({ "LockDuration": "PT60S", "RequiresSession": sessions }), &[]);
        let queue = bench.storage.queue::<Work>().await.unwrap();
        queue.send(&work("short")).ttl(Duration::from_secs(20)).await.unwrap();
        let handler = |_: Work| async { Ok::<(), JobError>(()) };
        let worker = Worker::builder(bench.storage.clone()).handle(handler).build().unwrap();
        let report = worker.run_until_idle().await.unwrap();
        assert_eq!(report.completed, 1, "sessions: {sessions}: {report:?}");
    }
}
