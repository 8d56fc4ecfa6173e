//! Blobs that cannot be read or written for a while: this costs no attempt, and no message is dead-lettered.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::{ContainerName, Operation, StoreErrorKind};
use jobqueue::{Context, JobError, JobInfo, Report, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, worker};

/// The errors of reads during an outage.
const OUTAGES: [StoreErrorKind; 4] = [
    StoreErrorKind::Unavailable,
    StoreErrorKind::Throttled,
    StoreErrorKind::Timeout,
    StoreErrorKind::Unauthorized,
];

fn heal_after(faulty: &Faulty, seconds: u64) {
    let faulty = faulty.clone();
    tokio::spawn(async move {
        after(seconds).await;
        faulty.heal();
    });
}

async fn dead_letters(storage: &Storage) -> u64 {
    storage.queue::<Task>().await.unwrap().dead_letters().unwrap().approximate_len().await.unwrap()
}

// B5
#[tokio::test(start_paused = true)]
async fn a_payload_that_cannot_be_read_costs_no_attempt() {
    for (kind, jobs) in OUTAGES.into_iter().flat_map(|kind| [(kind, 1), (kind, 200)]) {
        let faulty = Faulty::new(&in_memory());
        let storage = faulty.storage();
        let queue = storage.queue::<Task>().await.unwrap();
        for job in 0..jobs {
            let large = Task { name: job.to_string(), data: "x".repeat(100_000) };
            let _ = queue.send(&large).await.unwrap();
        }
        faulty.plan_always(Operation::GetBlob, Fault::Refuse(kind));
        heal_after(&faulty, 60);
        let attempts: Arc<Mutex<Vec<u32>>> = Arc::default();
        let sink = Arc::clone(&attempts);
        let handler = move |_: Task, info: JobInfo| {
            sink.lock().unwrap().push(info.attempt);
            async { Ok::<(), JobError>(()) }
        };
        let report = worker(&storage).handle(handler).build().unwrap().run_until(after(300)).await.unwrap();
        assert_eq!(report.completed, jobs, "{kind:?}");
        assert_eq!(report.retried, 0, "{kind:?}");
        assert_eq!(report.dead_lettered, 0, "{kind:?}");
        assert!(attempts.lock().unwrap().iter().all(|attempt| *attempt == 1));
        assert_eq!(dead_letters(&storage).await, 0, "{kind:?}");
    }
}

// B5, in `receive`.
#[tokio::test(start_paused = true)]
async fn receiving_by_hand_waits_for_a_payload_too() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&Task { name: "a".into(), data: "x".repeat(100_000) }).await.unwrap();
    faulty.plan_always(Operation::GetBlob, Fault::Refuse(StoreErrorKind::Unauthorized));
    heal_after(&faulty, 60);
    let delivery = queue.receive(Duration::from_secs(300)).await.unwrap().unwrap();
    assert_eq!(delivery.info().attempt, 1);
    assert_eq!(delivery.message().data.len(), 100_000);
    assert_eq!(dead_letters(&storage).await, 0);
}

// D6
#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_cannot_be_read_costs_no_attempt() {
    for kind in OUTAGES {
        let faulty = Faulty::new(&in_memory());
        let storage = faulty.storage();
        let _ = storage.queue::<Task>().await.unwrap().send(&jobqueue_tests::jobs::task("a")).await.unwrap();
        let (plan, seen) = (faulty.clone(), Arc::new(Mutex::new(Vec::new())));
        let sink = Arc::clone(&seen);
        let handler = move |_: Task, ctx: Context| {
            let (plan, sink) = (plan.clone(), Arc::clone(&sink));
            async move {
                let saved = ctx.resume::<String>().await?;
                sink.lock().unwrap().push((ctx.info().attempt, saved.as_ref().map(String::len)));
                if saved.is_some() {
                    return Ok(());
                }
                ctx.checkpoint(&"p".repeat(50_000)).await?;
                plan.plan_always(Operation::GetBlob, Fault::Refuse(kind));
                heal_after(&plan, 60);
                Err(JobError::retry("once"))
            }
        };
        let report = worker(&storage).handle(handler).build().unwrap().run_until(after(300)).await.unwrap();
        assert_eq!(*seen.lock().unwrap(), [(1, None), (2, Some(50_000))], "{kind:?}");
        assert_eq!(report.completed, 1, "{kind:?}");
        assert_eq!(report.retried, 1, "{kind:?}");
    }
}

// D6, by hand.
#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_cannot_be_read_is_a_retryable_error() {
    for kind in OUTAGES {
        let faulty = Faulty::new(&in_memory());
        let queue = faulty.storage().queue::<Task>().await.unwrap();
        let _ = queue.send(&jobqueue_tests::jobs::task("a")).await.unwrap();
        let delivery = queue.receive(Duration::ZERO).await.unwrap().unwrap();
        delivery.checkpoint(&"p".repeat(50_000)).await.unwrap();
        delivery.release(Duration::ZERO).await.unwrap();
        let delivery = queue.receive(Duration::from_secs(10)).await.unwrap().unwrap();
        faulty.plan_always(Operation::GetBlob, Fault::Refuse(kind));
        let error = delivery.resume::<String>().await.unwrap_err();
        assert!(error.is_retryable() && error.kind() == jobqueue::ErrorKind::Storage, "{error:?}");
        faulty.heal();
        assert_eq!(delivery.resume::<String>().await.unwrap().unwrap().len(), 50_000);
    }
}

type Call = fn(Context) -> futures_util::future::BoxFuture<'static, Result<(), JobError>>;

/// Runs a job that makes `call` while blobs are refused for some seconds. Returns the attempts that began,
/// and the report.
async fn through_outage(call: Call, seconds: u64) -> (Vec<u32>, Report) {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let _ = storage.queue::<Task>().await.unwrap().send(&jobqueue_tests::jobs::task("a")).await.unwrap();
    let attempts: Arc<Mutex<Vec<u32>>> = Arc::default();
    let sink = Arc::clone(&attempts);
    let handler = move |_: Task, ctx: Context| {
        sink.lock().unwrap().push(ctx.info().attempt);
        call(ctx)
    };
    faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unavailable));
    faulty.plan_always(Operation::GetBlob, Fault::Refuse(StoreErrorKind::Unavailable));
    heal_after(&faulty, seconds);
    let built = worker(&storage).circuit_breaker(None).handle(handler).build().unwrap();
    let report = built.run_until(after(seconds + 300)).await.unwrap();
    let attempts = attempts.lock().unwrap().clone();
    (attempts, report)
}

const CHECKPOINT: Call =
    |ctx| Box::pin(async move { Ok(ctx.checkpoint(&"p".repeat(50_000)).await.map(drop)?) });

// C19
#[tokio::test(start_paused = true)]
async fn an_outage_that_a_handler_notices_costs_no_attempt() {
    let once: Call = |ctx| Box::pin(async move { ctx.once("e", || async { Ok::<_, JobError>(()) }).await });
    let send: Call = |ctx| {
        Box::pin(async move {
            if ctx.info().headers.contains_key("follows") {
                return Ok(());
            }
            let large = Task { name: "b".into(), data: "x".repeat(100_000) };
            ctx.queue::<Task>().await?.send(&large).header("follows", "a").await?;
            Ok(())
        })
    };
    // The log of the key is shared by several sends, and so is its error.
    let ordered: Call = |ctx| {
        Box::pin(async move {
            if !ctx.info().headers.contains_key("follows") {
                let next = jobqueue_tests::jobs::task("b");
                ctx.queue::<Task>().await?.send(&next).in_order().header("follows", "a").await?;
            }
            Ok(())
        })
    };
    let calls = [("checkpoint", CHECKPOINT), ("once", once), ("send", send), ("ordered", ordered)];
    for (name, call) in calls {
        let (attempts, report) = through_outage(call, 600).await;
        assert!(attempts.len() > 3, "{name}: {attempts:?}");
        assert!(attempts.iter().all(|attempt| *attempt == 1), "{name}: {attempts:?}");
        assert_eq!(report.retried, 0, "{name}");
        assert_eq!(report.dead_lettered, 0, "{name}");
        assert!(report.completed > 0, "{name}");
    }
}

// C19
#[tokio::test(start_paused = true)]
async fn an_outage_that_a_handler_notices_costs_an_attempt_after_a_day() {
    let (attempts, report) = through_outage(CHECKPOINT, 90_000).await;
    assert_eq!(attempts.last(), Some(&2));
    assert_eq!(report.retried, 1, "{report:?}");
    assert_eq!(report.completed, 1, "{report:?}");
}

// Round 29, core 5: the day ended while the delivery waited for the record, and the job was a dead letter.
#[tokio::test(start_paused = true)]
async fn day_of_an_outage_that_ends_during_a_record_costs_one_attempt() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let _ = storage.queue::<Task>().await.unwrap().send(&jobqueue_tests::jobs::task("a")).await.unwrap();
    // Writes fail, so that each delivery waits for 15 minutes for the record of its effect.
    faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unavailable));
    heal_after(&faulty, 90_000);
    let deliveries = Arc::<Mutex<u32>>::default();
    let count = Arc::clone(&deliveries);
    let handler = move |_: Task, ctx: Context| {
        *count.lock().unwrap() += 1;
        async move {
            let effect = async || Ok::<_, JobError>(());
            let saved = async {
                // The effect is over by then.
                after(1).await;
                Ok::<_, JobError>(ctx.checkpoint(&"p".repeat(50_000)).await.map(drop)?)
            };
            tokio::try_join!(saved, ctx.once("effect", effect)).map(drop)
        }
    };
    let built = worker(&storage).circuit_breaker(None).handle(handler).build().unwrap();
    let report = built.run_until(after(93_600)).await.unwrap();
    assert!(*deliveries.lock().unwrap() < 200, "they wait for the record");
    assert_eq!((report.retried, report.completed, report.dead_lettered), (1, 1, 0), "{report:?}");
}

/// An error of the application that an outage has caused.
#[derive(Debug)]
struct NoReceipt(jobqueue::Error);

impl fmt::Display for NoReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no receipt")
    }
}

impl std::error::Error for NoReceipt {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

// C19
#[tokio::test(start_paused = true)]
async fn errors_of_the_application_cost_attempts_during_an_outage() {
    let wrapped: Call = |ctx| {
        Box::pin(async move { Ok(ctx.checkpoint(&"p".repeat(50_000)).await.map(drop).map_err(NoReceipt)?) })
    };
    let made: Call = |_| {
        let error = jobqueue::Error::new(jobqueue::ErrorKind::Storage, "my own").with_retryable(true);
        Box::pin(async move { Err(error.into()) })
    };
    let decided: Call = |ctx| {
        Box::pin(async move {
            let failed = ctx.checkpoint(&"p".repeat(50_000)).await;
            failed.map(drop).map_err(|error| JobError::retry_after(Duration::from_secs(1), error))
        })
    };
    for (name, call) in [("wrapped", wrapped), ("made", made), ("decided", decided)] {
        let (attempts, report) = through_outage(call, 600).await;
        assert_eq!(attempts, [1, 2, 3], "{name}");
        assert_eq!(report.dead_lettered, 1, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_is_shown_again_within_its_grace_runs() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&Task { name: "a".into(), data: "x".repeat(100_000) }).await.unwrap();
    faulty.plan_always(Operation::GetBlob, Fault::Refuse(StoreErrorKind::BlobNotFound));
    heal_after(&faulty, 200);
    let handler = |_: Task| async { Ok::<(), JobError>(()) };
    let report = worker(&storage).handle(handler).build().unwrap().run_until(after(600)).await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(report.dead_lettered, 0);
}

// No sweep removes it while a dead letter is left in the queue.
#[tokio::test(start_paused = true)]
async fn payload_is_removed_although_its_first_deletion_is_throttled() {
    let storage = in_memory();
    let faulty = Faulty::new(&storage);
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    queue.send(&Task { name: "large".into(), data: "x".repeat(100_000) }).await.unwrap();
    faulty.plan(Operation::DeleteBlob, 1, Fault::Throttle(Duration::from_secs(1)));
    let handler = |_: Task| async { Ok::<_, JobError>(()) };
    let built = worker(&faulty.storage()).handle(handler).build().unwrap();
    let report = built.run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1, "{report:?}");
    let payloads = ContainerName::new("jobqueue-payloads").unwrap();
    let left = storage.blobs().list_blobs(&payloads, "", None).await.unwrap();
    assert_eq!(left.blobs, []);
}

// The first upload of each payload is refused, and the second takes a second: one after the other they would
// not all have a second in time.
#[tokio::test(start_paused = true)]
async fn payloads_of_a_list_are_tried_again_however_many_they_are() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let mut refused = HashSet::new();
    faulty.on(Operation::PutBlob, move |call| {
        Some(match refused.insert(call.subject.clone()) {
            true => Fault::Refuse(StoreErrorKind::Unavailable),
            false => Fault::DelayBefore(Duration::from_secs(1)),
        })
    });
    let large = |n: u32| Task { name: n.to_string(), data: "x".repeat(70_000) };
    let tasks: Vec<Task> = (0..64).map(large).collect();
    let begun = tokio::time::Instant::now();
    let refused = queue.send_all(&tasks).await.unwrap().into_iter().filter_map(Result::err).count();
    assert_eq!(refused, 0);
    assert!(begun.elapsed() < Duration::from_secs(30), "they are uploaded one by one: {:?}", begun.elapsed());
    assert_eq!(queue.approximate_len().await.unwrap(), 64);
}

// A slow line: the list takes longer than a send, and each payload has its own time.
#[tokio::test(start_paused = true)]
async fn payload_that_comes_late_in_a_list_is_tried_again() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let mut uploads = 0;
    faulty.on(Operation::PutBlob, move |_| {
        uploads += 1;
        Some(match uploads {
            39 => Fault::Refuse(StoreErrorKind::Unavailable),
            _ => Fault::DelayBefore(Duration::from_secs(10)),
        })
    });
    faulty.plan(Operation::PutAll, 1, Fault::Refuse(StoreErrorKind::Unavailable));
    let tasks: Vec<_> = (0..40).map(|n| Task { name: n.to_string(), data: "x".repeat(70_000) }).collect();
    let refused = queue.send_all(&tasks).await.unwrap().into_iter().find_map(Result::err);
    assert!(refused.is_none(), "{refused:?}");
}

// audit 23, sending C4
#[tokio::test(start_paused = true)]
async fn message_of_a_payload_that_took_long_has_its_own_time() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    faulty.plan(Operation::PutBlob, 1, Fault::DelayBefore(Duration::from_secs(40)));
    faulty.plan(Operation::Put, 1, Fault::Throttle(Duration::from_secs(2)));
    queue.send(&Task { name: "a".to_owned(), data: "x".repeat(70_000) }).await.unwrap();
}

// Each that fails takes none of the time of the others: an outage does not last as many sends as the list has
// payloads.
#[tokio::test(start_paused = true)]
async fn list_of_payloads_is_given_up_in_the_time_of_a_send() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    faulty.plan_always(Operation::PutBlob, Fault::Throttle(Duration::from_secs(1)));
    let began = tokio::time::Instant::now();
    let tasks: Vec<_> = (0..40).map(|n| Task { name: n.to_string(), data: "x".repeat(70_000) }).collect();
    assert!(queue.send_all(&tasks).await.unwrap().iter().all(Result::is_err));
    assert!(began.elapsed() < Duration::from_secs(45), "{:?}", began.elapsed());
}

/// Each request takes as long as the time of a send.
#[tokio::test(start_paused = true)]
async fn list_is_given_up_in_the_time_of_a_send_if_the_storage_does_not_answer() {
    let operations = [Operation::Put, Operation::PutAll, Operation::PutBlob];
    let losing = Faulty::new(&in_memory());
    let storage = losing.storage();
    for (slow, bytes, count) in
        [(Faulty::deleting_one_by_one(&storage), 0, 1_000), (Faulty::new(&storage), 70_000, 40)]
    {
        losing.heal();
        let queue = slow.storage().queue::<Task>().await.unwrap();
        for operation in operations {
            slow.plan_always(operation, Fault::DelayBefore(Duration::from_secs(30)));
            losing.plan_always(operation, Fault::LoseRequest(StoreErrorKind::Timeout));
        }
        let task = Task { name: "a".to_owned(), data: "x".repeat(bytes) };
        let began = tokio::time::Instant::now();
        let sent = queue.send_all(vec![&task; count]).await.unwrap();
        assert_eq!(sent.len(), count);
        assert!(sent.iter().all(Result::is_err));
        assert!(began.elapsed() < Duration::from_secs(65), "{count} of {bytes}: {:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn job_whose_payload_comes_after_the_stop_does_not_begin() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let large = Task { name: "a".to_owned(), data: "x".repeat(100_000) };
    let _ = storage.queue::<Task>().await.unwrap().send(&large).await.unwrap();
    faulty.plan_always(Operation::GetBlob, Fault::DelayBefore(Duration::from_millis(5_500)));
    let handler = async |_: Task| Ok::<(), JobError>(());
    let report = worker(&storage).handle(handler).build().unwrap().run_until(after(5)).await.unwrap();
    assert_eq!((report.completed, report.released), (0, 1), "{report:?}");
}
