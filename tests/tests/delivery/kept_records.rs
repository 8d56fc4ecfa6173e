//! Records outlive sweeps for the time that is promised: 30 days, and as long as the message if that lives
//! for longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::storage::{ContainerName, Operation, StoreErrorKind};
use jobqueue::{Context, JobError, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};
use tokio::time::sleep;

use super::redrive::lengths;
use super::shared_dead_letters::dead_letter_without_deletion;

const DAY: Duration = Duration::from_secs(86_400);

/// The days after which a record is still there, and those after which a sweep has removed it: a sweep waits
/// for one more day.
const AGES: [(u32, bool); 2] = [(29, true), (33, false)];

async fn sweep_after(storage: &Storage, days: u32) {
    sleep(DAY * days).await;
    let _ = sweep(storage, SweepOptions::new()).await.unwrap();
}

/// Runs a job for a minute whose handler has an effect by `once`, and then ends with `error` in its first
/// runs.
async fn charge(storage: &Storage, charges: &Arc<AtomicU32>, error: fn() -> JobError, failing: u64) {
    let charges = Arc::clone(charges);
    let handler = move |_: Task, ctx: Context| {
        let charges = Arc::clone(&charges);
        async move {
            let charge = || async move {
                charges.fetch_add(1, SeqCst);
                Ok::<_, JobError>(())
            };
            ctx.once("charge", charge).await?;
            if ctx.fence() <= failing { Err(error()) } else { Ok(()) }
        }
    };
    let _ = worker(storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn effect_of_a_dead_letter_is_not_repeated_for_thirty_days() {
    for (days, is_kept) in AGES {
        let (storage, charges) = (in_memory(), Arc::default());
        let queue = storage.queue::<Task>().await.unwrap();
        let _ = queue.send(&task("a")).await.unwrap();
        charge(&storage, &charges, || JobError::dead_letter("planted"), 1).await;
        assert_eq!(lengths(&queue).await, (0, 1));
        sweep_after(&storage, days).await;
        let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
        assert_eq!(redriven.moved.len(), 1);
        charge(&storage, &charges, || JobError::dead_letter("planted"), 1).await;
        assert_eq!(lengths(&queue).await, (0, 0));
        assert_eq!(charges.load(SeqCst) == 1, is_kept, "after {days} days");
    }
}

#[tokio::test(start_paused = true)]
async fn effect_of_a_message_that_lives_for_longer_is_not_repeated() {
    let (storage, charges) = (in_memory(), Arc::default());
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).ttl(DAY * 60).await.unwrap();
    charge(&storage, &charges, || JobError::snooze(DAY * 6), 1).await;
    sweep_after(&storage, 59).await;
    charge(&storage, &charges, || JobError::snooze(DAY * 6), 1).await;
    assert_eq!(lengths(&queue).await, (0, 0), "the message was there for its second run");
    assert_eq!(charges.load(SeqCst), 1);
}

// audit 25, core B0
#[tokio::test(start_paused = true)]
async fn effect_of_a_message_that_never_expires_is_not_repeated_while_it_is_delivered() {
    let (storage, charges) = (in_memory(), Arc::default());
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    for _ in 0..11 {
        charge(&storage, &charges, || JobError::snooze(DAY * 6), 10).await;
        sweep_after(&storage, 6).await;
    }
    assert_eq!(lengths(&queue).await, (0, 0));
    assert_eq!(charges.load(SeqCst), 1);
    sweep_after(&storage, 33).await;
    let records = ContainerName::new("jobqueue-once").unwrap();
    assert_eq!(storage.blobs().list_blobs(&records, "", None).await.unwrap().blobs, [], "it is swept");
}

#[tokio::test(start_paused = true)]
async fn completion_that_is_recorded_is_not_repeated_for_thirty_days() {
    for (days, is_kept) in AGES {
        let (faulty, runs) = (Faulty::new(&in_memory()), Arc::<AtomicU32>::default());
        let storage = faulty.storage();
        let _ = storage.queue::<Task>().await.unwrap().send(&task("a")).await.unwrap();
        let run = async || {
            let counted = Arc::clone(&runs);
            let handler = move |_: Task| {
                counted.fetch_add(1, SeqCst);
                async { Ok::<_, JobError>(()) }
            };
            let worker = worker(&storage).durable_completions(true).handle(handler).build().unwrap();
            let _ = worker.run_until(after(10)).await.unwrap();
        };
        for operation in [Operation::Delete, Operation::DeleteAll] {
            faulty.plan_always(operation, Fault::LoseRequest(StoreErrorKind::Unavailable));
        }
        run().await;
        faulty.heal();
        sweep_after(&storage, days).await;
        run().await;
        assert_eq!(lengths(&storage.queue().await.unwrap()).await, (0, 0));
        assert_eq!(runs.load(SeqCst) == 1, is_kept, "after {days} days");
    }
}

#[tokio::test(start_paused = true)]
async fn job_whose_letter_was_purged_does_not_come_back_for_thirty_days() {
    for (days, is_kept) in AGES {
        let faulty = Faulty::new(&in_memory());
        let queue = faulty.storage().queue::<Task>().await.unwrap();
        let _ = queue.send(&task("a")).await.unwrap();
        dead_letter_without_deletion(&faulty).await;
        let all = DeadLetterOptions::new().filter(|_| true);
        assert_eq!(queue.dead_letters().unwrap().purge(all).await.unwrap().deleted.len(), 1);
        sweep_after(&faulty.storage(), days).await;
        assert!(queue.receive(Duration::from_secs(60)).await.unwrap().is_none());
        assert_eq!(lengths(&queue).await, (0, u64::from(!is_kept)), "after {days} days");
    }
}
