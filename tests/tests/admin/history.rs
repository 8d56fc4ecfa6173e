//! The journal of ended jobs: complete, searchable, kept for its time, and never in a job's way.

use std::time::Duration;

use jobqueue::admin::{HistoryFilter, HistoryRecord};
use jobqueue::clock::Clock;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::testing::faults::{Fault, Faulty};
use jobqueue::{JobError, Storage};
use jobqueue_tests::jobs::{Task, after, clock, in_memory, task, worker};

use crate::presence::operator;

const DAY: Duration = Duration::from_secs(86_400);

/// Runs jobs, every third of which dies, on a worker with a journal.
async fn run(storage: &Storage, jobs: u32) {
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..jobs {
        let _ = queue.send(&task(format!("{n}"))).id(format!("job-{n}")).await.unwrap();
    }
    let handler = async |task: Task| match task.name.parse::<u32>().unwrap() % 3 {
        0 => Err(JobError::dead_letter("no such\u{202e} <address>")),
        _ => Ok(()),
    };
    let worker = worker(storage).name("w").history(DAY * 2).handle(handler).build().unwrap();
    let report = worker.run_until(after(60)).await.unwrap();
    assert_eq!(report.completed + report.dead_lettered, u64::from(jobs));
}

async fn found(storage: &Storage, filter: HistoryFilter) -> Vec<HistoryRecord> {
    operator(storage).history(&filter).await.unwrap().jobs
}

#[tokio::test(start_paused = true)]
async fn ended_jobs_are_found_by_id_kind_outcome_and_time() {
    let storage = in_memory();
    assert!(found(&storage, HistoryFilter::new()).await.is_empty());
    run(&storage, 30).await;
    let all = HistoryFilter::new;
    assert_eq!(found(&storage, all()).await.len(), 30);
    assert_eq!(found(&storage, all().outcome("dead_lettered")).await.len(), 10);
    assert_eq!(found(&storage, all().kind("task").queue("tasks").limit(7)).await.len(), 7);
    assert!(found(&storage, all().kind("other")).await.is_empty());
    let [job] = &found(&storage, all().id("job-3")).await[..] else { panic!("one job") };
    assert_eq!((job.reason.as_deref(), job.attempt, job.worker.as_str()), (Some("rejected"), 1, "w"));
    assert!(job.error.as_deref().unwrap().starts_with("no such"));
    assert!(found(&storage, all().until(clock().now() - DAY)).await.is_empty());
    assert_eq!(found(&storage, all().since(clock().now() - DAY)).await.len(), 30);
}

#[tokio::test(start_paused = true)]
async fn history_is_written_in_batches_and_removed_in_time() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    run(&storage, 300).await;
    assert!(faulty.calls_of(Operation::PutBlob) <= 6, "{}", faulty.calls_of(Operation::PutBlob));
    tokio::time::sleep(DAY * 3).await;
    let handler = async |_: Task| Ok::<_, JobError>(());
    let worker = worker(&storage).history(DAY * 2).handle(handler).build().unwrap();
    let _ = worker.run_until(after(60)).await.unwrap();
    assert!(found(&storage, HistoryFilter::new()).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn no_job_notices_that_the_history_cannot_be_written() {
    for fault in
        [Fault::Refuse(StoreErrorKind::Unavailable), Fault::Hang, Fault::DropAnswer(StoreErrorKind::Timeout)]
    {
        let faulty = Faulty::new(&in_memory());
        faulty.plan_always(Operation::PutBlob, fault);
        run(&faulty.storage(), 20).await;
    }
}

#[tokio::test(start_paused = true)]
async fn history_that_could_not_be_written_is_written_later() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    for nth in 1..=2 {
        faulty.plan(Operation::PutBlob, nth, Fault::Refuse(StoreErrorKind::Unavailable));
    }
    run(&storage, 20).await;
    assert_eq!(found(&storage, HistoryFilter::new()).await.len(), 20);
}
