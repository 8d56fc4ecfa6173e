//! Dead letters of which a redrive or a purge is not the only user: the job is in its queue too, another
//! program wrote the letter, or others hold it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::clock::TokioClock;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::sharded::Sharded;
use jobqueue::storage::{ExpiredReceipt, GetMessages, Operation, PutMessage, StoreErrorKind};
use jobqueue::{Context, ErrorKind, JobError, Reason, Runtime, Storage, memory};
use jobqueue_admin::{Admin, HistoryFilter};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, payloads, runtime, task, worker};

use super::redrive::{finish_all, large, lengths, reject_all};

/// Dead-letters a job whose message is not deleted, as if the worker died between the two.
pub(super) async fn dead_letter_without_deletion(faulty: &Faulty) {
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let delivery = queue.receive(Duration::from_secs(60)).await.unwrap().unwrap();
    faulty.plan_always(Operation::Delete, Fault::LoseRequest(StoreErrorKind::Unavailable));
    let _ = delivery.dead_letter(Reason::REJECTED, "planted").await;
    faulty.heal();
    assert_eq!(lengths(&queue).await, (1, 1), "the job is in both queues");
}

// R1
#[tokio::test(start_paused = true)]
async fn redrive_of_a_job_that_is_in_both_queues_makes_no_second_job() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&large("a")).await.unwrap();
    dead_letter_without_deletion(&faulty).await;
    let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.moved.len(), 1);
    assert_eq!(finish_all(&faulty.storage()).await, (1, 1), "it runs once, with its payload");
    assert_eq!(lengths(&queue).await, (0, 0), "the message that was dead-lettered is no second dead letter");
    assert_eq!(payloads(&faulty.storage()).await, 0);
}

/// The message of a redriven letter is deleted after the job has run.
#[tokio::test(start_paused = true)]
async fn job_of_a_redriven_letter_has_ended_once_in_the_journal() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    dead_letter_without_deletion(&faulty).await;
    let _ = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    let handler = async |_: Task| Ok::<_, JobError>(());
    let built = worker(&storage).history(Duration::from_secs(86_400)).handle(handler).build().unwrap();
    let report = built.run_until(after(900)).await.unwrap();
    assert_eq!((report.completed, report.duplicates, report.dead_lettered), (1, 1, 0), "{report:?}");
    let history = Admin::builder(storage).build().history(&HistoryFilter::new()).await.unwrap();
    let outcomes: Vec<_> = history.jobs.iter().map(|job| job.outcome.as_str()).collect();
    assert_eq!(outcomes, ["completed"]);
}

// R1
#[tokio::test(start_paused = true)]
async fn purge_of_a_job_that_is_in_both_queues_purges_both() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    dead_letter_without_deletion(&faulty).await;
    let purged =
        queue.dead_letters().unwrap().purge(DeadLetterOptions::new().filter(|_| true)).await.unwrap();
    assert_eq!(purged.deleted.len(), 1);
    // Received by hand, it ends in the same way.
    assert!(queue.receive(Duration::from_secs(60)).await.unwrap().is_none());
    assert_eq!(lengths(&queue).await, (0, 0));
}

// R1
#[tokio::test(start_paused = true)]
async fn second_letter_of_one_end_is_a_copy_in_a_later_redrive_too() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    dead_letter_without_deletion(&faulty).await;
    // Held by another program, so that the next delivery does not find it, and adds one.
    let poison = queue.dead_letters().unwrap().name().clone();
    let held = storage.queues().get(&poison, GetMessages::new(1, Duration::from_secs(60))).await.unwrap();
    assert_eq!((held.messages.len(), finish_all(&storage).await.0), (1, 0));
    assert_eq!(lengths(&queue).await, (0, 2));
    let first = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new().limit(1)).await.unwrap();
    assert_eq!((first.moved.len(), finish_all(&storage).await.0), (1, 1));
    let second = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!((second.moved.len(), second.left), (0, 0));
    assert_eq!(finish_all(&storage).await.0, 0, "the job does not run again");
    assert_eq!(lengths(&queue).await, (0, 0));
}

// clocks 29, 11: two letters of one job may be redriven by two machines.
#[tokio::test(start_paused = true)]
async fn fence_of_a_redriven_job_counts_by_the_clock_of_the_storage() {
    let storage = in_memory();
    let ahead = TokioClock::at(storage.runtime().now() + Duration::from_secs(3_600));
    let other = storage.clone().with_runtime(Runtime::virtual_time(Arc::new(ahead)));
    let fences = Arc::<Mutex<Vec<u64>>>::default();
    for machine in [&other, &storage] {
        let queue = machine.queue::<Task>().await.unwrap();
        let _ = queue.send(&task("a")).await.unwrap();
        reject_all(&storage).await;
        let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
        assert_eq!(redriven.moved.len(), 1);
        let sink = Arc::clone(&fences);
        let handler = move |_: Task, ctx: Context| {
            sink.lock().unwrap().push(ctx.fence());
            async { Ok::<_, JobError>(()) }
        };
        let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    }
    let fences = fences.lock().unwrap().clone();
    assert!(fences.len() == 2 && fences[0] < fences[1], "{fences:?}");
}

// L3
#[tokio::test(start_paused = true)]
async fn dead_letters_of_a_part_that_does_not_answer_are_not_left_out() {
    let accounts = [in_memory(), in_memory()];
    let faulty = Faulty::new(&accounts[1]);
    let sharded = Sharded::builder().shards("tasks-poison", 4).account("one", accounts[0].clone());
    let storage = Storage::from(sharded.account("two", faulty.storage()).build().unwrap().stores());
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..20 {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    reject_all(&storage).await;
    let dead_letters = queue.dead_letters().unwrap();
    faulty.plan_always(Operation::Get, Fault::Refuse(StoreErrorKind::Unavailable));
    let error = dead_letters.list().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Storage, true), "{error}");
    faulty.heal();
    after(700).await;
    assert_eq!(dead_letters.list().await.unwrap().letters.len(), 20);
}

// L4
#[tokio::test(start_paused = true)]
async fn job_that_another_program_moved_keeps_its_checkpoint_at_a_redrive() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let handler = async |_: Task, ctx: Context| {
        ctx.checkpoint(&7).await?;
        std::future::pending::<Result<(), JobError>>().await
    };
    let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(5)).await.unwrap();
    // As a WebJobs host does.
    let taken =
        storage.queues().get(queue.name(), GetMessages::new(1, Duration::from_secs(60))).await.unwrap();
    let dead_letters = queue.dead_letters().unwrap();
    storage.queues().create_queue(dead_letters.name(), &Default::default()).await.unwrap();
    let text = taken.messages[0].text.clone().unwrap();
    storage.queues().put(dead_letters.name(), PutMessage::new(text)).await.unwrap();
    let message = &taken.messages[0].message;
    storage.queues().delete(queue.name(), message, ExpiredReceipt::Refuse).await.unwrap();
    assert_eq!(dead_letters.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
    let handler = async |_: Task, ctx: Context| {
        assert_eq!((ctx.info().attempt, ctx.resume::<u32>().await?), (1, Some(7)));
        Ok::<_, JobError>(())
    };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!((report.completed, report.retried), (1, 0));
}

// L5
#[tokio::test(start_paused = true)]
async fn dead_letters_that_others_hold_are_reported_as_unseen() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..3 {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    reject_all(&storage).await;
    let dead_letters = queue.dead_letters().unwrap();
    let hold = GetMessages::new(2, Duration::from_secs(600));
    let held = storage.queues().get(dead_letters.name(), hold).await.unwrap();
    assert_eq!(held.messages.len(), 2);
    let redriven = dead_letters.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!((redriven.moved.len(), redriven.left, redriven.unseen), (1, 0, Some(2)));
    after(600).await;
    let purged = dead_letters.purge(DeadLetterOptions::new().filter(|_| true)).await.unwrap();
    assert_eq!((purged.deleted.len(), purged.unseen), (2, Some(0)));
}

// A list left them out and did not say so.
#[tokio::test(start_paused = true)]
async fn list_counts_dead_letters_that_others_hold() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..3 {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    reject_all(&storage).await;
    let dead_letters = queue.dead_letters().unwrap();
    let hold = GetMessages::new(2, Duration::from_secs(600));
    let held = storage.queues().get(dead_letters.name(), hold).await.unwrap();
    assert_eq!(held.messages.len(), 2);
    let listed = dead_letters.list().await.unwrap();
    assert_eq!(listed.letters.len(), 1);
    assert_eq!(listed.unseen, Some(2));
    after(600).await;
    let visited = dead_letters.for_each(|_| {}).await.unwrap();
    assert_eq!(visited.visited, 3);
    assert_eq!(visited.unseen, Some(0));
}

#[tokio::test(start_paused = true)]
async fn list_counts_dead_letters_that_arrive_meanwhile() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..2 {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    let refuse = async || {
        let delivery = queue.receive(Duration::ZERO).await.unwrap().unwrap();
        delivery.dead_letter(Reason::REJECTED, "planted").await.unwrap();
    };
    refuse().await;
    let slow = Faulty::new(&storage);
    slow.plan(Operation::Get, 2, Fault::DelayBefore(Duration::from_secs(60)));
    let dead_letters = slow.storage().queue::<Task>().await.unwrap().dead_letters().unwrap();
    let meanwhile = async {
        after(30).await;
        refuse().await;
    };
    let (listed, ()) = tokio::join!(dead_letters.list(), meanwhile);
    let listed = listed.unwrap();
    assert_eq!(listed.letters.len(), 1);
    assert_eq!(listed.unseen, Some(1));
}

// L6
#[tokio::test(start_paused = true)]
async fn letter_that_another_pass_may_hold_is_not_put_back() {
    let near = in_memory();
    let queue = near.queue::<Task>().await.unwrap();
    let _ = queue.send(&large("a")).await.unwrap();
    reject_all(&near).await;
    // A pass reads the payload for longer than it holds the letter.
    let faulty = Faulty::new(&near);
    faulty.plan(Operation::GetBlob, 1, Fault::DelayAfter(Duration::from_secs(605)));
    let slow = faulty.storage().queue::<Task>().await.unwrap().dead_letters().unwrap();
    let other = async {
        after(602).await;
        queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap()
    };
    let (slow, other) = tokio::join!(slow.redrive(DeadLetterOptions::new()), other);
    assert_eq!((other.moved.len(), slow.unwrap().moved.len()), (1, 0));
    assert_eq!((lengths(&queue).await, payloads(&near).await), ((1, 0), 1));
}

// L7
#[tokio::test(start_paused = true)]
async fn letter_of_a_second_message_of_the_job_is_counted_as_a_copy() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for _ in 0..2 {
        let _ = queue.send(&task("a")).id("1").await.unwrap();
    }
    reject_all(&storage).await;
    assert_eq!(lengths(&queue).await, (0, 2));
    let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!((redriven.moved.len(), redriven.copies, redriven.unseen), (1, 1, Some(0)));
    assert_eq!(lengths(&queue).await, (1, 0));
}

// review 34, admin B1: the second message of an earlier redrive has a higher fence base than its first.
#[tokio::test(start_paused = true)]
async fn letters_of_a_job_that_an_earlier_redrive_put_back_twice_are_copies() {
    // Quiet: no other call may fail than the planned put.
    let faulty = Faulty::quiet(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    reject_all(&storage).await;
    faulty.plan(Operation::Put, 1, Fault::DropAnswer(StoreErrorKind::Unavailable));
    let dead_letters = queue.dead_letters().unwrap();
    let _ = dead_letters.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(lengths(&queue).await, (2, 0), "the job is put back twice");
    reject_all(&storage).await;
    assert_eq!(lengths(&queue).await, (0, 2));
    let redriven = dead_letters.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!((redriven.moved.len(), redriven.copies, redriven.left), (1, 1, 0), "{redriven:?}");
    assert_eq!(lengths(&queue).await, (1, 0));
}

// round 34, A1: with shards on two servers whose clocks differ, or after a clock was set back, a later letter
// seems to be older than the pass.
#[tokio::test(start_paused = true)]
async fn job_that_dies_again_is_no_copy_whatever_the_clock_says() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..10 {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    reject_all(&storage).await;
    let dead_letters = queue.dead_letters().unwrap();
    let began = storage.runtime().now() + Duration::from_secs(3_600);
    // Slowly, so that jobs die again while the redrive reads on.
    let slowly = DeadLetterOptions::new().per_second(1).before(Some(began));
    let (redriven, ()) = tokio::join!(dead_letters.redrive(slowly), reject_all(&storage));
    let redriven = redriven.unwrap();
    assert_eq!((redriven.moved.len(), redriven.copies), (10, 0), "{redriven:?}");
    assert!(redriven.left > 0, "the redrive met letters of jobs that it had put back");
    assert_eq!(lengths(&queue).await, (0, 10), "each job is a dead letter again");
}

// round 34, A1: the account whose shard is read first gives the time at which the redrive begins.
#[tokio::test(start_paused = true)]
async fn shards_whose_clocks_differ_lose_no_job_that_dies_again() {
    for ahead in [0, 1] {
        let account = |number: u64| {
            let seconds = if number == ahead { 3 } else { 0 };
            let clock = TokioClock::at(runtime().now() + Duration::from_secs(seconds));
            memory::open_on(Runtime::virtual_time(Arc::new(clock)))
        };
        let builder = Sharded::builder().shards("tasks-poison", 4).account("one", account(0));
        let sharded = builder.account("two", account(1)).build().unwrap();
        let storage = Storage::from(sharded.stores()).with_runtime(runtime());
        let queue = storage.queue::<Task>().await.unwrap();
        for n in 0..20 {
            let _ = queue.send(&task(n.to_string())).await.unwrap();
        }
        reject_all(&storage).await;
        let dead_letters = queue.dead_letters().unwrap();
        // In two seconds, within the difference of the clocks.
        let slowly = DeadLetterOptions::new().per_second(10);
        let (redriven, ()) = tokio::join!(dead_letters.redrive(slowly), reject_all(&storage));
        let redriven = redriven.unwrap();
        assert_eq!((redriven.moved.len(), redriven.copies), (20, 0), "{redriven:?}");
        assert_eq!(lengths(&queue).await, (0, 20), "each job is a dead letter again");
    }
}
