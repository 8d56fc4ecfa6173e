//! Order by a log under disturbance: repeated sends, cancellations in doubt, outages, open circuits and
//! pauses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::settings::{Metadata, SettingOverrides};
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::worker::CircuitBreaker;
use jobqueue::{Event, JobError, JobInfo, Queue, QueueMessage, Reason, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{after, worker};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};

use crate::order::logged;

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const REFUSED: Fault = Fault::Refuse(StoreErrorKind::Unavailable);

/// The `number`-th job of its key.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(
    queue = "steps",
    kind = "step",
    poison_threshold = 20,
    lease = "30s",
    backoff(base = "1s", max = "5s")
)]
pub(super) struct Step {
    #[message(key)]
    pub(super) of: String,
    pub(super) number: u32,
}

pub(super) fn step(of: impl Into<String>, number: u32) -> Step {
    Step { of: of.into(), number }
}

pub(super) async fn steps(storage: &Storage) -> Queue<Step> {
    storage.queue::<Step>().await.unwrap()
}

/// Notes with the seconds since the start.
#[derive(Clone, Debug)]
pub(super) struct Trail {
    began: Instant,
    notes: Arc<Mutex<Vec<(f64, String)>>>,
}

impl Trail {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), notes: Arc::default() }
    }

    pub(super) fn note(&self, what: impl Into<String>) {
        self.notes.lock().unwrap().push((self.began.elapsed().as_secs_f64(), what.into()));
    }

    /// Returns the time of the first note with this text.
    #[track_caller]
    pub(super) fn at(&self, what: &str) -> f64 {
        let notes = self.notes.lock().unwrap();
        let found = notes.iter().find(|(_, note)| note == what);
        found.unwrap_or_else(|| panic!("{what} is missing in {notes:?}")).0
    }

    /// Returns the most handlers that ran at the same time.
    pub(super) fn most(&self) -> i32 {
        let (mut now, mut most) = (0, 0);
        for (_, note) in &*self.notes.lock().unwrap() {
            now += i32::from(note.starts_with("begin")) - i32::from(note.starts_with("end"));
            most = most.max(now);
        }
        most
    }
}

/// A worker whose jobs number 0 last long, and the notes of it.
pub(super) fn long_first(
    seconds: u32,
    trail: &Trail,
) -> impl Fn(Step) -> BoxFuture<'static, Result<(), JobError>> + Clone + Send + Sync + 'static {
    let log = trail.clone();
    move |step: Step| {
        let log = log.clone();
        Box::pin(async move {
            log.note(format!("begin {}", step.number));
            sleep(SECOND * if step.number == 0 { seconds } else { 1 }).await;
            log.note(format!("end {}", step.number));
            Ok::<_, JobError>(())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn job_sent_again_while_it_runs_does_not_run_beside_itself() {
    let storage = logged();
    let queue = steps(&storage).await;
    let trail = Trail::new();
    let log = trail.clone();
    let handler = move |step: Step, info: JobInfo| {
        let log = log.clone();
        async move {
            log.note(format!("begin {} delivery {}", step.number, info.dequeue_count));
            sleep(SECOND * if step.number == 0 { 60 } else { 1 }).await;
            log.note(format!("end {}", step.number));
            Ok::<_, JobError>(())
        }
    };
    let running = tokio::spawn(worker(&storage).handle(handler).build().unwrap().run_until(after(600)));
    queue.send(&step("a", 0)).in_order().id("j0").await.unwrap();
    sleep(SECOND * 5).await;
    // A relay repeats its send.
    queue.send(&step("a", 0)).in_order().id("j0").await.unwrap();
    queue.send(&step("a", 1)).in_order().await.unwrap();
    let _ = running.await.unwrap().unwrap();
    assert_eq!(trail.most(), 1, "one of the key at a time");
}

#[tokio::test(start_paused = true)]
async fn next_of_a_key_waits_for_the_run_of_a_job_that_was_sent_again() {
    let storage = logged();
    let queue = steps(&storage).await;
    let trail = Trail::new();
    let begun = Arc::new(AtomicBool::new(false));
    let (log, finished) = (trail.clone(), trail.clone());
    let handler = move |step: Step| {
        let (log, begun) = (log.clone(), Arc::clone(&begun));
        async move {
            if step.number == 0 && begun.swap(true, Ordering::SeqCst) {
                // Somebody does it already.
                log.note("copy of 0 returns");
                return Ok(());
            }
            log.note(format!("begin {}", step.number));
            sleep(SECOND * if step.number == 0 { 60 } else { 1 }).await;
            log.note(format!("end {}", step.number));
            Ok::<_, JobError>(())
        }
    };
    let listen = move |event: &Event| {
        if let Event::Finished { outcome, .. } = event {
            finished.note(format!("outcome {}", outcome.as_str()));
        }
    };
    let running = worker(&storage).handle(handler).on_event(listen).build().unwrap();
    let running = tokio::spawn(running.run_until(after(600)));
    queue.send(&step("a", 0)).in_order().id("j0").await.unwrap();
    sleep(SECOND * 5).await;
    queue.send(&step("a", 0)).in_order().id("j0").await.unwrap();
    queue.send(&step("a", 1)).in_order().await.unwrap();
    let _ = running.await.unwrap().unwrap();
    assert!(trail.at("begin 1") >= trail.at("end 0"), "1 begins while 0 runs");
}

#[tokio::test(start_paused = true)]
async fn job_that_waits_for_a_slot_keeps_its_turn_and_goes_to_a_free_worker() {
    let storage = logged();
    let queue = steps(&storage).await;
    let trail = Trail::new();
    let log = trail.clone();
    let handler = move |step: Step| {
        let log = log.clone();
        async move {
            log.note(format!("begin {}{}", step.of, step.number));
            sleep(SECOND * step.number).await;
            log.note(format!("end {}{}", step.of, step.number));
            Ok::<_, JobError>(())
        }
    };
    let full = worker(&storage).concurrency(2).handle(handler.clone()).build().unwrap();
    let full = tokio::spawn(full.run_until(after(4_000)));
    for (of, seconds) in [("a", 10), ("a", 11), ("b", 3_600), ("c", 3_601)] {
        queue.send(&step(of, seconds)).in_order().await.unwrap();
        sleep(SECOND).await;
    }
    sleep(SECOND * 400).await;
    let free = worker(&storage).handle(handler).build().unwrap();
    let free = tokio::spawn(free.run_until(after(3_000)));
    queue.send(&step("a", 12)).in_order().await.unwrap();
    let _ = (full.await.unwrap().unwrap(), free.await.unwrap().unwrap());
    assert!(trail.at("begin c3601") < trail.at("end a10") + 1.0, "the slot of the first goes to another key");
    assert!(trail.at("begin a12") >= trail.at("end a11"), "{trail:?}");
    assert!(trail.at("begin a11") < 700.0, "the free worker runs it: {trail:?}");
}

#[tokio::test(start_paused = true)]
async fn jobs_behind_one_that_kills_its_workers_are_no_dead_letters() {
    let storage = logged();
    let queue = steps(&storage).await;
    let mut terms = SettingOverrides::default();
    terms.max_deliveries = Some(6);
    for number in 0..20 {
        queue.send(&step("a", number)).in_order().await.unwrap();
    }
    let (trail, deaths) = (Trail::new(), queue.dead_letters().unwrap());
    let living = |storage: &Storage| {
        let log = trail.clone();
        let handler = move |step: Step| {
            let log = log.clone();
            async move {
                if step.number == 0 {
                    std::future::pending::<()>().await;
                }
                log.note(format!("begin {}", step.number));
                Ok::<_, JobError>(())
            }
        };
        worker(storage).overrides(terms).handle(handler).build().unwrap()
    };
    // Each dies in the handler of the first, and changes nothing any more.
    for _ in 0..6 {
        let faulty = Faulty::new(&storage);
        let doomed = tokio::spawn(living(&faulty.storage()).run_until(std::future::pending()));
        sleep(SECOND * 20).await;
        Operation::ALL.iter().for_each(|operation| faulty.plan_always(*operation, Fault::Hang));
        doomed.abort();
        sleep(SECOND * 60).await;
    }
    let _ = living(&storage).run_until(after(300)).await.unwrap();
    assert_eq!(deaths.approximate_len().await.unwrap(), 1);
    for number in 1..20 {
        let _ = trail.at(&format!("begin {number}"));
    }
    assert!(queue.is_empty().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn probe_of_a_circuit_is_no_job_that_waits_for_its_turn() {
    let storage = logged();
    let queue = steps(&storage).await;
    let trail = Trail::new();
    let down = Arc::new(AtomicBool::new(true));
    let opened = Arc::new(tokio::sync::Notify::new());
    let (log, is_down) = (trail.clone(), Arc::clone(&down));
    let handler = move |step: Step| {
        let (log, down) = (log.clone(), is_down.load(Ordering::SeqCst));
        async move {
            log.note(format!("run {}{}", step.of, step.number));
            if down { Err(JobError::retry_after(SECOND * 4, "the database is down")) } else { Ok(()) }
        }
    };
    let (tell, events) = (Arc::clone(&opened), trail.clone());
    let listen = move |event: &Event| match event {
        Event::CircuitOpened { .. } => {
            events.note("opened");
            tell.notify_one();
        }
        Event::CircuitClosed { .. } => events.note("closed"),
        _ => {}
    };
    let breaker = CircuitBreaker::new().failures(2).jobs(1).pause(SECOND, SECOND);
    let worker = worker(&storage).circuit_breaker(breaker).handle(handler).on_event(listen).build().unwrap();
    let running = tokio::spawn(worker.run_until(after(1_200)));
    queue.send(&step("a", 0)).in_order().await.unwrap();
    timeout(SECOND * 60, opened.notified()).await.unwrap();
    down.store(false, Ordering::SeqCst);
    trail.note("the database is back");
    queue.send(&step("a", 1)).in_order().await.unwrap();
    queue.send(&step("x", 0)).await.unwrap();
    let _ = running.await.unwrap().unwrap();
    let waited = trail.at("run x0") - trail.at("the database is back");
    assert!(waited < 30.0, "a job without order waited {waited:.0} s for a circuit with a pause of 1 s");
}

/// Azure does.
#[tokio::test(start_paused = true)]
async fn cancellation_in_doubt_skips_no_job_that_runs() {
    let storage = logged();
    let faulty = Faulty::new(&storage);
    let queue = steps(&faulty.storage()).await;
    let trail = Trail::new();
    let built = worker(&faulty.storage()).handle(long_first(300, &trail)).build().unwrap();
    let running = tokio::spawn(built.run_until(after(900)));
    let sent = queue.send(&step("a", 0)).in_order().await.unwrap();
    queue.send(&step("a", 1)).in_order().await.unwrap();
    sleep(SECOND * 5).await;
    trail.at("begin 0");
    faulty.on(Operation::Delete, |call| {
        Some(if call.nth == 1 {
            Fault::LoseRequest(StoreErrorKind::Unavailable)
        } else {
            Fault::Refuse(StoreErrorKind::MessageNotFound)
        })
    });
    let cancelled = queue.cancel(&sent).await;
    trail.note(format!("cancel: {cancelled:?}").chars().take(160).collect::<String>());
    let _ = running.await.unwrap().unwrap();
    assert!(trail.at("begin 1") >= trail.at("end 0"), "1 begins while 0 runs");
}

#[tokio::test(start_paused = true)]
async fn cancellation_that_failed_skips_no_job_that_runs() {
    let storage = logged();
    let faulty = Faulty::new(&storage);
    let queue = steps(&faulty.storage()).await;
    let trail = Trail::new();
    let built = worker(&faulty.storage()).handle(long_first(300, &trail)).build().unwrap();
    let running = tokio::spawn(built.run_until(after(900)));
    let sent = queue.send(&step("a", 0)).in_order().await.unwrap();
    queue.send(&step("a", 1)).in_order().await.unwrap();
    sleep(SECOND * 5).await;
    let blobs = faulty.clone();
    faulty.on(Operation::Delete, move |call| {
        if call.nth == 1 {
            blobs.plan_always(Operation::PutBlob, REFUSED);
        }
        Some(Fault::Refuse(StoreErrorKind::MessageNotFound))
    });
    let cancelled = queue.cancel(&sent).await;
    faulty.heal();
    trail.note(format!("cancel: {cancelled:?}"));
    let _ = running.await.unwrap().unwrap();
    assert!(trail.at("begin 1") >= trail.at("end 0"), "1 begins while 0 runs");
}

#[tokio::test(start_paused = true)]
async fn paused_queue_starts_no_job_that_waits_for_its_turn() {
    let storage = logged();
    let queue = steps(&storage).await;
    for number in 0..200 {
        queue.send(&step("a", number)).in_order().await.unwrap();
    }
    let trail = Trail::new();
    let log = trail.clone();
    let handler = move |step: Step| {
        log.note(format!("begin {}", step.number));
        async {
            sleep(SECOND).await;
            Ok::<_, JobError>(())
        }
    };
    let pause = async {
        sleep(SECOND * 5).await;
        let metadata = Metadata::new().with("paused", "true");
        storage.queues().set_queue_metadata(&"steps".parse().unwrap(), &metadata).await.unwrap();
    };
    let built = worker(&storage).handle(handler).build().unwrap();
    let (report, ()) = tokio::join!(built.run_until(after(600)), pause);
    let _ = report.unwrap();
    let begun = trail.notes.lock().unwrap().len();
    assert!(begun <= 45, "{begun} jobs began on a queue that was paused after 5 s");
}

#[tokio::test(start_paused = true)]
async fn redrive_of_a_job_that_is_in_both_queues_makes_no_second_job_in_order() {
    let storage = logged();
    let faulty = Faulty::new(&storage);
    let queue = steps(&faulty.storage()).await;
    let trail = Trail::new();
    queue.send(&step("a", 0)).in_order().await.unwrap();
    let delivery = queue.receive(SECOND * 60).await.unwrap().unwrap();
    // The dead letter is stored; its message is not deleted, as if the worker died.
    faulty.plan_always(Operation::Delete, Fault::LoseRequest(StoreErrorKind::Unavailable));
    let _ = delivery.dead_letter(Reason::REJECTED, "planted").await;
    faulty.heal();
    let letters = queue.dead_letters().unwrap();
    assert_eq!(letters.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
    queue.send(&step("a", 1)).in_order().await.unwrap();
    let built = worker(&faulty.storage()).handle(long_first(10, &trail)).build().unwrap();
    let report = built.run_until(after(1_200)).await.unwrap();
    // The message that was dead-lettered is deleted without a run; no letter is added.
    assert_eq!((report.completed, report.duplicates, report.dead_lettered), (2, 1, 0));
    assert_eq!((trail.most(), letters.is_empty().await.unwrap()), (1, true));
}
