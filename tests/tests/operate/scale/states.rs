//! Jobs that no worker can receive, and jobs that were cancelled, as operators and their alerts see them.

use std::time::Duration;

use jobqueue::storage::GetMessages;
use jobqueue::{Context, JobError, Storage};
use jobqueue_admin::{AccessLevel, Admin, JobReference};
use jobqueue_dashboard::{Dashboard, metrics};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};

use super::support::{admin, get, get_json, present, send};

fn operator(storage: &Storage) -> Admin {
    Admin::builder(storage.clone()).access(AccessLevel::Operate).operator("ada").build()
}

/// Returns the sample of a gauge of the queue `tasks`.
fn gauge(text: &str, name: &str) -> f64 {
    let start = format!("{name}{{queue=\"tasks\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("no {name}: {text}")).parse().unwrap()
}

// newcomers 28, C4: a queue whose jobs had all failed for hours had an age of 0, and no alert could see it.
#[tokio::test(start_paused = true)]
async fn jobs_that_back_off_are_counted_and_have_an_age() {
    let storage = in_memory();
    send(&storage, 1).await;
    after(100).await;
    send(&storage, 1).await;
    let later = storage.queue::<Task>().await.unwrap();
    let _ = later.send(&task("later")).delay(Duration::from_secs(36_000)).await.unwrap();
    let handler = async |_: Task| Err::<(), _>(JobError::snooze(Duration::from_secs(36_000)));
    let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(10)).await.unwrap();
    after(3_600).await;
    let queue = operator(&storage).queue("tasks").await.unwrap();
    assert_eq!(queue.oldest, None);
    assert_eq!(queue.states.unwrap().backing_off, 2);
    let age = queue.oldest_backing_off.unwrap();
    assert!((Duration::from_secs(3_710)..Duration::from_secs(3_720)).contains(&age), "{age:?}");
    let (_, _, text) = get(&metrics::router(admin(&storage)), "/metrics").await;
    assert_eq!(gauge(&text, "jobqueue_queue_delayed"), 1.0);
    assert_eq!(gauge(&text, "jobqueue_queue_backing_off"), 2.0);
    assert!(gauge(&text, "jobqueue_queue_oldest_backing_off_age_seconds") >= 3_710.0, "{text}");
    let dashboard = Dashboard::new(operator(&storage)).router();
    let (_, _, page) = get(&dashboard, "/queues/tasks").await;
    assert!(page.contains("1h 1m (backing off)"), "{page}");
    assert!(page.contains("and 1 delayed, 2 backing off"), "{page}");
}

// round 29: the queue was shown as one whose oldest job is 0 seconds old.
#[tokio::test(start_paused = true)]
async fn queue_whose_keys_are_held_up_shows_the_age_of_the_job_that_backs_off() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for _ in 0..2 {
        let _ = queue.send(&task("a")).key("a").in_order().await.unwrap();
    }
    let handler = async |_: Task| Err::<(), _>(JobError::snooze(Duration::from_secs(36_000)));
    let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(10)).await.unwrap();
    after(3_600).await;
    let overview = operator(&storage).queue("tasks").await.unwrap();
    assert!(overview.held_up);
    let oldest = overview.oldest_job();
    assert_eq!((oldest.age, oldest.backs_off), (Some(Duration::from_secs(3_610)), true));
    let dashboard = Dashboard::new(operator(&storage)).router();
    let (_, _, page) = get(&dashboard, "/queues/tasks").await;
    assert!(page.contains("1h 0m (backing off)"), "{page}");
    // round 30, operator 3: the sums of all queues counted the job behind it alone.
    let (_, _, page) = get(&dashboard, "/").await;
    assert!(page.contains("<dt>Oldest</dt><dd>1h 0m (backing off)</dd>"), "{page}");
    let all = [("prod", &storage), ("idle", &in_memory())];
    let all = all.map(|(name, storage)| (name, Dashboard::new(operator(storage))));
    let joined = Dashboard::join(all).unwrap();
    let (_, _, page) = get(&joined, "/").await;
    assert!(page.contains("data-label=\"Oldest\">1h 0m (backing off)</td>"), "{page}");
    let (_, rows) = get_json(&joined, "/api/storages").await;
    let prod = rows["storages"].as_array().unwrap().iter().find(|row| row["name"] == "prod").unwrap();
    assert!(prod["oldest_seconds"].as_f64().unwrap() >= 3_610.0, "{rows}");
    // A job without a key can be received.
    let _ = queue.send(&task("free")).await.unwrap();
    after(5).await;
    let overview = operator(&storage).queue("tasks").await.unwrap();
    assert!(!overview.held_up && !overview.oldest_job().backs_off);
    assert!(overview.oldest_job().held_up);
}

// round 33: nothing but `explain` and a field of a document said that the queue stands still.
#[tokio::test(start_paused = true)]
async fn queue_that_a_key_holds_up_has_an_age_and_an_alarm() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for key in ["a", "a", "b"] {
        let _ = queue.send(&task(key)).key(key).in_order().await.unwrap();
    }
    let first = GetMessages::new(32, Duration::from_secs(36_000));
    assert_eq!(storage.queues().get(queue.name(), first).await.unwrap().messages.len(), 2);
    after(600).await;
    let _ = queue.send(&task("b")).key("b").in_order().await.unwrap();
    after(600).await;
    let overview = operator(&storage).queue("tasks").await.unwrap();
    assert!(overview.held_up && overview.oldest.is_none());
    assert_eq!(overview.oldest_held_up, Some(Duration::from_secs(1_200)));
    let (_, _, text) = get(&metrics::router(admin(&storage)), "/metrics").await;
    assert_eq!(gauge(&text, "jobqueue_queue_held_up"), 1.0);
    assert_eq!(gauge(&text, "jobqueue_queue_oldest_held_up_age_seconds"), 1_200.0);
    let dashboard = Dashboard::new(operator(&storage)).router();
    for path in ["/", "/queues/tasks"] {
        let (_, _, page) = get(&dashboard, path).await;
        assert!(page.contains("<span class=\"tag warn\">held up by a key</span>"), "{page}");
        let tile = "<div class=\"alarm\"><dt>Oldest</dt><dd>20m 0s (held up by a key)</dd>";
        assert!(page.contains(tile), "{page}");
    }
    // One key that stands still counts also beside jobs that go on.
    let _ = queue.send(&task("free")).await.unwrap();
    after(5).await;
    let overview = operator(&storage).queue("tasks").await.unwrap();
    assert!(!overview.held_up && !overview.is_held_up_for_long());
    assert_eq!(overview.oldest_job().age, Some(Duration::from_secs(1_205)));
    assert_eq!(overview.oldest_job().obstacle(), Some("held up by a key"));
    let (_, _, text) = get(&metrics::router(admin(&storage)), "/metrics").await;
    assert_eq!(gauge(&text, "jobqueue_queue_held_up"), 0.0);
    assert_eq!(gauge(&text, "jobqueue_queue_oldest_age_seconds"), 5.0);
    after(14_000).await;
    assert!(operator(&storage).queue("tasks").await.unwrap().is_held_up_for_long());
}

// newcomers 28, C17: the chart of the last hour showed 290 failed attempts, and none had failed.
#[tokio::test(start_paused = true)]
async fn cancelled_job_is_no_failed_attempt() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("long")).id("long").await.unwrap();
    let admin = operator(&storage);
    let dashboard = Dashboard::new(admin.clone()).router();
    let (_, _, page) = get(&dashboard, "/").await;
    assert!(page.contains("failed attempts: ?"), "nothing is known of the last hour: {page}");
    let handler = async |_: Task, ctx: Context| {
        ctx.token().cancelled().await;
        Err::<(), _>(JobError::retry("stopped"))
    };
    let running = present(&storage).handle(handler).build().unwrap().run_until(after(120));
    let cancelling = async {
        after(20).await;
        let _ = admin.cancel(&JobReference::new("tasks", "long")).await.unwrap();
        after(60).await;
        let workers = admin.workers().await.unwrap();
        let counters = workers[0].record.counters[0].clone();
        let (_, _, page) = get(&dashboard, "/").await;
        (counters, page)
    };
    let (report, (counters, page)) = tokio::join!(running, cancelling);
    assert_eq!(report.unwrap().dead_lettered, 1);
    assert_eq!((counters.dead_lettered, counters.cancelled), (1, 1));
    assert!(page.contains("failed attempts: ?"), "{page}");
}

// newcomers 28, C3: it looked at the first 32 messages of each queue, which backing-off jobs are not among.
#[tokio::test(start_paused = true)]
async fn search_by_an_id_finds_jobs_of_every_state_and_letters_behind_others() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for number in 0..40 {
        let _ = queue.send(&task("dies")).id(format!("dies-{number}")).await.unwrap();
    }
    let _ = queue.send(&task("snoozed")).id("snoozed").await.unwrap();
    let handler = async |task: Task| match task.name.as_str() {
        "dies" => Err::<(), _>(JobError::dead_letter("no")),
        _ => Err(JobError::snooze(Duration::from_secs(36_000))),
    };
    let worker = worker(&storage).circuit_breaker(None).handle(handler).build().unwrap();
    assert_eq!(worker.run_until(after(60)).await.unwrap().dead_lettered, 40);
    let _ = queue.send(&task("later")).delay(Duration::from_secs(36_000)).id("later").await.unwrap();
    let dashboard = Dashboard::new(operator(&storage)).router();
    for (id, place) in [("dies-39", "dead"), ("snoozed", "backing off"), ("later", "delayed")] {
        let (_, _, page) = get(&dashboard, &format!("/search?id={id}")).await;
        assert!(page.contains(&format!("<span class=\"tag\">{place}</span>")), "{id}: {page}");
    }
    let (_, _, page) = get(&dashboard, "/search?id=never").await;
    assert!(page.contains("No job with this id waits or runs"), "{page}");
}
