//! Queues that take no sends, and so no copy of a message that is put back: one that has reached its size,
//! and one that an operator drains.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use jobqueue::clock::ManualClock;
use jobqueue::storage::{PutMessage, Storage, StoreErrorKind, UpdateMessage};
use jobqueue::{CancellationToken, Event, JobError, QueueMessage, Runtime, Worker};
use jobqueue_test_support::servicebus::is_excluded;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Bench, MINUTE, options};

fn states() -> [(&'static str, Value, StoreErrorKind); 2] {
    [
        ("MaxSizeInMegabytes", json!({ "MaxSizeInMegabytes": 0 }), StoreErrorKind::Full),
        ("Status", json!({ "Status": "SendDisabled" }), StoreErrorKind::QueueDisabled),
    ]
}

impl Bench {
    /// Opens the same storage as another process would that much later.
    fn another_later(&self, time: Duration) -> Storage {
        let clock = Arc::new(ManualClock::at(SystemTime::now() + time));
        let options = options(&self.emulator).runtime(Runtime::new().with_clock(clock));
        Storage::from(options.with_blobs_of(&self.blobs).unwrap())
    }

    /// Tries to put until it is not refused for a link that has ended.
    async fn refusal(&self) -> StoreErrorKind {
        loop {
            let error = self.put(PutMessage::new("more")).await.unwrap_err();
            if error.kind() != StoreErrorKind::Unavailable {
                assert!(!error.is_ambiguous(), "{error:?}");
                return error.kind();
            }
        }
    }
}

#[tokio::test]
async fn queue_that_takes_no_sends_takes_jobs_back() {
    if is_excluded("no_sends::queue_that_takes_no_sends_takes_jobs_back") {
        return;
    }
    for (setting, state, refusal) in states() {
        let suits =
            json!({ "LockDuration": "PT5M", "MaxDeliveryCount": 2000, "RequiresDuplicateDetection": true });
        let bench = Bench::with(suits, &[]);
        let leased = bench.leased("first").await;
        bench.emulator.create_queue("work", state);
        assert_eq!(bench.refusal().await, refusal);
        let advice = bench.store().advice(&bench.queue).await.unwrap();
        assert!(advice.iter().any(|advice| advice.is_warning && advice.text.contains(setting)), "{advice:?}");

        let put_back = || UpdateMessage::new(MINUTE).with_text("second".to_owned()).ending_lease();
        bench.update(&leased.message, put_back()).await.unwrap();
        assert_eq!(bench.count("active"), 1);
        assert!(bench.store().peek(&bench.queue, 1).await.unwrap().is_empty());
        bench.hide_time();
        let later = bench.another_later(MINUTE);
        let again = bench.get_from(&later).await.unwrap();
        assert_eq!(again.message.id, leased.message.id);
        assert_eq!(again.text.as_deref(), Ok("second"));
        assert_eq!(again.dequeue_count, 2);

        later.queues().update(&bench.queue, &again.message, put_back()).await.unwrap();
        assert!(bench.get().await.is_none(), "got before its time");
    }
}

// A refusal at the commit hid that, and the job came again when its lock ended, without its text and its
// attempt.
#[tokio::test]
async fn queue_that_refuses_a_copy_at_the_commit_takes_jobs_back() {
    for condition in ["amqp:resource-limit-exceeded", "amqp:transaction:rollback"] {
        let bench = Bench::new();
        let leased = bench.leased("first").await;
        let refusal = json!({ "condition": condition, "times": null });
        let fault = bench.emulator.plant_with("discharge", "error", refusal);
        let put_back = UpdateMessage::new(MINUTE).with_text("second".to_owned()).ending_lease();
        bench.update(&leased.message, put_back).await.unwrap();
        assert!(fault.hits() > 0, "{condition}");
        assert_eq!(bench.count("active"), 1, "{condition}");
        assert_eq!(bench.count("scheduled"), 0, "{condition}");
    }
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "work", kind = "failing", poison_threshold = 2)]
struct Failing {}

#[tokio::test]
async fn attempts_of_a_queue_that_takes_no_sends_are_counted() {
    if is_excluded("no_sends::attempts_of_a_queue_that_takes_no_sends_are_counted") {
        return;
    }
    for (setting, state, _) in states() {
        let bench = Bench::with(json!({ "LockDuration": "PT5S", "MaxDeliveryCount": 2000 }), &[]);
        let (reasons, ended) = std::sync::mpsc::channel();
        let storage = bench.storage.clone().on_event(move |event| {
            if let Event::DeadLettered { reason, .. } = event {
                reasons.send(reason.to_string()).unwrap();
            }
        });
        storage.queue::<Failing>().await.unwrap().send(&Failing {}).await.unwrap();
        bench.emulator.create_queue("work", state);
        let runs = Arc::new(AtomicU32::new(0));
        let reason = loop {
            let count = Arc::clone(&runs);
            let handler = move |_: Failing| {
                count.fetch_add(1, Ordering::Relaxed);
                async { Err::<(), _>(JobError::retry_after(Duration::from_millis(10), "not yet")) }
            };
            let worker = Worker::builder(storage.clone()).max_idle_delay(Duration::from_millis(20));
            let _ = worker.handle(handler).build().unwrap().run_until_idle().await.unwrap();
            assert!(runs.load(Ordering::Relaxed) <= 2, "{setting}");
            if let Ok(reason) = ended.try_recv() {
                break reason;
            }
            // Before its mend, the job came again when its lock ended.
            bench.emulator.advance(Duration::from_secs(5));
        };
        assert_eq!(reason, "attempts_exhausted", "{setting}");
        assert_eq!(runs.load(Ordering::Relaxed), 2, "{setting}");
    }
}

/// The put-backs of this process wake its worker; those of another one, or of an earlier life, do not.
#[tokio::test]
async fn jobs_behind_those_that_another_process_put_back_in_their_places_run() {
    if is_excluded("no_sends::jobs_behind_those_that_another_process_put_back_in_their_places_run") {
        return;
    }
    let bench = Bench::with(json!({ "LockDuration": "PT1M", "MaxDeliveryCount": 2000 }), &[]);
    let queue = bench.storage.queue::<Failing>().await.unwrap();
    for _ in 0..3 {
        queue.send(&Failing {}).await.unwrap();
    }
    let held = [bench.get().await.unwrap(), bench.get().await.unwrap()];
    bench.emulator.create_queue("work", json!({ "Status": "SendDisabled" }));
    assert_eq!(bench.refusal().await, StoreErrorKind::QueueDisabled);
    for leased in &held {
        bench.update(&leased.message, UpdateMessage::new(10 * MINUTE).ending_lease()).await.unwrap();
    }
    let done = CancellationToken::new();
    let last = done.clone();
    let handler = move |_: Failing| {
        last.cancel();
        async { Ok::<_, JobError>(()) }
    };
    // It rests for a minute, unless a get says that others may be behind those that it met.
    let worker = Worker::builder(bench.another()).concurrency(1).max_idle_delay(MINUTE).handle(handler);
    let running = worker.build().unwrap().run_until(done.cancelled_owned());
    let report = tokio::time::timeout(MINUTE / 2, running).await.unwrap().unwrap();
    assert_eq!(report.completed, 1);
}
