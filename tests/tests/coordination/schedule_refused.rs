//! Leaders whose sends the storage refuses, while it may accept those of other workers. In paused time on
//! memory.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::clock::TokioClock;
use jobqueue::schedule::{CatchUp, Schedule};
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{JobError, QueueMessage, Runtime, Storage, Worker};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, task};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio::time::sleep;

const MINUTE: Duration = Duration::from_secs(60);

/// The message that the workers handle, so that tasks stay where the test counts them.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "others", kind = "other")]
struct Other {}

fn runtime() -> Runtime {
    Runtime::virtual_time(Arc::new(TokioClock::new()))
}

/// Returns the storage as a process has it whose sends are refused.
fn refusing(storage: &Storage) -> Faulty {
    let faulty = Faulty::quiet(storage);
    faulty.plan_always(Operation::Put, Fault::Refuse(StoreErrorKind::Unauthorized));
    faulty
}

/// Runs a worker with these schedules until the task is aborted. No missed slot is sent.
fn start(storage: Storage, runtime: &Runtime, names: &[&str]) -> JoinHandle<()> {
    let schedule = |name: &str| Schedule::every(MINUTE).name(name).missed(CatchUp::Skip);
    let worker = Worker::builder(storage.with_runtime(runtime.clone()))
        .handle(|_: Other| async { Ok::<_, JobError>(()) });
    let worker =
        names.iter().fold(worker, |worker, name| worker.schedule_by(schedule(name), || task("tick")));
    let worker = worker.build().unwrap();
    tokio::spawn(async move { drop(worker.run_until(std::future::pending()).await.unwrap()) })
}

/// Receives all messages. Returns their number.
async fn received(storage: &Storage) -> usize {
    let queue = storage.queue::<Task>().await.unwrap();
    let mut count = 0;
    while let Some(delivery) = queue.receive(Duration::ZERO).await.unwrap() {
        delivery.complete().await.unwrap();
        count += 1;
    }
    count
}

// round 37, b F3
#[tokio::test(start_paused = true)]
async fn schedule_whose_leader_cannot_send_is_led_by_another_worker() {
    for names in [&["tick"][..], &["tick", "tock"]] {
        let (storage, runtime) = (Storage::memory(), runtime());
        let first = start(refusing(&storage).storage(), &runtime, names);
        sleep(MINUTE / 4).await;
        let second = start(storage.clone(), &runtime, names);
        sleep(10 * MINUTE).await;
        let sent = received(&storage).await;
        assert!(sent >= 9 * names.len(), "{names:?}: {sent}");
        first.abort();
        second.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn only_worker_that_could_not_send_loses_no_slot_after_that() {
    let storage = Storage::memory();
    let faulty = refusing(&storage);
    let worker = start(faulty.storage(), &runtime(), &["tick", "tock"]);
    sleep(5 * MINUTE).await;
    faulty.heal();
    sleep(10 * MINUTE).await;
    let sent = received(&storage).await;
    assert!(sent >= 18, "{sent}");
    worker.abort();
}

#[tokio::test(start_paused = true)]
async fn workers_that_cannot_send_take_the_lead_ever_less_often() {
    let (faulty, runtime) = (refusing(&Storage::memory()), runtime());
    let workers = [0, 1].map(|_| start(faulty.storage(), &runtime, &["tick"]));
    sleep(120 * MINUTE).await;
    let attempts = faulty.calls_of(Operation::AcquireLease);
    assert!((4..100).contains(&attempts), "{attempts} attempts to lead");
    workers.iter().for_each(JoinHandle::abort);
}
