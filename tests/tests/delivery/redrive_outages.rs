//! Passes over dead letters while requests of the pass itself fail, or take long.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::dead_letters::{DeadLetterOptions, RedriveReport};
use jobqueue::storage::{
    GetMessages, Intercepted, Interceptor, Operation, Received, StoreError, StoreErrorKind,
};
use jobqueue::{Queue, QueueName, Reason, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, in_memory, runtime, task};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::redrive::reject_all;

/// Answers late, and counts each lease from the answer, as Service Bus does for a machine whose clock is
/// behind.
#[derive(Debug)]
struct LateAnswers;

impl Interceptor for LateAnswers {
    async fn get<F: Future<Output = Result<Received, StoreError>> + Send>(
        &self,
        _: &QueueName,
        options: GetMessages,
        perform: impl FnOnce(GetMessages) -> F + Send,
    ) -> Result<Received, StoreError> {
        const DELAY: Duration = Duration::from_secs(1);
        let mut received = perform(options).await?;
        sleep(DELAY).await;
        for message in &mut received.messages {
            message.granted = Some(DELAY + options.visibility);
        }
        Ok(received)
    }
}

/// Puts 100 letters into the dead-letter queue.
async fn hundred_letters(storage: &Storage) -> Queue<Task> {
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..100 {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    reject_all(storage).await;
    assert_eq!(queue.dead_letters().unwrap().approximate_len().await.unwrap(), 100);
    queue
}

/// Redrives all while the third request for letters meets these faults, one after the other.
async fn redrive_with(faults: &[Fault], options: DeadLetterOptions) -> RedriveReport {
    let faulty = Faulty::new(&in_memory());
    let queue = hundred_letters(&faulty.storage()).await;
    for (nth, fault) in (3..).zip(faults) {
        faulty.plan(Operation::Get, nth, *fault);
    }
    queue.dead_letters().unwrap().redrive(options).await.unwrap()
}

// Audit 27, operator B2
#[tokio::test(start_paused = true)]
async fn request_for_letters_that_fails_ends_no_pass() {
    let faults = [StoreErrorKind::Unavailable; 2].map(Fault::Refuse);
    for options in [DeadLetterOptions::new(), DeadLetterOptions::new().dry_run(true)] {
        let redriven = redrive_with(&faults, options).await;
        assert_eq!(redriven.moved.len(), 100, "{redriven:?}");
        assert_eq!((redriven.stopped, redriven.unseen), (None, Some(0)));
    }
}

// Audit 27, operator B2
#[tokio::test(start_paused = true)]
async fn third_failure_in_a_row_ends_a_pass() {
    let faults = [StoreErrorKind::Unavailable; 3].map(Fault::Refuse);
    let redriven = redrive_with(&faults, DeadLetterOptions::new()).await;
    assert_eq!((redriven.moved.len(), redriven.unseen), (64, Some(36)), "{redriven:?}");
    assert!(redriven.stopped.is_some());
}

#[tokio::test(start_paused = true)]
async fn letters_behind_a_lost_answer_are_not_passed_over_in_silence() {
    let lost = [Fault::DropAnswer(StoreErrorKind::Timeout)];
    let redriven = redrive_with(&lost, DeadLetterOptions::new()).await;
    assert_eq!((redriven.moved.len(), redriven.unseen), (68, Some(32)), "{redriven:?}");
    assert!(redriven.stopped.unwrap().contains("may have hidden some for up to 10 minutes"));
}

/// The time after which an update of a storage that hangs fails.
const NO_ANSWER: Fault = Fault::DelayBefore(Duration::from_secs(30));

// audit 28, core B1: each held letter was asked for, 16 at a time, for as long as each request took.
#[tokio::test(start_paused = true)]
async fn pass_ends_soon_while_the_storage_hangs() {
    let faulty = Faulty::new(&in_memory());
    let queue = hundred_letters(&faulty.storage()).await;
    faulty.on(Operation::Get, |call| (call.nth > 4).then_some(Fault::Refuse(StoreErrorKind::Unavailable)));
    let mut updates = 0;
    faulty.on(Operation::Update, move |_| {
        updates += 1;
        Some(if updates % 2 == 0 { Fault::Refuse(StoreErrorKind::Unavailable) } else { NO_ANSWER })
    });
    let began = Instant::now();
    let listed = queue.dead_letters().unwrap().list().await;
    assert!(listed.is_err(), "{listed:?}");
    assert!(began.elapsed() < Duration::from_secs(200), "{:?}", began.elapsed());
}

// round 35, E2: after half a minute one refusal left all that were still held invisible for 10 minutes.
#[tokio::test(start_paused = true)]
async fn one_refusal_late_in_a_long_release_hides_no_letter() {
    let inner = in_memory();
    // Quiet: another fault would change the order of the updates.
    let faulty = Faulty::quiet(&inner);
    let queue = hundred_letters(&faulty.storage()).await;
    let mut updates = 0;
    faulty.on(Operation::Update, move |_| {
        updates += 1;
        Some(match updates {
            // Sixteen at a time take 44 seconds. The slot of this one is free while no other has an answer.
            70 => Fault::DelayBefore(Duration::from_secs(10)),
            96 => Fault::Refuse(StoreErrorKind::Unavailable),
            _ => Fault::DelayBefore(Duration::from_secs(7)),
        })
    });
    let began = Instant::now();
    assert_eq!(queue.dead_letters().unwrap().list().await.unwrap().letters.len(), 100);
    assert!(began.elapsed() > Duration::from_secs(40), "{:?}", began.elapsed());
    let visible = inner.queue::<Task>().await.unwrap().dead_letters().unwrap();
    assert_eq!(visible.list().await.unwrap().letters.len(), 100);
}

// audit 28, core B1
#[tokio::test(start_paused = true)]
async fn stop_ends_the_tries_of_a_page() {
    let faulty = Faulty::new(&in_memory());
    let queue = hundred_letters(&faulty.storage()).await;
    faulty.plan_always(Operation::Get, Fault::Throttle(Duration::from_secs(50)));
    let stop = CancellationToken::new();
    let options = DeadLetterOptions::new().stop(stop.clone());
    let letters = queue.dead_letters().unwrap();
    let stopping = async {
        sleep(Duration::from_secs(5)).await;
        stop.cancel();
        Instant::now()
    };
    let redrive = async { (letters.redrive(options).await, Instant::now()) };
    let ((_, ended), stopped) = tokio::join!(redrive, stopping);
    assert!(ended - stopped < Duration::from_secs(5), "{:?}", ended - stopped);
}

// What had died shortly before a pass was taken for newer: lists and redrives left it out.
#[tokio::test(start_paused = true)]
async fn letter_that_is_there_before_a_slow_answer_is_not_newer() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let delivery = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    delivery.dead_letter(Reason::REJECTED, "planted").await.unwrap();
    let queues = Intercepted::queues(Arc::clone(storage.queues().store()), &Arc::new(LateAnswers));
    let late = Storage::new(queues, Arc::clone(storage.blobs()), "late answers").with_runtime(runtime());
    let dead_letters = late.queue::<Task>().await.unwrap().dead_letters().unwrap();
    assert_eq!(dead_letters.list().await.unwrap().letters.len(), 1);
    let redriven = dead_letters.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.moved.len(), 1);
    assert_eq!(redriven.newer, 0);
}
