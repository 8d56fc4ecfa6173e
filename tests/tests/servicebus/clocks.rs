//! Clocks that do not agree with the service's, and durations without an end.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jobqueue::clock::{Clock, ManualClock};
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::storage::{Operation, PutMessage, UpdateMessage};
use jobqueue::{JobError, Queue, Runtime, Storage, Worker};
use jobqueue_admin::{AccessLevel, Admin, JobReference};
use jobqueue_test_support::servicebus::Fault as ServiceFault;
use jobqueue_testing::faults::{Fault, Faulty};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::jobs::{Work, kill, work};
use super::late_answers::pass;
use super::{Bench, MINUTE, options};

/// The service shows its time in whole seconds, and a test may take as long as the rest.
const TOLERANCE: Duration = Duration::from_secs(10);

/// The clock of a machine that is ahead of, or behind, the service by always the same.
#[derive(Debug)]
struct Wrong {
    ahead: Duration,
    behind: Duration,
}

impl Clock for Wrong {
    fn now(&self) -> SystemTime {
        SystemTime::now() + self.ahead - self.behind
    }
}

impl Bench {
    /// Opens the storage on a machine whose clock shows `now`.
    pub(super) fn at(&self, now: SystemTime) -> Storage {
        let right = SystemTime::now();
        let ahead = now.duration_since(right).unwrap_or_default();
        let behind = right.duration_since(now).unwrap_or_default();
        self.by(Arc::new(Wrong { ahead, behind }))
    }

    /// Opens the storage on a machine with that clock.
    fn by(&self, clock: Arc<dyn Clock>) -> Storage {
        let options = options(&self.emulator).runtime(Runtime::new().with_clock(clock));
        Storage::from(options.with_blobs_of(&self.blobs).unwrap())
    }

    /// Opens the storage on a machine whose clock shows `now`, and which does not see the service's.
    fn unseen_at(&self, now: SystemTime) -> Storage {
        self.emulator.plant_with("http-get", "undate", json!({ "times": null }));
        self.at(now)
    }

    /// Leaves all requests for settings without an answer. It would show the machine's time, and not the one
    /// to which the emulator's clock was moved.
    pub(super) fn hide_time(&self) -> ServiceFault<'_> {
        self.emulator.plant_with("http-get", "abort", json!({ "times": null }))
    }
}

// A lock seemed to last longer than it does, and was renewed too late.
#[tokio::test]
async fn lock_lasts_no_longer_for_a_clock_that_is_behind() {
    const LOCK: Duration = Duration::from_secs(20);
    for sessions in [false, true] {
        let bench = Bench::with(json!({ "LockDuration": "PT20S", "RequiresSession": sessions }), &[]);
        let behind = bench.unseen_at(SystemTime::now() - MINUTE / 2);
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
    bench.emulator.plant("http-get", "abort");
    let behind = bench.unseen_at(SystemTime::now() - MINUTE / 2);
    behind.queues().put(&bench.queue, PutMessage::new("job")).await.unwrap();
    let asked = Instant::now();
    let granted = bench.get_from(&behind).await.unwrap().granted.unwrap();
    assert!(granted <= Duration::from_secs(20) + asked.elapsed(), "{granted:?}");
}

// The difference of the clock that was wrong was added to the right one: the lease was over, or the renewal
// refused because of its end.
#[tokio::test]
async fn renewal_lasts_for_a_lock_after_the_clock_was_corrected() {
    for sessions in [false, true] {
        let bench = Bench::with(json!({ "LockDuration": "PT20S", "RequiresSession": sessions }), &[]);
        let clock = Arc::new(ManualClock::at(SystemTime::now() - 2 * MINUTE));
        let behind = bench.by(Arc::<ManualClock>::clone(&clock));
        bench.put(PutMessage::new("job").with_ttl(MINUTE)).await.unwrap();
        let leased = bench.get_from(&behind).await.unwrap();
        clock.advance(2 * MINUTE);
        let renewing = behind.queues().update(&bench.queue, &leased.message, UpdateMessage::new(MINUTE / 3));
        let granted = renewing.await.unwrap().granted.unwrap();
        assert!(granted > Duration::from_secs(15), "sessions: {sessions}: {granted:?}");
    }
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
        let fault = bench.hide_time();
        let granted = async || {
            // After so long without a frame the connection may be given up.
            while behind.queues().put(&bench.queue, PutMessage::new("job")).await.is_err() {}
            bench.get_from(&behind).await.unwrap().granted.unwrap()
        };
        assert!(granted().await > MINUTE / 2, "sessions: {sessions}");
        bench.emulator.plant_with("http-get", "undate", json!({ "times": null }));
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
    let behind = bench.unseen_at(SystemTime::now() - MINUTE / 2);
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
    let behind = bench.unseen_at(SystemTime::now() - 20 * MINUTE);
    behind.queues().put(&bench.queue, PutMessage::new("job").with_ttl(5 * MINUTE)).await.unwrap();
    let leased = bench.get().await.unwrap();
    assert!(leased.expires.unwrap() > SystemTime::now() + 4 * MINUTE, "{:?}", leased.expires);
}

// In a session it was kept back again and again, and the log named the blobs as the reason.
#[tokio::test]
async fn message_comes_although_its_lock_is_over_by_a_clock_that_is_ahead() {
    for sessions in [false, true] {
        let bench = Bench::with(json!({ "RequiresSession": sessions }), &[]);
        bench.hide_time();
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
    bench.emulator.advance(Duration::from_secs(10));
    // The clock of this machine does not decide.
    let behind = bench.at(SystemTime::now() - 4 * MINUTE);
    kill(&behind.queue().await.unwrap(), "no").await;
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
    bench.emulator.advance(Duration::from_secs(10));
    let queue: Queue<Work> = bench.another().queue().await.unwrap();
    kill(&queue, "no").await;
    bench.emulator.advance(MINUTE);
    let options = DeadLetterOptions::new().filter(|_| true).before(Some(began)).dry_run(true);
    let letters = queue.dead_letters().unwrap();
    let report = letters.redrive(options.clone()).await.unwrap();
    assert_eq!((report.moved.len(), report.newer), (0, 1), "{report:?}");
    let report = letters.redrive(options.names_messages()).await.unwrap();
    assert_eq!((report.moved.len(), report.newer), (1, 0), "{report:?}");
}

// Its delays and back-offs were over at once, and those of one that is ahead lasted for longer.
#[tokio::test]
async fn delay_and_back_off_last_whatever_the_clock_of_the_machine_shows() {
    for (is_behind, is_refused) in [(true, false), (false, false), (true, true)] {
        let bench = Bench::new();
        if is_refused {
            // A refusal shows the service's time as well.
            bench.emulator.plant_with("http-get", "error", json!({ "status": 401, "times": null }));
        }
        let now = SystemTime::now();
        let wrong = bench.at(if is_behind { now - 2 * MINUTE } else { now + 2 * MINUTE });
        let delayed = PutMessage::new("delayed").with_visibility_delay(MINUTE);
        wrong.queues().put(&bench.queue, delayed).await.unwrap();
        bench.put(PutMessage::new("failed")).await.unwrap();
        let leased = bench.get_from(&wrong).await.unwrap();
        assert_eq!(leased.text.as_deref(), Ok("failed"), "behind: {is_behind}, refused: {is_refused}");
        let back_off = UpdateMessage::new(MINUTE).ending_lease();
        wrong.queues().update(&bench.queue, &leased.message, back_off).await.unwrap();
        assert_eq!(bench.count("scheduled"), 2, "behind: {is_behind}, refused: {is_refused}");
        bench.emulator.advance(MINUTE - TOLERANCE);
        assert_eq!(bench.count("scheduled"), 2, "behind: {is_behind}, refused: {is_refused}");
        bench.emulator.advance(2 * TOLERANCE);
        assert_eq!(bench.count("scheduled"), 0, "behind: {is_behind}, refused: {is_refused}");
    }
}

// The request was given up before its answer came, each minute again.
#[tokio::test]
async fn time_that_the_service_shows_late_counts() {
    let bench = Bench::new();
    bench.emulator.plant_with("http-get", "delay", json!({ "milliseconds": 2_500, "times": null }));
    let behind = bench.at(SystemTime::now() - 2 * MINUTE);
    let put = async || {
        let delayed = || PutMessage::new("delayed").with_visibility_delay(MINUTE);
        // After so long without a frame the connection may be given up.
        while behind.queues().put(&bench.queue, delayed()).await.is_err() {}
    };
    put().await;
    pass(MINUTE + TOLERANCE).await;
    let counted_by_the_service = async {
        while bench.count("scheduled") == 0 {
            put().await;
        }
    };
    timeout(MINUTE / 2, counted_by_the_service).await.expect("the delays are over at once");
}

// Its clock was taken for the service's.
#[tokio::test]
async fn page_of_a_gateway_does_not_set_the_clock() {
    let bench = Bench::new();
    bench.emulator.plant_with("http-get", "page", json!({ "status": 200, "times": null }));
    let behind = bench.at(SystemTime::now() - 2 * MINUTE);
    let delayed = PutMessage::new("delayed").with_visibility_delay(MINUTE);
    behind.queues().put(&bench.queue, delayed).await.unwrap();
    assert_eq!(bench.count("active"), 1, "counted by its own clock");
}

// The copy lived for as much less as its worker's clock was ahead.
#[tokio::test]
async fn message_that_a_machine_ahead_puts_back_keeps_its_time_to_live() {
    let bench = Bench::new();
    bench.put(PutMessage::new("job").with_ttl(MINUTE)).await.unwrap();
    let ahead = bench.at(SystemTime::now() + MINUTE / 2);
    let leased = bench.get_from(&ahead).await.unwrap();
    let back = UpdateMessage::new(Duration::ZERO).with_text("again".to_owned()).ending_lease();
    ahead.queues().update(&bench.queue, &leased.message, back).await.unwrap();
    bench.emulator.advance(MINUTE * 2 / 3);
    assert_eq!(bench.count("active"), 1);
}

// The sender's time was believed: a job that was sent again was taken for the one that had been cancelled
// before, the oldest job seemed old, and a redrive did not know its own jobs.
#[tokio::test]
async fn time_of_insertion_is_the_services() {
    for is_shown in [true, false] {
        let bench = Bench::new();
        if !is_shown {
            bench.hide_time();
        }
        let behind = bench.at(SystemTime::now() - 2 * MINUTE);
        let before = SystemTime::now() - Duration::from_millis(1);
        behind.queues().put(&bench.queue, PutMessage::new("job")).await.unwrap();
        let leased = bench.get().await.unwrap();
        assert!(leased.inserted >= before, "{:?}, and it is {before:?}", leased.inserted);
        let back = UpdateMessage::new(Duration::ZERO).with_text("again".to_owned()).ending_lease();
        bench.update(&leased.message, back).await.unwrap();
        assert_eq!(bench.get().await.unwrap().inserted, leased.inserted);
    }
}

// The request for its earlier life was made after the time that its sender's clock showed.
#[tokio::test]
async fn job_that_a_machine_behind_sends_after_a_cancellation_runs() {
    let bench = Bench::new();
    let admin = Admin::builder(bench.storage.clone()).access(AccessLevel::Operate).operator("ada").build();
    let _ = admin.cancel(&JobReference::new("work", "7")).await.unwrap();
    let behind = bench.unseen_at(SystemTime::now() - 2 * MINUTE);
    behind.queue::<Work>().await.unwrap().send(&work("again")).id("7").await.unwrap();
    let handler = |_: Work| async { Ok::<(), JobError>(()) };
    let worker = Worker::builder(bench.storage.clone()).handle(handler).build().unwrap();
    let report = worker.run_until_idle().await.unwrap();
    assert_eq!((report.completed, report.dead_lettered), (1, 0), "{report:?}");
}

#[tokio::test]
async fn delayed_message_of_a_machine_that_is_behind_was_sent_when_it_was() {
    let bench = Bench::new();
    let behind = bench.at(SystemTime::now() - 2 * MINUTE);
    let before = SystemTime::now();
    behind.queues().put(&bench.queue, PutMessage::new("job").with_visibility_delay(MINUTE)).await.unwrap();
    bench.emulator.advance(MINUTE + TOLERANCE);
    let inserted = bench.get().await.unwrap().inserted;
    assert!(inserted >= before - TOLERANCE && inserted <= SystemTime::now() + TOLERANCE, "{inserted:?}");
}

// A job in the last minutes of its life, and one whose back-off had begun, were judged by the wrong time.
#[tokio::test]
async fn look_of_a_machine_that_is_ahead_shows_what_is_there() {
    let bench = Bench::with(json!({ "RequiresSession": true }), &[]);
    let ahead = bench.at(SystemTime::now() + 5 * MINUTE);
    let texts = async || {
        let shown = ahead.queues().peek(&bench.queue, 10).await.unwrap();
        shown.into_iter().map(|message| message.text.unwrap()).collect::<Vec<_>>()
    };
    bench.put_in("a", "failed").await;
    let leased = bench.get().await.unwrap();
    bench.update(&leased.message, UpdateMessage::new(MINUTE).ending_lease()).await.unwrap();
    assert!(texts().await.is_empty(), "the back-off is over");
    bench.put(PutMessage::new("short").with_ttl(MINUTE)).await.unwrap();
    assert_eq!(texts().await, ["short"]);
}
