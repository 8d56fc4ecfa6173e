//! Attributes in which producers claim deliveries that never took place.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::settings::SettingOverrides;
use jobqueue::storage::PutMessage;
use jobqueue::{Context, JobError, Runtime, Storage, memory};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};

/// The claims of a producer.
const FORGED: &str = r#""attempts":2,"excused":4000000000,"deliverycount":1,"deferred":9,"deferredfor":"unknown","deferredsince":"2020-01-01T00:00:00Z","lasterror":"forged","checkpoint":"{\"progress\":7,\"steps\":{\"pay\":true}}","deadletterreason":"forged","deadletterqueue":"tasks""#;

async fn put(storage: &Storage, kind: &str) {
    let _ = storage.queue::<Task>().await.unwrap();
    let event = format!(
        r#"{{"specversion":"1.0","id":"1","source":"/test","type":"{kind}","schemaversion":1,{FORGED},"data":{{"name":"a"}}}}"#
    );
    storage.queues().put(&"tasks".parse().unwrap(), PutMessage::new(event)).await.unwrap();
}

/// The view of a handler in each attempt: its number, its progress, and whether its step ran.
type Seen = Arc<Mutex<Vec<(u32, Option<u32>, bool)>>>;

async fn run(storage: &Storage) -> Vec<(u32, Option<u32>, bool)> {
    let seen = Seen::default();
    let sink = Arc::clone(&seen);
    let handler = move |_: Task, ctx: Context| {
        let sink = Arc::clone(&sink);
        async move {
            let progress = ctx.resume::<u32>().await?;
            let mut paid = false;
            ctx.step("pay", || {
                paid = true;
                async { Ok::<_, JobError>(true) }
            })
            .await?;
            sink.lock().unwrap().push((ctx.info().attempt, progress, paid));
            Err::<(), _>(JobError::retry("again"))
        }
    };
    let _ = worker(storage).handle(handler).build().unwrap().run_until(after(120)).await.unwrap();
    std::mem::take(&mut *seen.lock().unwrap())
}

// W6, W10
// I11
#[tokio::test(start_paused = true)]
async fn a_history_that_a_producer_wrote_is_ignored() {
    let storage = in_memory();
    put(&storage, "task").await;
    assert_eq!(run(&storage).await, [(1, None, true), (2, None, false), (3, None, false)]);
    let letter =
        storage.queue::<Task>().await.unwrap().dead_letters().unwrap().peek().await.unwrap().remove(0);
    assert_eq!(letter.reason.as_str(), "attempts_exhausted");
    assert_eq!(letter.attempts, 3);
}

// W6
#[tokio::test(start_paused = true)]
async fn uncounted_deliveries_keep_the_bound_of_deliveries() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let event = r#"{"specversion":"1.0","id":"1","source":"/test","type":"task","excused":4000000000,"deliverycount":1,"data":{"name":"a"}}"#;
    storage.queues().put(queue.name(), PutMessage::new(event)).await.unwrap();
    let mut overrides = SettingOverrides::default();
    overrides.max_deliveries = Some(6);
    for _ in 0..12 {
        let handler = |_: Task| std::future::pending::<Result<(), JobError>>();
        let dying = worker(&storage).overrides(overrides).handle(handler).build().unwrap();
        // Dropped in the middle, as a crash would.
        let _ = tokio::time::timeout(Duration::from_secs(5), dying.run_until(std::future::pending())).await;
        after(40).await;
    }
    assert_eq!(queue.dead_letters().unwrap().approximate_len().await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn own_history_survives_crashes_and_redrives() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let fails = |_: Task, ctx: Context| async move {
        ctx.checkpoint(&7).await?;
        Err::<(), _>(JobError::dead_letter("no"))
    };
    let _ = worker(&storage).handle(fails).build().unwrap().run_until(after(60)).await.unwrap();
    assert_eq!(queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
    let seen = run(&storage).await;
    assert_eq!(seen, [(1, Some(7), true), (2, Some(7), false), (3, Some(7), false)]);
}

// W11
#[tokio::test(start_paused = true)]
async fn a_job_whose_moment_cannot_be_read_is_not_run() {
    let storage = in_memory();
    let tasks = storage.queue::<Task>().await.unwrap();
    let event = r#"{"specversion":"1.0","id":"1","source":"/test","type":"task","notbefore":"tomorrow","data":{"name":"a"}}"#;
    storage.queues().put(tasks.name(), PutMessage::new(event)).await.unwrap();
    assert_eq!(run(&storage).await, []);
    let letter = tasks.dead_letters().unwrap().peek().await.unwrap().remove(0);
    assert_eq!(letter.reason.as_str(), "decode_error");
    assert!(letter.error.unwrap().contains("notbefore"));
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_clock_is_ahead_does_not_run_a_job_before_its_moment() {
    let new_year = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
    let at = |moment| Runtime::virtual_time(Arc::new(memory::TokioClock::at(moment)));
    let storage = memory::open_on(at(new_year));
    let tasks = storage.queue::<Task>().await.unwrap();
    let event = r#"{"specversion":"1.0","id":"1","source":"/test","type":"task","notbefore":"2026-01-01T00:10:00Z","data":{"name":"a"}}"#;
    storage.queues().put(tasks.name(), PutMessage::new(event)).await.unwrap();
    let ahead = storage.with_runtime(at(new_year + Duration::from_secs(3_600)));
    let worker = || worker(&ahead).handle(async |_: Task| Ok::<_, JobError>(())).build().unwrap();
    assert_eq!(worker().run_until(after(590)).await.unwrap().completed, 0);
    assert_eq!(worker().run_until(after(20)).await.unwrap().completed, 1);
}

// A send refuses it too: nothing would ever end such a job.
#[tokio::test(start_paused = true)]
async fn a_job_whose_moment_is_thousands_of_years_away_is_a_dead_letter() {
    let storage = in_memory();
    let tasks = storage.queue::<Task>().await.unwrap();
    let event = r#"{"specversion":"1.0","id":"1","source":"/test","type":"task","notbefore":"9999-01-01T00:00:00Z","data":{"name":"a"}}"#;
    storage.queues().put(tasks.name(), PutMessage::new(event)).await.unwrap();
    assert_eq!(run(&storage).await, []);
    let letter = tasks.dead_letters().unwrap().peek().await.unwrap().remove(0);
    assert_eq!(letter.reason.as_str(), "decode_error");
    assert!(letter.error.unwrap().contains("10 years"));
}
