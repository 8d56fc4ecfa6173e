//! The ownership of a message: I5–I9, F7–F11, F22, F23–F40.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::{ExpiredReceipt, GetMessages, MessageRef, Operation, StoreErrorKind, UpdateMessage};
use jobqueue::{Context, JobError, QueueName, Storage, Worker, memory};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Log, Task, after, outcomes, task, worker};

fn tasks() -> QueueName {
    "tasks".parse().unwrap()
}

async fn one(storage: &Storage) -> MessageRef {
    let get = GetMessages::new(1, Duration::from_secs(30));
    let received = storage.queues().get(&tasks(), get).await.unwrap();
    received.messages.into_iter().next().unwrap().message
}

fn update(seconds: u64, text: Option<&str>, expired: ExpiredReceipt) -> UpdateMessage {
    UpdateMessage::new(Duration::from_secs(seconds)).with_text(text.map(str::to_owned)).with_expired(expired)
}

// I5, F23, F24, F25, F39
#[tokio::test(start_paused = true)]
async fn stale_owner_can_do_nothing() {
    let storage = memory::open();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let stale = one(&storage).await;
    after(31).await;
    let successor = one(&storage).await;
    let store = storage.queues();
    for expired in [ExpiredReceipt::Refuse, ExpiredReceipt::Allow] {
        assert!(store.delete(&tasks(), &stale, expired).await.unwrap_err().is_lease_lost(), "complete");
        for change in [update(30, None, expired), update(30, Some("x"), expired), update(0, None, expired)] {
            assert!(store.update(&tasks(), &stale, change).await.unwrap_err().is_lease_lost());
        }
    }
    store.update(&tasks(), &successor, update(30, None, ExpiredReceipt::Refuse)).await.unwrap();
}

// I5, F26, F27
#[tokio::test(start_paused = true)]
async fn expired_receipt_is_refused_unless_it_is_allowed() {
    let storage = memory::open();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let message = one(&storage).await;
    after(31).await;
    let store = storage.queues();
    assert!(
        store
            .update(&tasks(), &message, update(30, None, ExpiredReceipt::Refuse))
            .await
            .unwrap_err()
            .is_lease_lost()
    );
    assert!(store.delete(&tasks(), &message, ExpiredReceipt::Refuse).await.unwrap_err().is_lease_lost());
    store.delete(&tasks(), &message, ExpiredReceipt::Allow).await.unwrap();
    assert!(store.delete(&tasks(), &message, ExpiredReceipt::Allow).await.is_err(), "accepted once");
}

/// Runs one task of `seconds` under `faults`. Returns the outcomes, and whether the handler was cancelled.
pub(super) async fn run_one(faulty: &Faulty, seconds: u64, for_seconds: u64) -> (Vec<String>, Log) {
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    if queue.is_empty().await.unwrap() {
        let _ = queue.send(&task("a")).await.unwrap();
    }
    let runs = Log::default();
    let sink = Arc::clone(&runs);
    let handler = move |_: Task, ctx: Context| {
        let sink = Arc::clone(&sink);
        async move {
            sink.lock().unwrap().push("started".to_owned());
            tokio::select! {
                () = after(seconds) => sink.lock().unwrap().push("ended".to_owned()),
                () = ctx.token().cancelled() => sink.lock().unwrap().push("cancelled".to_owned()),
            }
            Ok::<(), JobError>(())
        }
    };
    let (log, listen) = outcomes();
    let worker = worker(&faulty.storage()).handle(handler).on_event(listen).build().unwrap();
    let _ = worker.run_until(after(for_seconds)).await.unwrap();
    let log = log.lock().unwrap().clone();
    (log, runs)
}

// I6, F7
#[tokio::test(start_paused = true)]
async fn ambiguous_renewal_lets_the_handler_finish_once() {
    let faulty = Faulty::new(&memory::open());
    faulty.plan(Operation::Update, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    let (log, runs) = run_one(&faulty, 40, 300).await;
    assert_eq!(*runs.lock().unwrap(), ["started", "ended"], "neither cancelled nor run again");
    assert_eq!(log, ["completed_uncertain", "duplicate"]);
    assert!(faulty.storage().queue::<Task>().await.unwrap().is_empty().await.unwrap());
}

// I6
#[tokio::test(start_paused = true)]
async fn durable_completion_record_serves_other_workers() {
    let faulty = Faulty::new(&memory::open());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    faulty.plan(Operation::Update, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    let ran: Arc<Mutex<u32>> = Arc::default();
    let mut outcomes_of_both = Vec::new();
    for seconds in [45, 300] {
        let count = Arc::clone(&ran);
        let handler = move |_: Task| {
            *count.lock().unwrap() += 1;
            async {
                after(40).await;
                Ok::<(), JobError>(())
            }
        };
        let (log, listen) = outcomes();
        let worker = worker(&faulty.storage()).durable_completions(true).handle(handler).on_event(listen);
        let _ = worker.build().unwrap().run_until(after(seconds)).await.unwrap();
        outcomes_of_both.extend(log.lock().unwrap().clone());
    }
    assert_eq!(outcomes_of_both, ["completed_uncertain", "duplicate"]);
    assert_eq!(*ran.lock().unwrap(), 1);
}

// I9, F8, F22
#[tokio::test(start_paused = true)]
async fn hanging_renewals_cancel_before_a_successor_starts() {
    let faulty = Faulty::new(&memory::open());
    faulty.plan_always(Operation::Update, Fault::Hang);
    let started = tokio::time::Instant::now();
    let cancelled_at: Arc<Mutex<Option<Duration>>> = Arc::default();
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let at = Arc::clone(&cancelled_at);
    let handler = move |_: Task, ctx: Context| {
        let at = Arc::clone(&at);
        async move {
            ctx.token().cancelled().await;
            at.lock().unwrap().get_or_insert(started.elapsed());
            Ok::<(), JobError>(())
        }
    };
    let (log, listen) = outcomes();
    let worker = worker(&faulty.storage()).handle(handler).on_event(listen).build().unwrap();
    let _ = worker.run_until(after(29)).await.unwrap();
    let at = cancelled_at.lock().unwrap().unwrap();
    assert!(at < Duration::from_secs(30), "fired at {at:?}, the lease ended at 30 s");
    assert_eq!(*log.lock().unwrap(), ["lease_lost"], "success after cancellation is no success (F35)");
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
}

/// Returns the calls of an operation by their time after `started`.
fn times(faulty: &Faulty, operation: Operation, started: tokio::time::Instant) -> Vec<Duration> {
    faulty.calls().into_iter().filter(|c| c.operation == operation).map(|c| c.at - started).collect()
}

// I9, F7
#[tokio::test(start_paused = true)]
async fn unknown_receipt_cancels_before_the_last_lease_ends() {
    let faulty = Faulty::new(&memory::open());
    faulty.plan(Operation::Update, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    let started = tokio::time::Instant::now();
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let runs: Arc<Mutex<Vec<(Duration, Duration)>>> = Arc::default();
    let sink = Arc::clone(&runs);
    let handler = move |_: Task, ctx: Context| {
        let (sink, began) = (Arc::clone(&sink), started.elapsed());
        async move {
            tokio::select! {
                () = ctx.token().cancelled() => {}
                () = after(100) => {}
            }
            sink.lock().unwrap().push((began, started.elapsed()));
            Ok::<(), JobError>(())
        }
    };
    let worker = worker(&faulty.storage()).handle(handler).build().unwrap();
    let report = worker.run_until(after(300)).await.unwrap();
    assert_eq!(report.lease_lost, 1);
    assert_eq!(report.completed, 1);
    let runs = runs.lock().unwrap().clone();
    let over = times(&faulty, Operation::Update, started)[0] + Duration::from_secs(30);
    assert!(runs[0].1 < over && runs[0].1 > over - Duration::from_secs(2), "{runs:?}, {over:?}");
    assert!(runs[1].0 > runs[0].1, "two at once: {runs:?}");
}

// I6, F7
#[tokio::test(start_paused = true)]
async fn job_ending_during_ambiguous_renewal_runs_once() {
    let faulty = Faulty::new(&memory::open());
    // Applied, and repeated: nothing is known of either.
    faulty.plan(Operation::Update, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    faulty.plan(Operation::Update, 2, Fault::DropAnswer(StoreErrorKind::Timeout));
    let (log, runs) = run_one(&faulty, 23, 300).await;
    assert_eq!(faulty.calls_of(Operation::Update), 2, "the handler ends between two renewals");
    assert_eq!(*runs.lock().unwrap(), ["started", "ended"]);
    assert_eq!(log, ["completed_uncertain", "duplicate"]);
}

// I5, F26
#[tokio::test(start_paused = true)]
async fn late_success_is_no_success() {
    let faulty = Faulty::new(&memory::open());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    // Renewals do not get through; the token fires after 29 seconds, the message is visible after 30.
    faulty.plan_always(Operation::Update, Fault::Refuse(StoreErrorKind::Unavailable));
    let handler = |_: Task| async {
        after(35).await;
        Ok::<(), JobError>(())
    };
    let (log, listen) = outcomes();
    let worker = worker(&faulty.storage()).concurrency(1).handle(handler).on_event(listen);
    let worker = worker.cancel_grace(Duration::from_secs(10));
    let _ = worker.build().unwrap().run_until(after(36)).await.unwrap();
    assert_eq!(log.lock().unwrap()[0], "lease_lost");
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
}

// I9, F35
#[tokio::test(start_paused = true)]
async fn message_taken_by_another_is_not_settled() {
    let faulty = Faulty::new(&memory::open());
    faulty.plan_always(Operation::Update, Fault::Refuse(StoreErrorKind::PopReceiptMismatch));
    let (log, runs) = run_one(&faulty, 60, 29).await;
    assert_eq!(*runs.lock().unwrap(), ["started", "cancelled"]);
    assert_eq!(log, ["lease_lost"]);
    assert_eq!(faulty.calls_of(Operation::Delete), 0);
    assert_eq!(faulty.calls_of(Operation::DeleteAll), 0);
}

// I7, F28
#[tokio::test(start_paused = true)]
async fn checkpoint_renewal_and_end_use_one_receipt_in_turn() {
    let faulty = Faulty::new(&memory::open());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    // Every answer takes long, so that renewals and checkpoints meet.
    faulty.plan_always(Operation::Update, Fault::DelayAfter(Duration::from_secs(3)));
    let handler = |_: Task, ctx: Context| async move {
        for n in 0..100 {
            ctx.checkpoint(&n).await?;
        }
        Ok::<(), JobError>(())
    };
    let report = worker(&faulty.storage()).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(report.lease_lost, 0);
}

// F34
#[tokio::test(start_paused = true)]
async fn dropped_worker_leaves_its_messages_to_others() {
    let storage = memory::open();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let ends = Log::default();
    let sink = Arc::clone(&ends);
    let handler = move |_: Task| {
        let sink = Arc::clone(&sink);
        async move {
            after(10).await;
            sink.lock().unwrap().push("ended".into());
            Ok::<(), JobError>(())
        }
    };
    let first = worker(&storage).handle(handler).build().unwrap().run_until(std::future::pending());
    assert!(tokio::time::timeout(Duration::from_secs(5), first).await.is_err());
    after(200).await;
    assert!(ends.lock().unwrap().is_empty(), "the handler went with its worker");
    let report = worker(&storage).handle(|_: Task| async { Ok::<(), JobError>(()) }).build().unwrap();
    assert_eq!(report.run_until_idle().await.unwrap().completed, 1, "the lease was renewed no more");
}

// I10, F34
#[tokio::test(start_paused = true)]
async fn checkpoint_after_the_delivery_ended_is_refused() {
    let storage = memory::open();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let kept: Arc<Mutex<Option<Context>>> = Arc::default();
    let keep = Arc::clone(&kept);
    let handler = move |_: Task, ctx: Context| {
        *keep.lock().unwrap() = Some(ctx);
        async { Ok::<(), JobError>(()) }
    };
    let _ = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    let context = kept.lock().unwrap().take().unwrap();
    assert!(context.checkpoint(&1).await.unwrap_err().is_lease_lost());
}

// Real time, real thread: the handler holds its runtime's only thread for five lease times.
// I8, F32
#[test]
fn handler_that_blocks_its_thread_keeps_its_lease() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("sqlite:{}", folder.path().join("jobs.db").display());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime().block_on(async {
        let storage = Storage::connect(&path).await.unwrap();
        let queue = storage.queue::<Task>().await.unwrap();
        let _ = queue.send(&task("a")).await.unwrap();
        let mut terms = jobqueue::settings::SettingOverrides::default();
        // Renewed after 2.1 s: a busy machine may be 0.9 s late, and the handler still blocks its thread
        // beyond the lease.
        terms.timeout = Some(Duration::from_secs(3));
        let handler = |_: Task, ctx: Context| async move {
            std::thread::sleep(Duration::from_secs(5));
            assert!(!ctx.is_cancelled());
            assert_eq!(ctx.info().dequeue_count, 1);
            Ok::<(), JobError>(())
        };
        // Another worker, on another thread, would take the message the moment it is visible.
        let rival_path = path.clone();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (begin, begun) = std::sync::mpsc::channel::<()>();
        let rival = std::thread::spawn(move || {
            begun.recv().unwrap();
            runtime().block_on(async {
                let storage = Storage::connect(&rival_path).await.unwrap();
                let handler = |_: Task| async { Ok::<(), JobError>(()) };
                let worker = Worker::builder(storage).handle(handler).build().unwrap();
                worker.run_until(async { drop(stopped.await) }).await.unwrap()
            })
        });
        let begin = move |event: &jobqueue::Event| {
            if matches!(event, jobqueue::Event::Started { .. }) {
                let _ = begin.send(());
            }
        };
        let worker =
            Worker::builder(storage).overrides(terms).handle(handler).on_event(begin).build().unwrap();
        let report = worker.run_until_idle().await.unwrap();
        stop.send(()).unwrap();
        assert_eq!(report.completed, 1);
        assert_eq!(report.lease_lost, 0);
        assert_eq!(rival.join().unwrap().completed, 0, "nobody else has had it");
    });
}
