//! Shards of one account while another account fails, does not answer, or answers slowly.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::sharded::Sharded;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Event, JobError, JobInfo, Storage};
use jobqueue_admin::{AccessLevel, Admin};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};
use tokio::time::Instant;

// C7
#[tokio::test(start_paused = true)]
async fn shards_of_an_account_that_hangs_cost_the_others_no_lease() {
    for (shards, concurrency) in [(64, 8), (128, 64)] {
        no_lease_is_lost(Fault::Hang, shards, concurrency, 300).await;
    }
}

// Each answer comes in time, and all of them together do not.
#[tokio::test(start_paused = true)]
async fn shards_of_an_account_that_is_slow_cost_the_others_no_lease() {
    for delay in [Duration::from_millis(500), Duration::from_secs(4)] {
        no_lease_is_lost(Fault::DelayAfter(delay), 256, 2, 3_600).await;
    }
}

// Its lease had ended before it began.
#[tokio::test(start_paused = true)]
async fn job_in_a_shard_that_is_asked_late_has_its_whole_lease() {
    for place in [0, 85, 170, 255] {
        let account = in_memory();
        let faulty = Faulty::new(&account);
        let sharded = Sharded::builder().shards("tasks", 256).account("one", faulty.storage());
        let storage = Storage::from(sharded.build().unwrap().stores());
        let _ = storage.queue::<Task>().await.unwrap();
        let names = account.queues().list_queues("tasks").await.unwrap();
        let names: Vec<_> = names.into_iter().filter(|name| !name.is_dead_letter()).collect();
        let queue = account.queue_named::<Task>(names[place].as_str()).await.unwrap();
        let _ = queue.send(&task("late")).await.unwrap();
        // A get that asks all shards takes longer than the lease.
        faulty.plan_always(Operation::Get, Fault::DelayAfter(Duration::from_secs(4)));
        let deliveries: Arc<Mutex<Vec<u32>>> = Arc::default();
        let sink = Arc::clone(&deliveries);
        let handler = move |_: Task, info: JobInfo| {
            sink.lock().unwrap().push(info.dequeue_count);
            async { Ok::<_, JobError>(()) }
        };
        let built = worker(&storage).concurrency(8).handle(handler).build().unwrap();
        let report = built.run_until(after(600)).await.unwrap();
        assert_eq!((report.completed, report.lease_lost), (1, 0), "shard {place}: {report:?}");
        assert_eq!(*deliveries.lock().unwrap(), [1], "shard {place}");
    }
}

// round 30, storages 4: they were deleted in one list with those of the other account.
#[tokio::test(start_paused = true)]
async fn jobs_of_an_account_end_while_deletions_hang_on_another() {
    let (well, faulty) = (in_memory(), Faulty::new(&in_memory()));
    let sharded = Sharded::builder().shards("tasks", 4);
    let sharded = sharded.account("one", well.clone()).account("two", faulty.storage()).build().unwrap();
    let storage = Storage::from(sharded.stores());
    let queue = storage.queue::<Task>().await.unwrap();
    for number in 0..40 {
        let _ = queue.send(&task(number.to_string())).await.unwrap();
    }
    let mut of_the_well = 0;
    for name in well.queues().list_queues("tasks").await.unwrap() {
        of_the_well += well.queues().queue_properties(&name).await.unwrap().approximate_count;
    }
    assert!((1..40).contains(&of_the_well), "{of_the_well}");
    for operation in [Operation::Delete, Operation::DeleteAll] {
        faulty.plan_always(operation, Fault::Hang);
    }
    let (ends, started) = (Arc::<Mutex<Vec<Duration>>>::default(), Instant::now());
    let sink = Arc::clone(&ends);
    let listen = move |event: &Event| {
        if matches!(event, Event::Finished { .. }) {
            sink.lock().unwrap().push(started.elapsed());
        }
    };
    let built = worker(&storage).concurrency(64).handle(|_: Task| async { Ok::<_, JobError>(()) });
    let _ = built.on_event(listen).build().unwrap().run_until(after(60)).await.unwrap();
    let ends = ends.lock().unwrap();
    let early = ends.iter().filter(|end| **end < Duration::from_secs(2)).count();
    assert_eq!(early as u64, of_the_well, "{ends:?}");
}

/// They are kept on the first account.
#[tokio::test(start_paused = true)]
async fn settings_that_hang_hold_up_neither_sends_nor_jobs() {
    let faulty = Faulty::new(&in_memory());
    let sharded = Sharded::builder().shards("tasks", 4);
    let sharded = sharded.account("one", faulty.storage()).account("two", in_memory()).build().unwrap();
    let storage = Storage::from(sharded.stores());
    let queue = storage.queue::<Task>().await.unwrap();
    let ended = Arc::new(AtomicU64::new(0));
    let sends = async {
        after(5).await;
        faulty.plan_always(Operation::QueueMetadata, Fault::Hang);
        for number in 0..30 {
            let begun = Instant::now();
            let _ = queue.send(&task(number.to_string())).await.unwrap();
            after(10).await;
            assert!(begun.elapsed() < Duration::from_secs(13), "{:?}", begun.elapsed());
            assert_eq!(ended.load(Ordering::Relaxed), number + 1);
        }
    };
    let sink = Arc::clone(&ended);
    let handler = move |_: Task| {
        sink.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, JobError>(()) }
    };
    let built = worker(&storage).handle(handler).build().unwrap();
    let report =
        tokio::time::timeout(Duration::from_secs(400), built.run_until(sends)).await.unwrap().unwrap();
    assert_eq!(report.completed, 30, "{report:?}");
}

/// Runs a job of each shard of the account without the fault, all within this time.
async fn no_lease_is_lost(fault: Fault, shards: u32, concurrency: usize, seconds: u64) {
    let accounts = [in_memory(), in_memory()];
    let faulty = Faulty::new(&accounts[1]);
    let sharded = Sharded::builder().shards("tasks", shards);
    let sharded =
        sharded.account("one", accounts[0].clone()).account("two", faulty.storage()).build().unwrap();
    let storage = Storage::from(sharded.stores());
    let _ = storage.queue::<Task>().await.unwrap();
    let names = accounts[0].queues().list_queues("tasks").await.unwrap();
    let names: Vec<_> = names.into_iter().filter(|name| !name.is_dead_letter()).collect();
    for name in &names {
        let queue = accounts[0].queue_named::<Task>(name.as_str()).await.unwrap();
        let _ = queue.send(&task(name.as_str())).await.unwrap();
    }
    assert!(names.len() as u32 >= shards / 2, "{names:?}");
    faulty.plan_always(Operation::Get, fault);
    let deliveries: Arc<Mutex<Vec<u32>>> = Arc::default();
    let sink = Arc::clone(&deliveries);
    let handler = move |_: Task, info: JobInfo| {
        sink.lock().unwrap().push(info.dequeue_count);
        async { Ok::<_, JobError>(()) }
    };
    let built = worker(&storage).concurrency(concurrency).handle(handler).build().unwrap();
    let report = built.run_until(after(seconds)).await.unwrap();
    assert_eq!(report.completed, names.len() as u64, "{shards} shards: {report:?}");
    assert_eq!(report.lease_lost, 0, "{shards} shards");
    assert!(deliveries.lock().unwrap().iter().all(|delivery| *delivery == 1), "{shards} shards");
}

/// Returns a storage with shards on two accounts of which one fails all gets, and sends a job to each shard
/// of that one. Returns their number.
async fn with_jobs_where_gets_fail() -> (Storage, Faulty, u64) {
    let (well, faulty) = (in_memory(), Faulty::new(&in_memory()));
    let sharded = Sharded::builder().shards("tasks", 4);
    let sharded = sharded.account("one", well.clone()).account("two", faulty.storage()).build().unwrap();
    let storage = Storage::from(sharded.stores());
    let queue = storage.queue::<Task>().await.unwrap();
    for number in 0..16 {
        let _ = queue.send(&task(number.to_string())).await.unwrap();
    }
    for name in well.queues().list_queues("tasks").await.unwrap() {
        well.queues().clear(&name).await.unwrap();
    }
    let left = queue.approximate_len().await.unwrap();
    faulty.plan_always(Operation::Get, Fault::Refuse(StoreErrorKind::Unavailable));
    assert!(left > 0);
    (storage, faulty, left)
}

// R9-3
#[tokio::test(start_paused = true)]
async fn worker_that_runs_until_idle_waits_for_shards_that_fail() {
    let (storage, faulty, left) = with_jobs_where_gets_fail().await;
    let heal = async {
        after(120).await;
        faulty.heal();
    };
    let built = worker(&storage).handle(|_: Task| async { Ok::<_, JobError>(()) }).build().unwrap();
    let (report, ()) = tokio::join!(built.run_until_idle(), heal);
    assert_eq!(report.unwrap().completed, left);
}

// R9-3
#[tokio::test(start_paused = true)]
async fn operator_who_receives_all_messages_is_not_shown_a_part_as_the_whole() {
    let (storage, faulty, left) = with_jobs_where_gets_fail().await;
    let admin = Admin::builder(storage).access(AccessLevel::Operate).operator("ada").build();
    let error = admin.inspect("tasks", 100).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let heal = async {
        after(5).await;
        faulty.heal();
    };
    let (jobs, ()) = tokio::join!(admin.inspect("tasks", 100), heal);
    assert_eq!(jobs.unwrap().len() as u64, left);
}
