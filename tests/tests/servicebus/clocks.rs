//! Clocks that do not agree with the service's, and durations without an end.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jobqueue::clock::ManualClock;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::storage::{Operation, PutMessage, UpdateMessage};
use jobqueue::{Queue, Runtime, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::jobs::{Work, kill, work};
use super::late_answers::pass;
use super::{Bench, MINUTE, options};

impl Bench {
    /// Opens the storage on a machine whose clock shows `now`.
    pub(super) fn at(&self, now: SystemTime) -> Storage {
        let options =
            options(&self.emulator).runtime(Runtime::new().with_clock(Arc::new(ManualClock::at(now))));
        Storage::from(options.with_blobs_of(&self.blobs).unwrap())
    }
}

// A lock seemed to last longer than it does, and was renewed too late.
#[tokio::test]
async fn lock_lasts_no_longer_for_a_clock_that_is_behind() {
    const LOCK: Duration = Duration::from_secs(20);
    for sessions in [false, true] {
        let bench = Bench::with(json!({ "LockDuration": "PT20S", "RequiresSession": sessions }), &[]);
        let behind = bench.at(SystemTime::now() - MINUTE / 2);
        bench.put(PutMessage::new("job")).await.unwrap();
        let asked = Instant::now();
        let leased = bench.get_from(&behind).await.unwrap();
        let granted = leased.granted.unwrap();
        assert!(granted <= LOCK + asked.elapsed(), "sessions: {sessions}: {granted:?}");
        let renewing = behind.queues().update(&bench.queue, &leased.message, UpdateMessage::new(MINUTE));
        let granted = renewing.await.unwrap().granted.unwrap();
        assert!(granted <= LOCK, "sessions: {sessions}: {granted:?}");
    }
}

// The length of the locks was asked for once, and the bound was gone for good.
#[tokio::test]
async fn length_of_a_lock_that_is_read_late_bounds_it() {
    let bench = Bench::with(json!({ "LockDuration": "PT20S" }), &[]);
    let behind = bench.at(SystemTime::now() - MINUTE / 2);
    bench.emulator.plant_with("http-get", "error", json!({ "status": 503 }));
    behind.queues().put(&bench.queue, PutMessage::new("job")).await.unwrap();
    let asked = Instant::now();
    let granted = bench.get_from(&behind).await.unwrap().granted.unwrap();
    assert!(granted <= Duration::from_secs(20) + asked.elapsed(), "{granted:?}");
}

// A process that reads only dead letters did not ask for it: a pass held letters for longer than their locks,
// took its beginning for an earlier time, and left those that had come since.
#[tokio::test]
async fn lock_of_a_dead_letter_is_no_longer_for_a_clock_that_is_behind() {
    let bench = Bench::new();
    bench.dead_letter("job", "no").await;
    let behind = bench.at(SystemTime::now() - 2 * MINUTE);
    let letters = behind.queue::<Work>().await.unwrap().dead_letters().unwrap();
    let report = letters.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!((report.moved.len(), report.newer), (1, 0), "{report:?}");
}

// It was asked for at the beginning only, and once for all sessions.
#[tokio::test]
async fn length_of_a_lock_that_cannot_be_read_at_first_bounds_it_later() {
    for sessions in [false, true] {
        let bench = Bench::with(json!({ "LockDuration": "PT20S", "RequiresSession": sessions }), &[]);
        let behind = bench.at(SystemTime::now() - MINUTE / 2);
        let fault = bench.emulator.plant_with("http-get", "error", json!({ "status": 503, "times": null }));
        let granted = async || {
            // After so long without a frame the connection may be given up.
            while behind.queues().put(&bench.queue, PutMessage::new("job")).await.is_err() {}
            bench.get_from(&behind).await.unwrap().granted.unwrap()
        };
        assert!(granted().await > MINUTE / 2, "sessions: {sessions}");
        fault.remove();
        pass(MINUTE).await;
        // Asked for beside the gets.
        let bounded = async { while granted().await > MINUTE / 2 {} };
        timeout(MINUTE / 2, bounded).await.unwrap_or_else(|_| panic!("not bounded, sessions: {sessions}"));
    }
}

// What the first message had used of the lock was granted to the second one again.
#[tokio::test]
async fn rest_of_a_session_is_no_longer_for_a_clock_that_is_behind() {
    let bench = Bench::with(json!({ "LockDuration": "PT20S", "RequiresSession": true }), &[]);
    let behind = bench.at(SystemTime::now() - MINUTE / 2);
    for text in ["first", "second"] {
        bench.put_in("a", text).await;
    }
    let first = bench.get_from(&behind).await.unwrap();
    pass(Duration::from_secs(9)).await;
    behind.queues().delete(&bench.queue, &first.message, Default::default()).await.unwrap();
    let granted = bench.get_from(&behind).await.unwrap().granted.unwrap();
    assert!(granted <= Duration::from_secs(12), "{granted:?}");
}

// A redrive leaves what came after it began, and the sender's word for that was believed.
#[tokio::test]
async fn message_was_not_inserted_after_the_service_received_it() {
    let bench = Bench::new();
    let ahead = bench.at(SystemTime::now() + 20 * MINUTE);
    ahead.queues().put(&bench.queue, PutMessage::new("job")).await.unwrap();
    let leased = bench.get().await.unwrap();
    assert!(leased.inserted <= SystemTime::now(), "{:?}", leased.inserted);
}

// It was over before it came, again and again until the service deleted it.
#[tokio::test]
async fn job_of_a_sender_whose_clock_is_behind_runs_before_it_expires() {
    let bench = Bench::new();
    let behind = bench.at(SystemTime::now() - 20 * MINUTE);
    behind.queues().put(&bench.queue, PutMessage::new("job").with_ttl(5 * MINUTE)).await.unwrap();
    let leased = bench.get().await.unwrap();
    assert!(leased.expires.unwrap() > SystemTime::now() + 4 * MINUTE, "{:?}", leased.expires);
}

// In a session it was kept back again and again, and the log named the blobs as the reason.
#[tokio::test]
async fn message_comes_although_its_lock_is_over_by_a_clock_that_is_ahead() {
    for sessions in [false, true] {
        let bench = Bench::with(json!({ "RequiresSession": sessions }), &[]);
        // Quiet: the emulator is asked in real time. Late: the blobs answer at the second poll.
        let blobs = Faulty::quiet(&bench.blobs);
        blobs.plan_always(Operation::PutBlob, Fault::DelayBefore(Duration::from_millis(20)));
        blobs.plan_always(Operation::BlobProperties, Fault::DelayBefore(Duration::from_millis(20)));
        let clock = Arc::new(ManualClock::at(SystemTime::now() + 5 * MINUTE));
        let ahead = Storage::from(
            options(&bench.emulator)
                .runtime(Runtime::new().with_clock(clock))
                .with_blobs_of(blobs.storage())
                .unwrap(),
        );
        bench.put(PutMessage::new("job")).await.unwrap();
        let leased = bench.get_from(&ahead).await;
        assert_eq!(leased.map(|leased| leased.dequeue_count), Some(1), "sessions: {sessions}");
    }
}

// They panicked in the task of the link.
#[tokio::test]
async fn options_may_last_for_ever() {
    for sessions in [false, true] {
        let bench = Bench::with(json!({ "RequiresSession": sessions }), &[]);
        let options = options(&bench.emulator).token_validity(Duration::MAX);
        let storage = Storage::from(options.with_blobs_of(&bench.blobs).unwrap());
        bench.put(PutMessage::new("job")).await.unwrap();
        let leased = timeout(MINUTE / 6, bench.get_from(&storage)).await.expect("no message comes").unwrap();
        storage.queues().delete(&bench.queue, &leased.message, Default::default()).await.unwrap();
    }
}

// The time of a letter is that at which its message was sent.
#[tokio::test]
async fn a_job_that_dies_during_a_pass_is_left_alone() {
    let bench = Bench::new();
    let queue = bench.storage.queue::<Work>().await.unwrap();
    for name in ["first", "second"] {
        queue.send(&work(name)).await.unwrap();
    }
    kill(&queue, "no").await;
    let began = SystemTime::now() + Duration::from_secs(5);
    let clock = Arc::new(ManualClock::at(SystemTime::now() + Duration::from_secs(10)));
    let later = bench.storage.clone().with_runtime(Runtime::new().with_clock(clock));
    kill(&later.queue().await.unwrap(), "no").await;
    bench.emulator.advance(MINUTE);
    let options = DeadLetterOptions::new().before(Some(began));
    let report = queue.dead_letters().unwrap().redrive(options).await.unwrap();
    assert_eq!((report.moved.len(), report.newer), (1, 1), "{report:?}");
    let rest = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(rest.moved.len(), 1, "{rest:?}");
}

// A job that dies again is another message, so that what a plan names cannot have died later.
#[tokio::test]
async fn letter_of_a_plan_is_taken_although_its_worker_is_ahead() {
    let bench = Bench::new();
    bench.storage.queue::<Work>().await.unwrap().send(&work("first")).await.unwrap();
    let began = SystemTime::now() + Duration::from_secs(5);
    let clock = Arc::new(ManualClock::at(SystemTime::now() + Duration::from_secs(10)));
    let ahead = bench.storage.clone().with_runtime(Runtime::new().with_clock(clock));
    let queue: Queue<Work> = ahead.queue().await.unwrap();
    kill(&queue, "no").await;
    bench.emulator.advance(MINUTE);
    let options = DeadLetterOptions::new().filter(|_| true).before(Some(began)).dry_run(true);
    let letters = queue.dead_letters().unwrap();
    let report = letters.redrive(options.clone()).await.unwrap();
    assert_eq!((report.moved.len(), report.newer), (0, 1), "{report:?}");
    let report = letters.redrive(options.names_messages()).await.unwrap();
    assert_eq!((report.moved.len(), report.newer), (1, 0), "{report:?}");
}
