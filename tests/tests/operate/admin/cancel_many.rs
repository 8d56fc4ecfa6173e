//! Cancelling many jobs by a plan: by key, by kind, by batch, and by a file.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::batch::{BatchSweepOptions, sweep_batches};
use jobqueue::sharded::Sharded;
use jobqueue::storage::{Operation, PutMessage, StoreErrorKind};
use jobqueue::{Context, Error, ErrorKind, JobError, SendOptions, Storage};
use jobqueue_admin::{AccessLevel, CancelPlan, DeadLetterFilter, JobFilter, JobReference};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::admin::explain_turns::WithoutIndex;
use crate::admin::presence::{operator, present};
use crate::admin::support::watched;

fn ids(plan: &CancelPlan) -> Vec<&str> {
    plan.jobs.iter().map(|job| job.id.as_str()).collect()
}

async fn send(storage: &Storage, name: &str, key: &str, delay: u64) {
    let options = SendOptions::new().id(name).key(key).delay(Duration::from_secs(delay));
    let _ = storage.queue::<Task>().await.unwrap().send(&task(name)).with(options).await.unwrap();
}

/// Returns the ids of the jobs that a worker runs.
async fn run(storage: &Storage, seconds: u64) -> Vec<String> {
    let ran: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = Arc::clone(&ran);
    let handler = move |task: Task| {
        sink.lock().unwrap().push(task.name);
        async { Ok::<_, JobError>(()) }
    };
    let _ = present(storage).handle(handler).build().unwrap().run_until(after(seconds)).await.unwrap();
    let mut ran = ran.lock().unwrap().clone();
    ran.sort();
    ran
}

#[tokio::test(start_paused = true)]
async fn jobs_of_a_key_are_cancelled_wherever_they_wait_and_no_others() {
    let storage = in_memory();
    for (name, key, delay) in [("a1", "ada", 0), ("a2", "ada", 600), ("b1", "bob", 0), ("b2", "bob", 600)] {
        send(&storage, name, key, delay).await;
    }
    let (admin, events) = watched(&storage, AccessLevel::Operate);
    let plan = admin.plan_cancel("tasks", &JobFilter::new().key("ada")).await.unwrap();
    assert_eq!((ids(&plan), plan.complete), (vec!["a1", "a2"], true));
    // What comes later was not meant.
    send(&storage, "a3", "ada", 0).await;
    let read: CancelPlan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
    let report = admin.cancel_all(&read).await.unwrap();
    assert_eq!((report.jobs.len(), report.workers), (2, 0));
    assert_eq!(run(&storage, 900).await, ["a3", "b1", "b2"]);
    assert_eq!(admin.dead_letters("tasks", &DeadLetterFilter::new()).await.unwrap().matching, 2);
    let events = events.lock().unwrap();
    let [event] = &events[..] else { panic!("{events:?}") };
    assert_eq!((event.subject.as_str(), event.selection.as_str()), ("jobs of tasks", "a plan of 2 jobs"));
    assert_eq!(event.jobs, plan.jobs);
}

// newcomers 33, 3
#[tokio::test(start_paused = true)]
async fn audit_of_a_cancellation_names_the_conditions_of_its_plan() {
    let storage = in_memory();
    for (name, key) in [("a1", "ada"), ("a2", "ada"), ("b1", "bob")] {
        send(&storage, name, key, 0).await;
    }
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send_all([task("tile 1"), task("tile 2")]).await.unwrap();
    let (admin, events) = watched(&storage, AccessLevel::Operate);
    let filters = [
        JobFilter::new().key("ada"),
        JobFilter::new().key("bob").kind("task"),
        JobFilter::new().batch("mosaic"),
    ];
    for filter in filters {
        let plan = admin.plan_cancel("tasks", &filter).await.unwrap();
        let file = serde_json::to_string(&plan).unwrap();
        assert!(!file.contains("ada") && !file.contains("bob"), "a plan names no key: {file}");
        let _ = admin.cancel_all(&plan).await.unwrap();
    }
    let events = events.lock().unwrap();
    let selections: Vec<_> = events.iter().map(|event| event.selection.as_str()).collect();
    let expected =
        ["key \"ada\", a plan of 2 jobs", "kind \"task\", key \"bob\"", "batch \"mosaic\", a plan of 2 jobs"];
    assert_eq!(selections, expected);
    assert_eq!(events[1].subject, "job b1 of queue tasks");
}

#[tokio::test(start_paused = true)]
async fn children_of_a_batch_are_cancelled_also_those_that_run() {
    let storage = in_memory();
    for id in ["mosaic", "other"] {
        let mut batch = storage.batch(id).await.unwrap();
        batch.send_all((0..3).map(|n| task(format!("{id} {n}")))).await.unwrap();
        batch.then(&task(format!("{id} is done"))).await.unwrap();
    }
    let admin = operator(&storage);
    let handler = async |job: Task, ctx: Context| {
        if job.name.starts_with("mosaic") {
            ctx.token().cancelled().await;
            return Err(JobError::retry("stopped"));
        }
        Ok(())
    };
    let running = present(&storage).concurrency(2).handle(handler).build().unwrap().run_until(after(300));
    let cancelling = async {
        sleep(Duration::from_secs(62)).await;
        let plan = admin.plan_cancel("tasks", &JobFilter::new().batch("mosaic")).await.unwrap();
        assert_eq!(ids(&plan), ["mosaic/0", "mosaic/1", "mosaic/2"]);
        assert_eq!(admin.cancel_all(&plan).await.unwrap().workers, 1);
    };
    let (report, ()) = tokio::join!(running, cancelling);
    assert_eq!(report.unwrap().dead_lettered, 3);
    assert!(admin.batch("other").await.unwrap().finished);
    assert_eq!(admin.batch("mosaic").await.unwrap().dead_text(), "3");
}

#[tokio::test(start_paused = true)]
async fn children_behind_the_first_messages_are_cancelled_with_their_batch() {
    let storage = in_memory();
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send_all((0..40).map(|n| task(format!("tile {n}")))).await.unwrap();
    batch.then(&task("done")).await.unwrap();
    let shows_few = Storage::from(storage.stores().intercepted(&Arc::new(WithoutIndex)));
    let admin = operator(&shows_few);
    let plan = admin.plan_cancel("tasks", &JobFilter::new().batch("mosaic")).await.unwrap();
    assert_eq!((plan.jobs.len(), plan.complete), (40, false), "a child may have an id of its own");
    let of_kind = JobFilter::new().batch("mosaic").kind("task");
    assert_eq!(admin.plan_cancel("tasks", &of_kind).await.unwrap().jobs.len(), 32);
    assert_eq!(admin.cancel_all(&plan).await.unwrap().jobs.len(), 40);
    assert_eq!(run(&storage, 900).await, [""; 0]);
    assert_eq!(admin.queue("tasks").await.unwrap().dead_letters, Some(40));
}

// Shards show the first messages, and the records of workers.
#[tokio::test(start_paused = true)]
async fn plan_says_where_a_storage_does_not_show_all_jobs() {
    let sharded = Sharded::builder().account("a", in_memory()).build().unwrap();
    let storage = Storage::from(sharded.stores());
    let admin = operator(&storage);
    send(&storage, "a1", "ada", 0).await;
    send(&storage, "b1", "bob", 0).await;
    let filter = JobFilter::new().key("ada");
    let plan = admin.plan_cancel("tasks", &filter).await.unwrap();
    assert_eq!((ids(&plan), plan.complete), (vec!["a1"], true));
    send(&storage, "a2", "ada", 600).await;
    let plan = admin.plan_cancel("tasks", &filter).await.unwrap();
    assert_eq!((ids(&plan), plan.complete), (vec!["a1"], false));
}

// An application that passes on headers, such as those of a tenant, passes on all of them.
// Its children wait and will run: "no job matches" would not be so.
#[tokio::test(start_paused = true)]
async fn children_of_a_swept_batch_are_not_said_to_be_none() {
    let (storage, mosaic) = (in_memory(), JobFilter::new().batch("mosaic"));
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send(&task("child")).await.unwrap();
    drop(batch);
    let everything = BatchSweepOptions::new().abandoned(Duration::ZERO);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(sweep_batches(&storage, everything).await.unwrap(), 1);
    let admin = operator(&storage);
    let error = admin.plan_cancel("tasks", &mosaic).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "scripts take `NotFound` for nothing to do");
    assert!(error.to_string().contains("select them by kind or key"), "{error}");
    let plan = admin.plan_cancel("tasks", &JobFilter::new().batch("other")).await.unwrap();
    assert!(plan.jobs.is_empty() && plan.complete, "no job names this batch");
}

#[tokio::test(start_paused = true)]
async fn job_with_the_headers_of_a_child_is_not_cancelled_with_its_batch() {
    let storage = in_memory();
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send(&task("child")).await.unwrap();
    let note = async |_: Task, ctx: Context| {
        let headers = ctx.info().headers.iter();
        let options = SendOptions::new().delay(Duration::from_secs(600));
        let options = headers.fold(options, |options, (name, value)| options.header(name, value));
        ctx.queue::<Task>().await?.send(&task("note")).with(options).await?;
        Ok::<_, JobError>(())
    };
    let report = present(&storage).handle(note).build().unwrap().run_until(after(60)).await.unwrap();
    assert_eq!(report.completed, 1);
    let plan = operator(&storage).plan_cancel("tasks", &JobFilter::new().batch("mosaic")).await.unwrap();
    assert_eq!(ids(&plan), [""; 0], "the note is in the queue, and no child");
    assert!(plan.complete);
}

// It is running during the look at the jobs that wait, and waits during the others.
#[tokio::test(start_paused = true)]
async fn job_that_fails_while_a_plan_is_made_is_in_it() {
    let storage = in_memory();
    send(&storage, "a1", "ada", 0).await;
    // Quiet: the requests come in this order, and the planned one is that of the moment.
    let faulty = Faulty::quiet(&storage);
    let mut looks = 0;
    faulty.on(Operation::Peek, move |_| {
        looks += 1;
        // Those that run, back off, are delayed.
        (looks == 3).then_some(Fault::DelayBefore(Duration::from_secs(60)))
    });
    let planning =
        async { operator(&faulty.storage()).plan_cancel("tasks", &JobFilter::new().key("ada")).await };
    let fail = async |_: Task| Err::<(), _>(JobError::retry_after(Duration::from_secs(3_600), "later"));
    let failing = present(&storage).handle(fail).build().unwrap().run_until(after(30));
    let (plan, report) = tokio::join!(planning, failing);
    assert_eq!(report.unwrap().retried, 1);
    let plan = plan.unwrap();
    assert_eq!((ids(&plan), plan.complete), (vec!["a1"], true));
}

#[tokio::test(start_paused = true)]
async fn plan_is_not_complete_if_a_job_arrived_while_it_was_made() {
    let sharded = Sharded::builder().account("a", in_memory()).build().unwrap();
    let storage = Storage::from(sharded.stores());
    send(&storage, "a1", "ada", 600).await;
    // Quiet: the requests come in this order, and the planned one is that of the moment.
    let faulty = Faulty::quiet(&storage);
    faulty.plan_always(Operation::Peek, Fault::DelayBefore(Duration::from_secs(10)));
    let planning =
        async { operator(&faulty.storage()).plan_cancel("tasks", &JobFilter::new().key("ada")).await };
    let arriving = async {
        sleep(Duration::from_secs(5)).await;
        send(&storage, "b1", "bob", 0).await;
    };
    let (plan, ()) = tokio::join!(planning, arriving);
    let plan = plan.unwrap();
    assert_eq!((ids(&plan), plan.complete), (vec![], false), "it sees one of two jobs");
}

#[tokio::test(start_paused = true)]
async fn empty_selection_is_refused_and_half_a_cancellation_says_so() {
    let storage = in_memory();
    let admin = operator(&storage);
    let refused = admin.plan_cancel("tasks", &JobFilter::new()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(serde_json::from_str::<CancelPlan>(r#"{"jobs":[],"complete":true,"key":"ada"}"#).is_err());
    let plan = CancelPlan::of_jobs([JobReference::new("tasks", "a"), JobReference::new("tasks", "")]);
    assert_eq!(admin.cancel_all(&plan).await.unwrap_err().kind(), ErrorKind::Invalid);
    let dead = JobReference::new("tasks-poison", "a");
    assert_eq!(admin.cancel(&dead).await.unwrap_err().kind(), ErrorKind::Invalid, "no worker reads this");

    // Quiet: the requests overtake each other at a distance, and the second one is counted.
    let faulty = Faulty::quiet(&storage);
    faulty.plan(Operation::PutBlob, 2, Fault::Refuse(StoreErrorKind::Unauthorized));
    let plan = CancelPlan::of_jobs(["a", "b", "c"].map(|id| JobReference::new("tasks", id)));
    let error = operator(&faulty.storage()).cancel_all(&plan).await.unwrap_err();
    assert!(error.to_string().starts_with("2 of 3 jobs"), "{error:?}");
    let report = operator(&faulty.storage()).cancel_all(&plan).await.unwrap();
    assert_eq!(report.jobs, plan.jobs);
}

/// Cancels 40 jobs. A stop ends this after the first requests.
async fn cancel_until_a_stop(faulty: &Faulty) -> Error {
    let stop = CancellationToken::new();
    let fired = stop.clone();
    faulty.on(Operation::PutBlob, move |_| {
        fired.cancel();
        None
    });
    let jobs = (0..40).map(|number| JobReference::new("tasks", number.to_string()));
    let admin = operator(&faulty.storage()).stop_when(stop);
    admin.cancel_all(&CancelPlan::of_jobs(jobs)).await.unwrap_err()
}

// review 32, B1: the requests made before a stop stood for 30 days, and no running worker read them.
#[tokio::test(start_paused = true)]
async fn workers_are_notified_of_the_requests_made_before_a_stop() {
    // Quiet: the stop shall be the only disturbance.
    let faulty = Faulty::quiet(&in_memory());
    let error = cancel_until_a_stop(&faulty).await;
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(!error.to_string().contains("not notified"), "{error:?}");
    let made: u64 = error.to_string().split(' ').next().unwrap().parse().unwrap();
    assert!((1..=16).contains(&made), "{error:?}");
    assert!(faulty.calls_of(Operation::ListBlobs) > 0, "no worker is notified: {error:?}");
}

// review 34, admin C5: the text was that of workers who were notified.
#[tokio::test(start_paused = true)]
async fn stopped_cancellation_says_that_no_worker_was_notified() {
    // Quiet: no other call may fail than the planned one.
    let faulty = Faulty::quiet(&in_memory());
    faulty.plan_always(Operation::ListBlobs, Fault::Refuse(StoreErrorKind::Unauthorized));
    let error = cancel_until_a_stop(&faulty).await;
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().ends_with("; workers that run were not notified"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn cancellation_ends_when_the_storage_takes_no_requests() {
    let storage = in_memory();
    let faulty = Faulty::new(&storage);
    faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unauthorized));
    let jobs = (0..1_000).map(|number| JobReference::new("tasks", number.to_string()));
    let error = operator(&faulty.storage()).cancel_all(&CancelPlan::of_jobs(jobs)).await.unwrap_err();
    assert!(error.to_string().starts_with("0 of 1000 jobs"), "{error:?}");
    assert!(faulty.calls_of(Operation::PutBlob) < 200, "{}", faulty.calls_of(Operation::PutBlob));
    assert_eq!(faulty.calls_of(Operation::ListBlobs), 0, "no worker is notified of nothing");
}

#[tokio::test(start_paused = true)]
async fn workers_are_notified_of_a_request_that_may_stand() {
    // Quiet: the lost answers shall be the only faults.
    let faulty = Faulty::quiet(&in_memory());
    faulty.plan_always(Operation::PutBlob, Fault::DropAnswer(StoreErrorKind::Unavailable));
    let admin = operator(&faulty.storage());
    admin.cancel(&JobReference::new("tasks", "a")).await.unwrap_err();
    assert!(faulty.calls_of(Operation::ListBlobs) > 0, "the request stands");
}

// The requests that were under way were dropped, and no worker was notified of them.
#[tokio::test(start_paused = true)]
async fn requests_that_are_under_way_when_the_first_fail_are_awaited() {
    // Quiet: no other call may fail than the planned ones.
    let faulty = Faulty::quiet(&in_memory());
    faulty.on(Operation::PutBlob, |call| match call.nth {
        ..=3 => Some(Fault::Refuse(StoreErrorKind::Unauthorized)),
        _ => Some(Fault::DelayAfter(Duration::from_secs(1))),
    });
    let jobs = (0..1_000).map(|number| JobReference::new("tasks", number.to_string()));
    let error = operator(&faulty.storage()).cancel_all(&CancelPlan::of_jobs(jobs)).await.unwrap_err();
    let made: u64 = error.to_string().split(' ').next().unwrap().parse().unwrap();
    assert!((1..=32).contains(&made), "{error:?}");
    assert!(faulty.calls_of(Operation::ListBlobs) > 0, "no worker is notified: {error:?}");
}

// round 35, E5
#[tokio::test(start_paused = true)]
async fn cancellation_of_one_job_says_that_no_worker_was_notified() {
    // Quiet: only these calls fail.
    let faulty = Faulty::quiet(&in_memory());
    faulty.plan_always(Operation::PutBlob, Fault::DropAnswer(StoreErrorKind::Unavailable));
    faulty.plan_always(Operation::ListBlobs, Fault::Refuse(StoreErrorKind::Unauthorized));
    let error = operator(&faulty.storage()).cancel(&JobReference::new("tasks", "a")).await.unwrap_err();
    assert!(error.to_string().ends_with("; workers that run were not notified"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn plan_of_a_cancellation_reads_a_bounded_part_of_a_long_queue() {
    let storage = in_memory();
    send(&storage, "a1", "ada", 0).await;
    let queue = "tasks".parse().unwrap();
    let strange: Arc<[_]> = vec![PutMessage::new("{}"); 1_000].into();
    for _ in 0..101 {
        assert!(storage.queues().put_all(&queue, Arc::clone(&strange)).await.iter().all(Result::is_ok));
    }
    let faulty = Faulty::new(&storage);
    let (admin, filter) = (operator(&faulty.storage()), JobFilter::new().key("ada"));
    let plan = admin.plan_cancel("tasks", &filter).await.unwrap();
    assert_eq!((ids(&plan), plan.complete), (vec!["a1"], false));
    assert!(faulty.calls_of(Operation::Peek) <= 105, "{}", faulty.calls_of(Operation::Peek));
}
