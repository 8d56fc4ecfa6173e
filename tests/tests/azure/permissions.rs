//! The guide's table of permissions: each feature runs with exactly the letters that its row names, once its queues and containers
//! exist.

use std::time::Duration;

use jobqueue::leader::Leader;
use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::schedule::Schedule;
use jobqueue::{Context, JobError, QueueMessage, Storage, Worker, WorkerBuilder};
use jobqueue_admin::{AccessLevel, Admin, HistoryFilter, JobReference, ListeningQueue};
use serde::{Deserialize, Serialize};

use super::start::{by_key, by_sas};

const GUIDE: &str = include_str!("../../../jobqueue/src/docs/permissions_and_costs.md");

/// The letters for queues of the guide's first table.
const PRODUCER: &str = "ra";
const WORKER: &str = "raup";

/// Returns the letters that the row of `feature` names, in their order.
fn letters(feature: &str) -> Vec<&'static str> {
    let (_, table) = GUIDE.split_once("# Features").unwrap();
    let row = table.lines().find(|line| line.starts_with(&format!("| {feature}")));
    let row = row.unwrap_or_else(|| panic!("the guide has no row for {feature}"));
    row.split(" | ").nth(1).unwrap().split('`').skip(1).step_by(2).collect()
}

#[derive(Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "steps", kind = "step")]
struct Step {
    #[message(key)]
    key: String,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "ends", kind = "end")]
struct End {}

fn step(key: &str) -> Step {
    Step { key: key.into() }
}

fn unique() -> String {
    format!("permission-{}", uuid::Uuid::new_v4().simple())
}

/// A worker that runs until it is idle.
fn worker(storage: &Storage) -> WorkerBuilder {
    Worker::builder(storage.clone()).presence(None)
}

async fn completed(worker: WorkerBuilder) -> u64 {
    worker.build().unwrap().run_until_idle().await.unwrap().completed
}

async fn accept(_: Step) -> Result<(), JobError> {
    Ok(())
}

#[tokio::test]
async fn unique_work_and_order() {
    let (name, admin) = (unique(), by_key().await);
    let all = admin.queue_named::<Step>(&name).await.unwrap();
    all.send(&step("first")).unique_for(Duration::from_secs(60)).await.unwrap();
    all.send(&step("first")).in_order().await.unwrap();

    let unique = by_sas(PRODUCER, letters("[`unique_for`]")[0]).await;
    let unique = unique.queue_named::<Step>(&name).await.unwrap();
    for is_sent in [true, false] {
        let sent = unique.send(&step("a")).unique_for(Duration::from_secs(60)).await.unwrap();
        assert_eq!(sent.is_sent(), is_sent);
    }
    let cancelling = letters("cancelling by key");
    let cancelling = by_sas(&format!("{PRODUCER}{}", cancelling[1]), cancelling[0]).await;
    let cancelling = cancelling.queue_named::<Step>(&name).await.unwrap();
    assert!(cancelling.cancel_unique("a").await.unwrap());

    let order = letters("[`in_order`]");
    let sender = by_sas(PRODUCER, order[0]).await.queue_named::<Step>(&name).await.unwrap();
    sender.send(&step("b")).in_order().await.unwrap();
    sender.send(&step("b")).in_order().await.unwrap();
    let storage = by_sas(WORKER, order[1]).await;
    assert_eq!(completed(worker(&storage).handle_on(&name, accept)).await, 4);
}

#[tokio::test]
async fn batches_and_recorded_effects() {
    let (name, admin) = (unique(), by_key().await);
    let children = admin.queue_named::<Step>(&name).await.unwrap();
    admin.queue::<End>().await.unwrap();
    let handle = |_: Step, ctx: Context| async move {
        ctx.once("effect", || async { Ok::<_, JobError>(1) }).await?;
        Ok::<(), JobError>(())
    };
    // Makes the containers.
    let mut batch = admin.batch(&unique()).await.unwrap();
    batch.send(&step("x")).to(&children).await.unwrap();
    assert_eq!(completed(worker(&admin).handle_on(&name, handle)).await, 1);

    let rows = letters("a child of a batch");
    let sender = by_sas(PRODUCER, rows[0]).await;
    let mut batch = sender.batch(&unique()).await.unwrap();
    let to = sender.queue_named::<Step>(&name).await.unwrap();
    batch.send_all((0..3).map(|n| step(&n.to_string()))).to(&to).await.unwrap();
    batch.then(&End {}).await.unwrap();
    assert_eq!(letters("[`Context::once`]"), ["rw"], "they are among those of a child");
    let storage = by_sas(WORKER, rows[1]).await;
    assert_eq!(completed(worker(&storage).handle_on(&name, handle)).await, 3);
    let ends = admin.queue::<End>().await.unwrap();
    assert!(ends.approximate_len().await.unwrap() > 0, "the batch goes on");
}

#[tokio::test]
async fn checkpoints_and_durable_completions() {
    let (name, admin) = (unique(), by_key().await);
    let queue = admin.queue_named::<Step>(&name).await.unwrap();
    let handle = |_: Step, ctx: Context| async move {
        ctx.checkpoint(&"c".repeat(40_000)).await?;
        if ctx.info().attempt == 1 {
            return Err(JobError::retry_after(Duration::ZERO, "once more"));
        }
        assert_eq!(ctx.resume::<String>().await?.unwrap().len(), 40_000);
        Ok(())
    };
    let rows = (letters("a checkpoint or step")[0], letters("[`durable_completions`]")[0]);
    for (storage, durable) in
        [(admin.clone(), true), (by_sas(WORKER, rows.0).await, false), (by_sas(WORKER, rows.1).await, true)]
    {
        queue.send(&step("a")).await.unwrap();
        let plain = worker(&storage).durable_completions(durable);
        let done = match durable && !std::ptr::eq(&storage, &admin) {
            true => completed(plain.handle_on(&name, accept)).await,
            false => completed(plain.handle_on(&name, handle)).await,
        };
        assert_eq!(done, 1);
    }
}

#[tokio::test]
async fn schedules_and_leaders() {
    let (name, admin) = (unique(), by_key().await);
    admin.queue::<End>().await.unwrap();
    let first = Leader::new(&admin, unique()).unwrap();
    assert!(first.try_lead().await.unwrap().is_some());

    let leader = by_sas(WORKER, letters("a leadership")[0]).await;
    assert!(Leader::new(&leader, name.clone()).unwrap().try_lead().await.unwrap().is_some());
    let every = |name: &str| Schedule::every(Duration::from_secs(1)).name(name);
    for (storage, name) in [(&admin, unique()), (&by_sas(WORKER, letters("a schedule")[0]).await, unique())] {
        let ends = storage.queue::<End>().await.unwrap();
        let before = ends.approximate_len().await.unwrap();
        let running = worker(storage).schedule_by(every(&name), || End {}).build().unwrap();
        let sent = async {
            while ends.approximate_len().await.unwrap() == before {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let _ =
            tokio::time::timeout(Duration::from_secs(30), running.run_until(sent)).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn records_history_cancellation_and_sweeps() {
    let (name, admin) = (unique(), by_key().await);
    let queue = admin.queue_named::<Step>(&name).await.unwrap();
    let rows = (letters("[the record of a worker]")[0], letters("[`history`]"));
    assert_eq!((rows.1[0], letters("cancelling by id")[0]), (rows.0, rows.0), "one worker needs them all");
    for storage in [admin.clone(), by_sas(WORKER, rows.0).await] {
        queue.send(&step("a")).await.unwrap();
        let sent = queue.send(&step("b")).delay(Duration::from_secs(600)).await.unwrap();
        let recorded =
            worker(&storage).presence(Duration::from_millis(100)).history(Duration::from_secs(3600));
        let running = recorded.handle_on(&name, accept).build().unwrap();
        let operator = Admin::builder(storage.clone()).access(AccessLevel::Operate).build();
        let (operator, queue_name, id) = (&operator, &name, sent.id());
        let listens = |queues: &[ListeningQueue]| queues.iter().any(|queue| queue.name == *queue_name);
        let seen = async move {
            while !operator.workers().await.unwrap().iter().any(|one| listens(&one.record.queues)) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            operator.cancel(&JobReference::new(queue_name, id)).await.unwrap();
        };
        let _ =
            tokio::time::timeout(Duration::from_secs(30), running.run_until(seen)).await.unwrap().unwrap();
    }
    let reader = Admin::new(by_sas("r", rows.1[1]).await);
    assert!(!reader.history(&HistoryFilter::new()).await.unwrap().jobs.is_empty());
    let sweeper = by_sas("r", letters("a [sweep]")[0]).await;
    let _ = sweep(&sweeper, SweepOptions::new()).await.unwrap();
}
