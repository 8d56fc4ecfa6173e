//! The children of a batch that have not ended, and its continuation: each is shown where `explain` finds it.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::storage::{Operation, PutMessage};
use jobqueue::{JobError, JobInfo, SendOptions, Storage};
use jobqueue_admin::{JobPlace, JobReference};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};
use tokio::time::Instant;

use crate::admin::explain_turns::WithoutIndex;
use crate::admin::presence::{operator, present};

async fn send_others(storage: &Storage, name: &str) {
    let jobs = (0..40).map(|number| task(format!("{name} {number}")));
    let _ = storage.queue::<Task>().await.unwrap().send_all(jobs).await.unwrap();
}

async fn run(storage: &Storage) {
    let handler = async |job: Task| match job.name.as_str() {
        "fails" => Err::<(), _>(JobError::retry_after(Duration::from_secs(3_600), "later")),
        _ => Err(JobError::dead_letter("tile is missing")),
    };
    let built = present(storage).concurrency(50).circuit_breaker(None).handle(handler).build().unwrap();
    let _ = built.run_until(after(60)).await.unwrap();
}

// newcomers 33, 1: children behind the first 32 messages were `unseen`, and the number of dead ones was `?`.
#[tokio::test(start_paused = true)]
async fn children_behind_the_first_messages_are_where_explain_finds_them() {
    let storage = in_memory();
    let admin = operator(&storage);
    send_others(&storage, "another dies").await;
    run(&storage).await;
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send_all(["is cancelled", "dies", "fails"].map(task)).await.unwrap();
    let _ = admin.cancel(&JobReference::new("tasks", "mosaic/0")).await.unwrap();
    run(&storage).await;
    let delayed = SendOptions::new().delay(Duration::from_secs(3_600));
    batch.send(&task("is delayed")).with(delayed).await.unwrap();
    send_others(&storage, "another waits").await;
    batch.send(&task("waits")).await.unwrap();
    batch.then(&task("join")).await.unwrap();

    let detail = admin.batch("mosaic").await.unwrap();
    let places: Vec<_> = detail.open.iter().map(|child| child.place).collect();
    assert_eq!(places, ["dead", "dead", "backing_off", "delayed", "waiting"]);
    for child in &detail.open {
        let explained = admin.explain(&JobReference::new("tasks", &child.job)).await.unwrap();
        assert_eq!(serde_json::to_value(explained.place).unwrap(), child.place, "{child:?}");
    }
    assert_eq!(detail.dead_text(), "2");
    assert_eq!(detail.open[1].error.as_deref(), Some("tile is missing"));
    assert_eq!(detail.open[1].queue.as_deref(), Some("tasks"));
}

#[tokio::test(start_paused = true)]
async fn search_for_the_children_of_a_batch_is_bounded() {
    let storage = in_memory();
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send(&task("is lost")).await.unwrap();
    let (queue, dead) = ("tasks".parse().unwrap(), "tasks-poison".parse().unwrap());
    storage.queues().clear(&queue).await.unwrap();
    storage.queues().create_queue(&dead, &Metadata::new()).await.unwrap();
    let others: Arc<[_]> = vec![PutMessage::new("{}"); 1_000].into();
    for queue in [&queue, &dead].into_iter().cycle().take(24) {
        assert!(storage.queues().put_all(queue, Arc::clone(&others)).await.iter().all(Result::is_ok));
    }
    // Quiet: only the requests are counted.
    let faulty = Faulty::quiet(&storage);
    let detail = operator(&faulty.storage()).batch("mosaic").await.unwrap();
    assert_eq!(detail.open[0].place, "unseen");
    assert_eq!(detail.dead_text(), "?", "2,000 dead letters were not read");
    // Ten pages of waiting ones in each of both queues, the empty states, and the first messages.
    assert!(faulty.calls_of(Operation::Peek) <= 32, "{}", faulty.calls_of(Operation::Peek));
    // review 33 c, C6: each look at the page of the batch waited for all of them.
    faulty.plan_always(Operation::Peek, Fault::DelayBefore(Duration::from_secs(2)));
    let began = Instant::now();
    let detail = operator(&faulty.storage()).batch("mosaic").await.unwrap();
    assert_eq!(detail.open[0].place, "unseen");
    assert_eq!(detail.dead_text(), "?");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

// review 34 b, C2: all queues were searched before the records of workers were looked at.
#[tokio::test(start_paused = true)]
async fn children_in_the_records_of_workers_cost_no_search() {
    let storage = in_memory();
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send(&task("runs")).await.unwrap();
    batch.then(&task("join")).await.unwrap();
    let backlog = "backlog".parse().unwrap();
    storage.queues().create_queue(&backlog, &Metadata::new()).await.unwrap();
    let others: Arc<[_]> = vec![PutMessage::new("{}"); 1_000].into();
    for _ in 0..3 {
        assert!(storage.queues().put_all(&backlog, Arc::clone(&others)).await.iter().all(Result::is_ok));
    }
    // Quiet: only the requests are counted.
    let faulty = Faulty::quiet(&storage);
    let handler = async |_: Task| std::future::pending::<Result<(), JobError>>().await;
    let running = present(&storage).handle(handler).build().unwrap().run_until(after(100_000));
    let looking = async {
        after(20).await;
        let detail = operator(&faulty.storage()).batch("mosaic").await.unwrap();
        assert_eq!(detail.open[0].place, "running");
        // The first messages and the first dead letters of both queues.
        assert!(faulty.calls_of(Operation::Peek) <= 6, "{}", faulty.calls_of(Operation::Peek));
    };
    tokio::select! {
        biased;
        _ = running => panic!("the job runs"),
        () = looking => {}
    }
}

// review 34, admin C8: the page of the batch lacked the dead letter until the worker wrote its next record.
#[tokio::test(start_paused = true)]
async fn child_that_died_since_its_worker_wrote_its_record_is_dead() {
    let storage = in_memory();
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send(&task("dies")).await.unwrap();
    batch.then(&task("join")).await.unwrap();
    let handler = async |_: Task| {
        after(25).await;
        Err::<(), _>(JobError::dead_letter("tile is missing"))
    };
    let running = present(&storage).handle(handler).build().unwrap().run_until(after(100_000));
    let looking = async {
        let admin = operator(&storage);
        for (seconds, place) in [(20, "running"), (8, "dead")] {
            after(seconds).await;
            let workers = admin.workers().await.unwrap();
            assert_eq!(workers[0].record.running.len(), 1, "the record has the job");
            assert_eq!(admin.batch("mosaic").await.unwrap().open[0].place, place);
        }
    };
    tokio::select! {
        biased;
        _ = running => panic!("the worker runs on"),
        () = looking => {}
    }
}

// Such a child was said to run until its worker wrote its next record, or was not present.
#[tokio::test(start_paused = true)]
async fn child_that_waits_again_since_its_worker_wrote_its_record_is_not_said_to_run() {
    let storage = in_memory();
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send_all(["fails", "is long"].map(task)).await.unwrap();
    batch.then(&task("join")).await.unwrap();
    let handler = async |job: Task| {
        after(if job.name == "fails" { 25 } else { 100_000 }).await;
        Err::<(), _>(JobError::retry_after(Duration::from_secs(3_600), "later"))
    };
    let admin = operator(&storage);
    let places = async || {
        let workers = admin.workers().await.unwrap();
        assert_eq!(workers[0].record.running.len(), 2, "the record has both");
        let detail = admin.batch("mosaic").await.unwrap();
        detail.open.iter().map(|child| child.place).collect::<Vec<_>>()
    };
    let worker = present(&storage).concurrency(2).handle(handler).build().unwrap();
    let mut running = Box::pin(worker.run_until(after(100_000)));
    let looking = async {
        for (seconds, expected) in [(20, ["running", "running"]), (8, ["backing_off", "running"])] {
            after(seconds).await;
            assert_eq!(places().await, expected);
        }
    };
    tokio::select! {
        biased;
        _ = &mut running => panic!("the worker runs on"),
        () = looking => {}
    }
    drop(running);
    // The lease of the killed worker ends after 30 seconds, and its record counts for 45.
    after(29).await;
    assert_eq!(places().await, ["backing_off", "waiting"]);
}

// The list counted a dead child that its page showed as waiting or running.
#[tokio::test(start_paused = true)]
async fn child_with_a_letter_of_an_earlier_message_is_not_dead() {
    let storage = in_memory();
    let admin = operator(&storage);
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send(&task("dies")).await.unwrap();
    batch.then(&task("join")).await.unwrap();
    let queue = "tasks".parse().unwrap();
    let text = storage.queues().peek(&queue, 1).await.unwrap().remove(0).text.unwrap();
    run(&storage).await;
    let dead = async || {
        let (list, detail) = (admin.batches().await.unwrap(), admin.batch("mosaic").await.unwrap());
        (list.batches[0].dead, detail.dead, detail.open[0].place)
    };
    assert_eq!(dead().await, (1, 1, "dead"));
    after(1).await;
    let _ = storage.queues().put(&queue, PutMessage::new(text)).await.unwrap();
    assert_eq!(dead().await, (0, 0, "waiting"));
    let handler = async |_: Task| std::future::pending::<Result<(), JobError>>().await;
    let running = present(&storage).handle(handler).build().unwrap().run_until(after(100_000));
    let looking = async {
        after(20).await;
        assert_eq!(dead().await, (0, 0, "running"));
    };
    tokio::select! {
        biased;
        _ = running => panic!("the job runs"),
        () = looking => {}
    }
}

/// Runs a worker that makes tiles; all other jobs die, a join only at its second attempt. Returns the number
/// of dead letters.
async fn run_tiles(storage: &Storage, seconds: u64) -> u64 {
    let handler = async |job: Task, info: JobInfo| match job.name.as_str() {
        "tile" => Ok(()),
        "join" if info.attempt == 1 => Err(JobError::retry_after(Duration::from_secs(3_600), "later")),
        _ => Err(JobError::dead_letter("no printer")),
    };
    let built = worker(storage).concurrency(50).circuit_breaker(None).handle(handler).build().unwrap();
    built.run_until(after(seconds)).await.unwrap().dead_lettered
}

async fn send_mosaic(storage: &Storage) {
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send(&task("tile")).await.unwrap();
    batch.then(&task("join")).await.unwrap();
}

// newcomers 34 d, 2-2: no dead letter was said to block the batch.
#[tokio::test(start_paused = true)]
async fn continuation_that_is_a_dead_letter_blocks_its_batch() {
    let storage = in_memory();
    let admin = operator(&storage);
    let look = async || {
        let (list, detail) = (admin.batches().await.unwrap(), admin.batch("mosaic").await.unwrap());
        let [listed] = &list.batches[..] else { panic!("{list:?}") };
        (listed.clone(), detail)
    };
    send_mosaic(&storage).await;
    // A job of another sender with the id of the batch is not its continuation.
    let _ = storage.queue::<Task>().await.unwrap().send(&task("other")).id("mosaic").await.unwrap();
    assert_eq!(run_tiles(&storage, 60).await, 1);
    let (listed, detail) = look().await;
    assert_eq!((listed.continuation_is_dead, listed.dead_text().as_str()), (Some(false), "0"));
    assert_eq!(detail.continuation.as_ref().unwrap().place, JobPlace::BackingOff, "{detail:?}");
    assert_eq!((detail.state(), detail.dead_text().as_str()), ("waits for its continuation", "0"));

    assert_eq!(run_tiles(&storage, 7_200).await, 1);
    let (listed, detail) = look().await;
    assert_eq!((listed.continuation_is_dead, listed.dead), (Some(true), 0), "{listed:?}");
    assert_eq!((listed.state(), listed.dead_text().as_str()), ("its continuation is a dead letter", "1"));
    assert_eq!((detail.state(), detail.dead_text().as_str()), ("its continuation is a dead letter", "1"));
    let found = detail.continuation.unwrap();
    assert_eq!((found.place, found.error.as_deref()), (JobPlace::Dead, Some("no printer")));
    assert_eq!((found.job.queue.as_str(), found.job.id.as_str()), ("tasks", "mosaic"));
}

// review 34 c, C5: the batch was said to wait for it, and its dead letters were `?`, for ever.
#[tokio::test(start_paused = true)]
async fn continuation_that_was_purged_is_gone() {
    let storage = in_memory();
    let admin = operator(&storage);
    send_mosaic(&storage).await;
    assert_eq!(run_tiles(&storage, 7_200).await, 1);
    assert!(!admin.batch("mosaic").await.unwrap().continuation.unwrap().is_gone);
    storage.queues().clear(&"tasks-poison".parse().unwrap()).await.unwrap();
    let detail = admin.batch("mosaic").await.unwrap();
    assert_eq!((detail.state(), detail.dead_text().as_str()), ("waits for its continuation", "0"));
    assert!(detail.continuation.unwrap().is_gone);
}

// The journal was searched twice, for longer than the look at a continuation may take.
#[tokio::test(start_paused = true)]
async fn continuation_is_gone_while_the_journal_does_not_answer() {
    let storage = in_memory();
    send_mosaic(&storage).await;
    assert_eq!(run_tiles(&storage, 7_200).await, 1);
    storage.queues().clear(&"tasks-poison".parse().unwrap()).await.unwrap();
    let faulty = Faulty::new(&storage);
    faulty.on(Operation::ListBlobs, |call| call.subject.contains("jobqueue-history").then_some(Fault::Hang));
    let detail = operator(&faulty.storage()).batch("mosaic").await.unwrap();
    assert!(detail.continuation.is_some_and(|found| found.is_gone));
}

#[tokio::test(start_paused = true)]
async fn continuation_behind_the_first_dead_letters_is_not_said_to_be_none() {
    let storage = in_memory();
    let admin = operator(&storage);
    send_others(&storage, "another").await;
    assert_eq!(run_tiles(&storage, 60).await, 40);
    send_mosaic(&storage).await;
    assert_eq!(run_tiles(&storage, 7_200).await, 1);
    let list = admin.batches().await.unwrap();
    let [listed] = &list.batches[..] else { panic!("{list:?}") };
    assert_eq!((listed.continuation_is_dead, listed.dead_text().as_str()), (None, "?"), "{listed:?}");
    assert_eq!(admin.batch("mosaic").await.unwrap().dead_text(), "1");
}

// round 36, G1: the continuation was said to be gone, although it can be behind the letters that were read.
#[tokio::test(start_paused = true)]
async fn continuation_behind_letters_that_were_not_read_is_not_said_to_be_gone() {
    let storage = in_memory();
    send_others(&storage, "another").await;
    assert_eq!(run_tiles(&storage, 60).await, 40);
    send_mosaic(&storage).await;
    assert_eq!(run_tiles(&storage, 7_200).await, 1);
    let admin = operator(&Storage::from(storage.stores().intercepted(&Arc::new(WithoutIndex))));
    let detail = admin.batch("mosaic").await.unwrap();
    let continuation = detail.continuation.as_ref().unwrap();
    assert_eq!((continuation.place, continuation.is_gone), (JobPlace::Unseen, false), "{detail:?}");
    assert_eq!(detail.dead_text(), "?", "{detail:?}");
}
