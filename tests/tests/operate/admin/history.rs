//! The journal of ended jobs: complete, searchable, kept for its time, and never in a job's way.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::clock::Clock;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{JobError, Runtime, Storage};
use jobqueue_admin::{HistoryFilter, HistoryRecord};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, clock, in_memory, task, worker};

use crate::admin::presence::{Wrong, operator};

const DAY: Duration = Duration::from_secs(86_400);

/// Runs jobs, every third of which dies, on a worker with a journal.
async fn run(storage: &Storage, jobs: u32) {
    run_numbers(storage, 0..jobs).await;
}

async fn run_numbers(storage: &Storage, numbers: std::ops::Range<u32>) {
    let jobs = numbers.end - numbers.start;
    let queue = storage.queue::<Task>().await.unwrap();
    for n in numbers {
        let _ = queue.send(&task(format!("{n}"))).id(format!("job-{n}")).await.unwrap();
    }
    let handler = async |task: Task| {
        let number = task.name.parse::<u32>().unwrap();
        // Some end at one time, others do not.
        tokio::time::sleep(Duration::from_millis(u64::from(number % 10) / 2)).await;
        match number % 3 {
            0 => Err(JobError::dead_letter("no such\u{202e} <address>")),
            _ => Ok(()),
        }
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
    assert!((7..30).contains(&found(&storage, all().kind("task").queue("tasks").limit(7)).await.len()));
    assert!(found(&storage, all().kind("other")).await.is_empty());
    let [job] = &found(&storage, all().id("job-3")).await[..] else { panic!("one job") };
    assert_eq!(job.reason.as_deref(), Some("rejected"));
    assert_eq!(job.attempt, 1);
    assert_eq!(job.worker.as_str(), "w");
    assert!(job.error.as_deref().unwrap().starts_with("no such"));
    assert!(found(&storage, all().until(clock().now() - DAY)).await.is_empty());
    assert_eq!(found(&storage, all().since(clock().now() - DAY)).await.len(), 30);
    assert_eq!(found(&storage, all().error("<address>")).await.len(), 10);
    assert!(found(&storage, all().error("no such file")).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn ended_jobs_are_found_by_key() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for (id, key) in [("a", "ada"), ("b", "grace"), ("c", "ada")] {
        let _ = queue.send(&task(id)).id(id).key(key).await.unwrap();
    }
    let handler = async |_: Task| Ok::<_, JobError>(());
    let worker = worker(&storage).history(DAY).handle(handler).build().unwrap();
    let _ = worker.run_until(after(60)).await.unwrap();
    let jobs = found(&storage, HistoryFilter::new().key("ada")).await;
    let ids: Vec<_> = jobs.iter().map(|job| job.id.as_str()).collect();
    assert!(ids == ["a", "c"] || ids == ["c", "a"], "{ids:?}");
    assert_eq!(jobs[0].key.as_deref(), Some("ada"));
    assert!(found(&storage, HistoryFilter::new().key("alan")).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn ended_jobs_are_counted_by_hour() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let storage = in_memory();
    run(&storage, 30).await;
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("31")).id("late").delay(3 * HOUR).await.unwrap();
    tokio::time::sleep(3 * HOUR).await;
    let handler = async |_: Task| Ok::<_, JobError>(());
    let worker = worker(&storage).history(DAY).handle(handler).build().unwrap();
    let _ = worker.run_until(after(60)).await.unwrap();
    let counts = operator(&storage).count_ended(24, HOUR).await.unwrap();
    assert_eq!(counts.intervals, 24);
    let hours: Vec<_> = counts.queues["tasks"].iter().flatten().collect();
    assert!((4..=5).contains(&hours.len()), "nothing is known of the hours before the first job: {counts:?}");
    // The second run may have begun in the hour before.
    let (before, last) = hours.split_at(hours.len() - 2);
    assert_eq!(before.iter().map(|hour| hour.completed).sum::<u64>(), 20);
    assert_eq!(before.iter().map(|hour| hour.dead_lettered).sum::<u64>(), 10);
    assert_eq!(last.iter().map(|hour| hour.completed).sum::<u64>(), 1);
    let with_the_late_one = hours.iter().filter(|hour| hour.depth == 1).count();
    assert!((3..=4).contains(&with_the_late_one), "{hours:?}");
    assert_eq!(counts.queues.len(), 1, "a queue without a journal is unknown: {counts:?}");
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

/// Returns a storage with the journals of 40 runs of a worker, each of which had ten jobs.
async fn with_forty_journals() -> Faulty {
    let faulty = Faulty::new(&in_memory());
    for run in 0..40 {
        run_numbers(&faulty.storage(), run * 10..run * 10 + 10).await;
    }
    faulty
}

/// Returns the number of blobs that a search reads, and of jobs that it finds.
async fn reads_of(faulty: &Faulty, filter: HistoryFilter) -> (usize, usize) {
    let before = faulty.calls_of(Operation::GetBlob);
    let found = found(&faulty.storage(), filter).await.len();
    (faulty.calls_of(Operation::GetBlob) - before, found)
}

// clocks 29, 9
#[tokio::test(start_paused = true)]
async fn age_of_an_end_counts_by_the_clock_of_the_storage() {
    let storage = in_memory();
    run(&storage, 3).await;
    let five_minutes = Duration::from_secs(300);
    for (younger, older) in [(3, 0), (0, 3)] {
        for by in [-600, 600] {
            let wrong = storage.clone().with_runtime(Runtime::new().with_clock(Arc::new(Wrong(by))));
            let since = HistoryFilter::new().younger_than(five_minutes);
            assert_eq!(found(&wrong, since).await.len(), younger, "{by}");
            let until = HistoryFilter::new().older_than(five_minutes);
            assert_eq!(found(&wrong, until).await.len(), older, "{by}");
        }
        after(600).await;
    }
}

#[tokio::test(start_paused = true)]
async fn search_reads_only_journals_that_can_hold_a_match() {
    let faulty = with_forty_journals().await;
    let all = HistoryFilter::new;
    let lists = faulty.calls_of(Operation::ListBlobs);
    assert_eq!(reads_of(&faulty, all().id("job-137")).await, (40, 1), "nothing is known of the id");
    assert_eq!(faulty.calls_of(Operation::ListBlobs) - lists, 1);
    assert_eq!(reads_of(&faulty, all().outcome("completed_uncertain")).await, (0, 0));
    let (reads, jobs) = reads_of(&faulty, all().outcome("dead_lettered").limit(3)).await;
    assert!(reads <= 8 && jobs >= 3, "{reads} blobs, {jobs} jobs");
    assert_eq!(reads_of(&faulty, all().since(clock().now() + DAY)).await, (0, 0));
    assert_eq!(reads_of(&faulty, all().until(clock().now() - DAY)).await, (0, 0));
    // An id that has the time at which it was made excludes the journals that ended long before.
    let made = clock().now() + Duration::from_secs(2 * 3_600);
    let millis = made.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let id = uuid::Builder::from_unix_timestamp_millis(millis, &[7; 10]).into_uuid().to_string();
    assert_eq!(reads_of(&faulty, all().id(id)).await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn newest_page_reads_few_journals() {
    let faulty = with_forty_journals().await;
    let reads = faulty.calls_of(Operation::GetBlob);
    let page = operator(&faulty.storage()).history(&HistoryFilter::new().limit(15)).await.unwrap();
    assert!(page.jobs.len() >= 15 && faulty.calls_of(Operation::GetBlob) - reads <= 8);
}

/// Reads page after page, and returns the ids of all jobs, sorted.
async fn ids_of_pages(storage: &Storage, filter: &HistoryFilter) -> Vec<String> {
    let (admin, mut ids) = (operator(storage), Vec::new());
    let mut page = admin.history(filter).await.unwrap();
    loop {
        assert!(page.jobs.windows(2).all(|pair| pair[0].ended >= pair[1].ended));
        assert_eq!(page.complete, page.searched_to.is_none());
        ids.extend(page.jobs.into_iter().map(|job| job.id));
        let Some(until) = page.searched_to else { break };
        assert!(ids.len() <= 400, "the search comes to an end");
        let until = until.parse::<jiff::Timestamp>().unwrap().into();
        page = admin.history(&filter.clone().until(until)).await.unwrap();
    }
    ids.sort();
    ids
}

#[tokio::test(start_paused = true)]
async fn pages_neither_repeat_nor_miss_a_job() {
    let faulty = with_forty_journals().await;
    let mut all: Vec<_> = (0..400).map(|n| format!("job-{n}")).collect();
    all.sort();
    for limit in [1, 2, 15, 399, 400] {
        assert_eq!(ids_of_pages(&faulty.storage(), &HistoryFilter::new().limit(limit)).await, all, "{limit}");
    }
    let dead = HistoryFilter::new().outcome("dead_lettered").limit(7);
    assert_eq!(ids_of_pages(&faulty.storage(), &dead).await.len(), 134);
}

/// Two workers whose journals have the same times.
#[tokio::test(start_paused = true)]
async fn older_jobs_of_another_journal_are_not_forgotten() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let handler = async |_: Task| Ok::<_, JobError>(());
    let start = || worker(&storage).concurrency(1).history(DAY).handle(handler).build().unwrap();
    let workers = [start(), start()].map(|worker| tokio::spawn(worker.run_until(after(20))));
    for n in 0..40 {
        let _ = queue.send(&task(format!("{n}"))).id(format!("job-{n}")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for worker in workers {
        let _ = worker.await.unwrap().unwrap();
    }
    for limit in 1..30 {
        assert_eq!(ids_of_pages(&storage, &HistoryFilter::new().limit(limit)).await.len(), 40, "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn last_write_of_a_journal_is_tried_again() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let _ = storage.queue::<Task>().await.unwrap().send(&task("a")).id("a").await.unwrap();
    let handler = async |_: Task| Ok::<_, JobError>(());
    let worker = worker(&storage).presence(None).history(DAY).handle(handler).build().unwrap();
    for nth in 1..=3 {
        faulty.plan(Operation::PutBlob, nth, Fault::Refuse(StoreErrorKind::Unavailable));
    }
    let _ = worker.run_until(after(5)).await.unwrap();
    assert_eq!(found(&storage, HistoryFilter::new().id("a")).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn journal_of_a_killed_worker_is_searched_and_removed() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let handler = async |_: Task| Ok::<_, JobError>(());
    let killed = worker(&storage).history(DAY).handle(handler).build().unwrap();
    let killed = tokio::spawn(killed.run_until(std::future::pending::<()>()));
    let _ = storage.queue::<Task>().await.unwrap().send(&task("a")).id("a").await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    killed.abort();
    let _ = killed.await;
    assert_eq!(found(&storage, HistoryFilter::new().id("a")).await.len(), 1);
    assert!(found(&storage, HistoryFilter::new().id("a").since(clock().now() + DAY)).await.is_empty());
    tokio::time::sleep(DAY * 3).await;
    run(&storage, 1).await;
    assert!(found(&storage, HistoryFilter::new().id("a")).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn journal_costs_the_stated_requests() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let before = faulty.calls_of(Operation::PutBlob);
    let handler = async |_: Task| Ok::<_, JobError>(());
    let worker = worker(&storage).presence(None).history(DAY * 2).handle(handler).build().unwrap();
    let worker = tokio::spawn(worker.run_until(after(86_400)));
    for n in 0..86_400 / 20 {
        let _ = queue.send(&task(format!("{n}"))).await.unwrap();
        tokio::time::sleep(Duration::from_secs(20)).await;
    }
    let _ = worker.await.unwrap().unwrap();
    let puts = faulty.calls_of(Operation::PutBlob) - before;
    // One for every 15 seconds in which a job has ended, and the one that finds no container.
    assert!((4_300..=5_760 + 1).contains(&puts), "{puts}");
}
