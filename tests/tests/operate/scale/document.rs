//! `/scale`: the JSON that an autoscaler reads.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use jobqueue::JobError;
use jobqueue::Storage;
use jobqueue::sharded::Sharded;
use jobqueue::storage::{Intercepted, Interceptor, Operation, QueuePowers, StoreErrorKind};
use jobqueue_admin::{AccessLevel, Admin};
use jobqueue_dashboard::scale::{self, Target};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory};
use tokio_util::sync::CancellationToken;

use super::support::{get_json, present, send, snapshots};

fn router(storage: &jobqueue::Storage) -> Router {
    scale::router(snapshots(storage), Target::new())
}

async fn long(_: Task) -> Result<(), JobError> {
    after(100).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn figures_tell_what_waits_runs_and_is_needed() {
    let storage = in_memory();
    send(&storage, 20).await;
    let running = present(&storage).concurrency(4).handle(long).build().unwrap().run_until(after(40));
    let asking = async {
        after(31).await;
        let (status, all) = get_json(&router(&storage), "/scale").await;
        assert_eq!(status, StatusCode::OK, "{all}");
        let queue = &all["queues"]["tasks"];
        let number = |name: &str| queue[name].as_u64();
        assert_eq!(number("length"), Some(20), "{all}");
        assert_eq!(number("in_flight"), Some(4), "{all}");
        assert_eq!(number("waiting"), Some(16), "{all}");
        assert_eq!(number("slots"), Some(4), "{all}");
        assert_eq!(number("desired"), Some(5), "{all}");
        assert_eq!(number("dead"), Some(0), "{all}");
        assert_eq!(queue["oldest_seconds"].as_f64(), Some(31.0));
        assert!(all["as_of"].as_str().unwrap().ends_with('Z'));
        // No job has ended: each that waits is taken to run for the delay.
        let (_, one) = get_json(&router(&storage), "/scale?queue=tasks&target_delay=50&slots=2").await;
        assert_eq!(one["queues"]["tasks"]["desired_by_delay"], 10);
    };
    let (_, ()) = tokio::join!(running, asking);
}

#[tokio::test(start_paused = true)]
async fn unknown_and_stale_figures_are_refused() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    send(&storage, 3).await;
    let outage = Fault::Refuse(StoreErrorKind::Unavailable);
    faulty.plan_always(Operation::ListBlobs, outage);
    let router = router(&storage);
    let (status, body) = get_json(&router, "/scale?queue=tasks").await;
    assert_eq!(
        status,
        StatusCode::SERVICE_UNAVAILABLE,
        "without records of workers nothing is known: {body}"
    );
    let error = body["error"].as_str().unwrap();
    assert!(error.starts_with("the records of workers cannot be read: "), "{body}");
    faulty.heal();
    after(11).await;
    assert_eq!(get_json(&router, "/scale?queue=tasks").await.0, StatusCode::OK);
    faulty.plan_always(Operation::ListBlobs, outage);
    after(11).await;
    let (status, body) = get_json(&router, "/scale?queue=tasks").await;
    assert_eq!(status, StatusCode::OK, "the last records are good for a minute: {body}");
    after(60).await;
    let (status, body) = get_json(&router, "/scale?queue=tasks").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "the last records are too old: {body}");
    faulty.heal();
    after(11).await;
    assert_eq!(get_json(&router, "/scale?queue=tasks").await.0, StatusCode::OK);
    assert_eq!(get_json(&router, "/scale?queue=nobody").await.0, StatusCode::NOT_FOUND);
    assert_eq!(get_json(&router, "/scale?queue=tasks&slots=0").await.0, StatusCode::BAD_REQUEST);
    faulty.plan_always(Operation::ListQueues, outage);
    after(30).await;
    let (status, body) = get_json(&router, "/scale").await;
    assert_eq!(status, StatusCode::OK, "the last figures are good for a minute: {body}");
    assert!(body["age_seconds"].as_f64().unwrap() >= 30.0, "{body}");
    after(60).await;
    let (status, body) = get_json(&router, "/scale").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(body["error"].as_str().unwrap().contains("s old"), "{body}");
}

#[tokio::test(start_paused = true)]
async fn unreadable_queue_does_not_hide_the_others() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    send(&storage, 3).await;
    let operator = Admin::builder(storage.clone()).access(AccessLevel::Operate).build();
    operator.create_queue("bad").await.unwrap();
    faulty.on(Operation::Peek, |call| {
        (call.subject == "bad").then_some(Fault::Refuse(StoreErrorKind::Unavailable))
    });
    let router = router(&storage);
    let (status, all) = get_json(&router, "/scale").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(all["queues"]["tasks"]["length"], 3);
    assert!(all["queues"]["bad"].is_null() && all["errors"]["bad"].is_string(), "{all}");
    assert_eq!(get_json(&router, "/scale?queue=bad").await.0, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn hanging_storage_does_not_hold_up_an_answer() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    send(&storage, 3).await;
    let router = router(&storage);
    assert_eq!(get_json(&router, "/scale").await.0, StatusCode::OK);
    faulty.plan_always(Operation::ListQueues, Fault::Hang);
    after(15).await;
    let asked = tokio::time::Instant::now();
    assert_eq!(get_json(&router, "/scale").await.0, StatusCode::OK);
    assert_eq!(asked.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn draining_worker_has_no_slots_and_its_jobs_need_none() {
    let storage = in_memory();
    send(&storage, 4).await;
    let stop = CancellationToken::new();
    let worker = present(&storage).concurrency(4).shutdown_timeout(Duration::from_secs(200)).handle(long);
    let running = worker.build().unwrap().run_until(stop.cancelled());
    let asking = async {
        let router = router(&storage);
        after(20).await;
        let (_, all) = get_json(&router, "/scale").await;
        assert_eq!(all["queues"]["tasks"]["workers"], 1);
        assert_eq!(all["queues"]["tasks"]["desired"], 1);
        stop.cancel();
        after(60).await;
        let (_, all) = get_json(&router, "/scale").await;
        let queue = &all["queues"]["tasks"];
        assert_eq!(queue["workers"], 0, "{all}");
        assert_eq!(queue["draining"], 1, "{all}");
        assert_eq!(queue["slots"], 0, "{all}");
        assert_eq!(queue["in_flight"], 4, "{all}");
        assert_eq!(queue["waiting"], 0, "{all}");
        assert_eq!(queue["desired"], 0, "{all}");
    };
    let (report, ()) = tokio::join!(running, asking);
    assert_eq!(report.unwrap().completed, 4);
}

// An autoscaler that scales from zero starts a worker while the load is above 0.
#[tokio::test(start_paused = true)]
async fn short_job_that_waits_without_a_worker_is_a_load() {
    let storage = in_memory();
    let router = router(&storage);
    send(&storage, 1).await;
    let short = async |_: Task| {
        tokio::time::sleep(Duration::from_millis(10)).await;
        Ok::<_, JobError>(())
    };
    let running = present(&storage).handle(short).build().unwrap().run_until(after(40));
    let asking = async {
        for _ in 0..3 {
            assert_eq!(get_json(&router, "/scale").await.0, StatusCode::OK);
            after(11).await;
        }
    };
    let _ = tokio::join!(running, asking);
    after(60).await;
    send(&storage, 1).await;
    after(11).await;
    let (_, all) = get_json(&router, "/scale?target_delay=30").await;
    let queue = &all["queues"]["tasks"];
    assert_eq!(queue["workers"], 0, "{all}");
    assert!(queue["run_seconds"].as_f64().unwrap() < 0.1, "{all}");
    assert_eq!(queue["desired"], 1, "{all}");
    assert!(queue["load"].as_f64().unwrap() > 0.0, "{all}");
}

#[tokio::test(start_paused = true)]
async fn shards_are_one_queue() {
    let account = in_memory();
    let sharded = Sharded::builder().shards("tasks", 4).account("a", account).build().unwrap();
    let storage = Storage::from(sharded.stores());
    send(&storage, 200).await;
    let (status, all) = get_json(&router(&storage), "/scale").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(all["queues"].as_object().unwrap().len(), 1, "{all}");
    let queue = &all["queues"]["tasks"];
    assert_eq!(queue["length"], 200);
    assert_eq!(queue["waiting"], 200);
    assert_eq!(queue["desired"], 4);
}

#[tokio::test(start_paused = true)]
async fn paused_queue_needs_nobody() {
    let storage = in_memory();
    send(&storage, 50).await;
    let operator = Admin::builder(storage.clone()).access(AccessLevel::Operate).build();
    operator.pause("tasks").await.unwrap();
    let (_, all) = get_json(&router(&storage), "/scale").await;
    let queue = &all["queues"]["tasks"];
    assert_eq!(queue["waiting"], 50);
    assert_eq!(queue["paused"], true);
    assert_eq!(queue["desired"], 0);
}

#[tokio::test(start_paused = true)]
async fn storage_is_left_alone_when_nobody_asks() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    send(&storage, 1).await;
    let router = router(&storage);
    assert_eq!(get_json(&router, "/scale").await.0, StatusCode::OK);
    after(3600).await;
    let asked = faulty.calls_of(Operation::ListQueues);
    assert!(asked <= 32, "{asked} refreshes in an hour; it asks for 5 minutes");
    assert_eq!(get_json(&router, "/scale").await.0, StatusCode::OK, "it waits for new figures");
    assert!(faulty.calls_of(Operation::ListQueues) > asked);
}

/// Hides the counts and the messages of a storage, as that of Azure has none.
#[derive(Debug)]
struct Uncounted;

impl Interceptor for Uncounted {
    fn queue_powers(&self, mut powers: QueuePowers) -> QueuePowers {
        (powers.counts, powers.index) = (None, None);
        powers
    }
}

async fn hour(_: Task) -> Result<(), JobError> {
    after(3_600).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn running_jobs_are_not_hidden_behind_a_full_peek() {
    let storage = Storage::from(in_memory().stores().intercepted(&Arc::new(Uncounted)));
    send(&storage, 120).await;
    let run = async || {
        let worker = present(&storage).presence(Duration::from_secs(5)).concurrency(16).handle(hour);
        worker.build().unwrap().run_until(std::future::pending()).await
    };
    let figures = async || {
        let (_, all) = get_json(&router(&storage), "/scale?queue=tasks").await;
        all["queues"]["tasks"].clone()
    };
    let (mut alive, mut killed) = (Box::pin(run()), Box::pin(run()));
    tokio::select! {
        report = &mut alive => panic!("{report:?}"),
        report = &mut killed => panic!("{report:?}"),
        () = after(31) => {}
    }
    let queue = figures().await;
    assert_eq!(queue["in_flight"], 32, "{queue}");
    assert_eq!(queue["waiting"], 88, "{queue}");
    assert_eq!(queue["hidden"], 0, "{queue}");
    assert_eq!(queue["load"], 7.5, "{queue}");
    drop(killed);
    // The record is stale after 15 seconds, and the leases may last for 35.
    tokio::select! {
        report = &mut alive => panic!("{report:?}"),
        () = after(22) => {}
    }
    let queue = figures().await;
    assert_eq!(queue["in_flight"], 16, "{queue}");
    assert_eq!(queue["waiting"], 88, "its jobs are not counted as waiting and as running: {queue}");
    assert_eq!(queue["hidden"], 16, "{queue}");
    assert_eq!(queue["load"], 7.5, "{queue}");
}

/// Asks for the load of four jobs that run for an hour, while the `blobs` are refused for two minutes, and
/// for 20 seconds after that. Further jobs wait in the queue, which is paused.
async fn loads_around_an_outage(storage: &Storage, faulty: &Faulty, blobs: &[Operation], waiting: usize) {
    send(storage, 4).await;
    let router = router(storage);
    let asking = async {
        let load = async || {
            let (status, all) = get_json(&router, "/scale?queue=tasks").await;
            (status == StatusCode::OK).then(|| all["queues"]["tasks"]["load"].as_f64().unwrap())
        };
        let _ = load().await;
        // The worker writes its records in the middle of two looks.
        after(30).await;
        assert_eq!(load().await, Some(1.0));
        let admin = Admin::builder(storage.clone()).access(AccessLevel::Operate).build();
        admin.pause("tasks").await.unwrap();
        send(storage, waiting).await;
        for operation in blobs {
            faulty.plan_always(*operation, Fault::Refuse(StoreErrorKind::Unavailable));
        }
        for second in (0..120).step_by(10) {
            after(10).await;
            let load = load().await;
            assert!(load.is_none_or(|load| load >= 1.0), "{load:?} after {second} s");
        }
        faulty.heal();
        for second in 0..20 {
            after(1).await;
            let load = load().await;
            assert!(load.is_none_or(|load| load >= 1.0), "{load:?} {second} s after the outage");
        }
    };
    let running = async {
        after(10).await;
        present(storage).concurrency(4).handle(hour).build().unwrap().run_until(std::future::pending()).await
    };
    tokio::select! {
        report = running => panic!("{report:?}"),
        () = asking => {}
    }
}

// audit 27, operator B1
#[tokio::test(start_paused = true)]
async fn jobs_of_workers_that_cannot_write_their_records_are_a_load() {
    let faulty = Faulty::new(&in_memory());
    loads_around_an_outage(&faulty.storage(), &faulty, &[Operation::PutBlob], 0).await;
}

// audit 27, operator B1
#[tokio::test(start_paused = true)]
async fn jobs_are_a_load_after_an_outage_of_the_records() {
    // A look shows 32 messages, and those that run are not known to be among the others.
    for waiting in [0, 40] {
        let faulty = Faulty::new(&in_memory());
        let below = faulty.storage();
        let queues = Intercepted::queues(Arc::clone(below.queues().store()), &Arc::new(Uncounted));
        let storage = Storage::new(queues, Arc::clone(below.blobs()), "uncounted")
            .with_runtime(below.runtime().clone());
        let all = [Operation::PutBlob, Operation::GetBlob, Operation::ListBlobs];
        loads_around_an_outage(&storage, &faulty, &all, waiting).await;
    }
}
