//! A worker leads schedules whose task is blocked, as by a handler or by the function that makes a message,
//! while another thread renews its leases. In paused time on memory.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jobqueue::clock::TokioClock;
use jobqueue::runtime::TaskGate;
use jobqueue::schedule::{CatchUp, Schedule};
use jobqueue::{JobError, Runtime, Storage, Worker};
use jobqueue_tests::jobs::{Task, task};
use serde::{Deserialize, Serialize};
use tokio::task::{Id, JoinHandle};
use tokio::time::{advance, sleep};

const MINUTE: Duration = Duration::from_secs(60);

/// The message that the workers handle, so that tasks stay where the test counts them.
#[derive(Debug, Serialize, Deserialize, jobqueue::QueueMessage)]
#[message(queue = "others", kind = "other")]
struct Other {}

/// Polls a task no more once it has called [`block`](Self::block), until [`go_on`](Self::go_on).
#[derive(Debug, Default)]
struct Blocker(Mutex<Blocked>);

#[derive(Debug, Default)]
struct Blocked {
    task: Option<Id>,
    waker: Option<Waker>,
    is_over: bool,
}

impl Blocker {
    fn block(&self) {
        let mut blocked = self.0.lock().unwrap();
        if !blocked.is_over {
            blocked.task = tokio::task::try_id();
        }
    }

    fn go_on(&self) {
        let mut blocked = self.0.lock().unwrap();
        (blocked.task, blocked.is_over) = (None, true);
        blocked.waker.take().expect("the task was to be polled").wake();
    }
}

impl TaskGate for Blocker {
    fn poll(
        &self,
        context: &mut Context<'_>,
        poll: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Poll<()> {
        let mut blocked = self.0.lock().unwrap();
        if blocked.task.is_some() && blocked.task == tokio::task::try_id() {
            blocked.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        drop(blocked);
        poll(context)
    }
}

/// Runs a worker with these schedules, of which `tick` calls `make`, until the task is aborted.
fn start(storage: Storage, others: &[&str], make: impl Fn() + Send + Sync + 'static) -> JoinHandle<()> {
    let schedule = |name: &str| Schedule::every(MINUTE).name(name).missed(CatchUp::All(20));
    let tick = move || {
        make();
        task("tick")
    };
    let worker = Worker::builder(storage).handle(|_: Other| async { Ok::<_, JobError>(()) });
    let worker = worker.schedule_by(schedule("tick"), tick);
    let worker =
        others.iter().fold(worker, |worker, name| worker.schedule_by(schedule(name), || task("other")));
    let worker = worker.build().unwrap();
    tokio::spawn(async move { drop(worker.run_until(std::future::pending()).await.unwrap()) })
}

/// Receives all messages. Returns the ids of those of `tick`.
async fn ticks(storage: &Storage) -> Vec<String> {
    let queue = storage.queue::<Task>().await.unwrap();
    let mut ids = Vec::new();
    while let Some(delivery) = queue.receive(Duration::ZERO).await.unwrap() {
        ids.push(delivery.info().id.to_string());
        delivery.complete().await.unwrap();
    }
    ids.retain(|id| id.starts_with("schedule/tick/"));
    ids
}

// audit 33, coordination B1
#[tokio::test(start_paused = true)]
async fn schedule_whose_task_is_blocked_is_led_by_another_worker() {
    for others in [&[][..], &["tock"]] {
        let storage = Storage::memory();
        let blocker = Arc::new(Blocker::default());
        let runtime = Runtime::virtual_time(Arc::new(TokioClock::new()));
        let gated = runtime.clone().with_task_gate(Arc::<Blocker>::clone(&blocker));
        let blocks = Arc::clone(&blocker);
        let first = start(storage.clone().with_runtime(gated), others, move || blocks.block());
        sleep(MINUTE + MINUTE / 2).await;
        let second = start(storage.clone().with_runtime(runtime), others, || {});
        sleep(10 * MINUTE).await;
        let sent = ticks(&storage).await;
        assert!(sent.len() >= 10, "{others:?}: the slots wait for the blocked worker: {sent:?}");
        blocker.go_on();
        sleep(3 * MINUTE).await;
        let all: Vec<_> = sent.into_iter().chain(ticks(&storage).await).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "a slot was sent twice: {all:?}");
        assert!(all.len() >= 13, "{others:?}: {all:?}");
        first.abort();
        second.abort();
    }
}

/// Lets time pass within a poll, as a function does that blocks its thread.
fn block_for(time: Duration) {
    // The first poll advances the clock.
    let _ = pin!(advance(time)).poll(&mut Context::from_waker(Waker::noop()));
}

// review 33 b, B1: its message was made in each term again, and no later slot was reached.
#[tokio::test(start_paused = true)]
async fn slot_whose_message_takes_too_long_to_make_is_skipped() {
    let storage = Storage::memory().with_runtime(Runtime::virtual_time(Arc::new(TokioClock::new())));
    let first: Arc<OnceLock<SystemTime>> = Arc::default();
    let blocking = Arc::clone(&first);
    let make = move |slot: SystemTime| {
        if *blocking.get_or_init(|| slot) == slot {
            block_for(MINUTE * 5 / 2);
        }
        task("tick")
    };
    let schedule = Schedule::every(MINUTE).name("tick").missed(CatchUp::All(20));
    let worker = Worker::builder(storage.clone()).handle(|_: Other| async { Ok::<_, JobError>(()) });
    let worker = worker.schedule_with_slot(schedule, make).build().unwrap();
    let _ = worker.run_until(sleep(45 * MINUTE)).await.unwrap();
    let sent = ticks(&storage).await;
    let first = Timestamp::try_from(*first.get().unwrap()).unwrap();
    assert!(!sent.contains(&format!("schedule/tick/{first}")), "{sent:?}");
    assert!(sent.len() >= 20, "{sent:?}");
}
