//! A plan: what a preview found is what a redrive or a purge takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jobqueue::batch::OnDeadLetters;
use jobqueue::settings::Metadata;
use jobqueue::storage::{Operation, PutMessage, QueueName, StoreErrorKind};
use jobqueue::{ErrorKind, JobError, Storage, Worker};
use jobqueue_admin::{Admin, DeadLetterFilter, DeadLetterPlan, JobReference, RawSend};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::admin::support::{operator, send, storages};

const QUEUE: &str = "tasks";

async fn die(storage: &Storage, ids: impl IntoIterator<Item = String>) -> Admin {
    let admin = operator(storage);
    send(&admin, QUEUE, ids).await;
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("planted"));
    let worker = Worker::builder(storage.clone()).handle_on(QUEUE, handler).build().unwrap();
    let _ = worker.run_until_idle().await.unwrap();
    admin
}

fn numbered(jobs: std::ops::Range<u32>) -> impl Iterator<Item = String> {
    jobs.map(|number| number.to_string())
}

async fn dead(admin: &Admin) -> u64 {
    admin.queue(QUEUE).await.unwrap().dead_letters.unwrap()
}

// `dead redrive --dry-run` wrote no plan, although the preview had met all.
#[tokio::test(start_paused = true)]
async fn preview_that_has_met_all_is_complete_although_it_is_stopped() {
    let storage = in_memory();
    let _ = die(&storage, numbered(0..5)).await;
    for (limit, is_complete) in [(1, true), (4, false)] {
        let stop = CancellationToken::new();
        let admin = operator(&storage).stop_when(stop.clone());
        let preview = admin.redrive(QUEUE).filter(DeadLetterFilter::all()).limit(limit).dry_run(true);
        let preview = preview.on_progress(|_| stop.cancel()).run().await.unwrap();
        assert_eq!(preview.complete, is_complete, "{preview:?}");
        assert_eq!(preview.stopped.is_none(), is_complete, "{preview:?}");
    }
}

// D1
#[tokio::test]
async fn a_plan_leaves_alone_what_died_after_its_preview() {
    for (storage, _folder) in storages().await {
        let admin = die(&storage, numbered(0..3)).await;
        let filter = DeadLetterFilter::new().reason("rejected");
        let plan = admin.purge(QUEUE).filter(filter).dry_run(true).run().await.unwrap().plan();
        // More than a few pages of newer ones, and one of the plan that died again.
        let _ = admin.redrive(QUEUE).filter(DeadLetterFilter::new().ids(["1"])).run().await.unwrap();
        die(&storage, numbered(100..300)).await;
        assert_eq!(dead(&admin).await, 203);
        let json = serde_json::to_string(&plan).unwrap();
        let plan: DeadLetterPlan = serde_json::from_str(&json).unwrap();
        let report = admin.purge(QUEUE).plan(plan).run().await.unwrap();
        let mut purged: Vec<_> = report.jobs.iter().map(|job| job.id.as_str()).collect();
        purged.sort_unstable();
        assert_eq!(purged, ["0", "2"]);
        assert_eq!((report.newer, report.missing), (201, Some(1)));
        assert_eq!(dead(&admin).await, 201);
    }
}

// D4
#[tokio::test]
async fn a_change_without_a_selection_is_refused() {
    let storage = Storage::memory();
    let admin = die(&storage, numbered(0..2)).await;
    let other = DeadLetterPlan::of_jobs("other", [JobReference::new("other", "1")]);
    for bulk in [
        admin.purge(QUEUE),
        admin.redrive(QUEUE),
        admin.purge(QUEUE).filter(DeadLetterFilter::new()),
        admin.purge(QUEUE).plan(other),
    ] {
        assert_eq!(bulk.run().await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    let nothing = admin.purge(QUEUE).filter(DeadLetterFilter::new().kind("none")).dry_run(true).run().await;
    assert_eq!(admin.purge(QUEUE).plan(nothing.unwrap().plan()).run().await.unwrap().count, 0);
    assert_eq!(dead(&admin).await, 2);
}

// D3
#[tokio::test]
async fn jobs_of_two_senders_with_one_id_are_told_apart() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        send(&admin, QUEUE, []).await;
        for source in ["/bank", "/shop"] {
            let job = RawSend::json("task", "{\"name\":\"a\"}").unwrap().id("7").source(source);
            let _ = admin.send(QUEUE, job).await.unwrap();
        }
        die(&storage, []).await;
        let shop = DeadLetterFilter::new().ids(["7"]).source("/shop");
        assert_eq!(admin.dead_letters(QUEUE, &shop).await.unwrap().matching, 1);
        let plan = DeadLetterPlan::of_jobs(QUEUE, [JobReference::new(QUEUE, "7").with_source("/shop")]);
        let report = admin.purge(QUEUE).plan(plan).run().await.unwrap();
        assert_eq!(report.jobs, [JobReference::new(QUEUE, "7").with_source("/shop")]);
        let left = admin.dead_letters(QUEUE, &DeadLetterFilter::new()).await.unwrap();
        assert_eq!(left.letters[0].source, "/bank");
    }
}

#[tokio::test]
async fn letters_of_a_job_that_was_sent_twice_are_told_apart() {
    for (storage, _folder) in storages().await {
        for shown in ["first", "second"] {
            let admin = operator(&storage);
            send(&admin, QUEUE, ["7", "7"].map(str::to_owned)).await;
            let runs = Arc::new(AtomicU32::new(0));
            let handler = move |_: Task| {
                let error = ["first", "second"][runs.fetch_add(1, Ordering::Relaxed) as usize];
                async move { Err::<(), _>(JobError::dead_letter(error)) }
            };
            let worker = Worker::builder(storage.clone()).concurrency(1).handle_on(QUEUE, handler);
            let report = worker.build().unwrap().run_until_idle().await.unwrap();
            assert_eq!(report.dead_lettered, 2);
            let filter = DeadLetterFilter::new().text(shown);
            let plan = admin.purge(QUEUE).filter(filter).dry_run(true).run().await.unwrap().plan();
            assert_eq!(plan.letters.len(), 1);
            assert_eq!(admin.purge(QUEUE).plan(plan).run().await.unwrap().count, 1);
            let left = admin.dead_letters(QUEUE, &DeadLetterFilter::new()).await.unwrap().letters;
            assert_eq!(left.len(), 1);
            assert_ne!(left[0].last_error.as_deref(), Some(shown), "it deleted what nobody was shown");
            let _ = admin.purge(QUEUE).filter(DeadLetterFilter::all()).run().await.unwrap();
        }
    }
}

// D6
#[tokio::test]
async fn a_plan_of_one_job_does_not_read_the_whole_queue() {
    let faulty = Faulty::new(&Storage::memory());
    let storage = faulty.storage();
    let admin = die(&storage, numbered(0..200)).await;
    let (gets, updates) = (faulty.calls_of(Operation::Get), faulty.calls_of(Operation::Update));
    let plan = DeadLetterPlan::of_jobs(QUEUE, [JobReference::new(QUEUE, "5")]);
    assert_eq!(admin.redrive(QUEUE).plan(plan).run().await.unwrap().count, 1);
    assert!(faulty.calls_of(Operation::Get) - gets <= 3, "at most the first pages");
    assert!(faulty.calls_of(Operation::Update) - updates < 100, "the others are not leased");
}

#[tokio::test]
async fn a_limit_leaves_open_what_of_a_plan_is_missing() {
    let storage = Storage::memory();
    let admin = die(&storage, numbered(0..3)).await;
    let all = || admin.redrive(QUEUE).filter(DeadLetterFilter::all());
    let plan = all().dry_run(true).run().await.unwrap().plan();
    let purged = admin.purge(QUEUE).filter(DeadLetterFilter::new().ids(["1"])).run().await.unwrap();
    assert_eq!(purged.count, 1);
    let first = admin.redrive(QUEUE).plan(plan.clone()).limit(1).run().await.unwrap();
    assert_eq!((first.count, first.missing), (1, None));
    let rest = admin.redrive(QUEUE).plan(plan).run().await.unwrap();
    assert_eq!((rest.count, rest.missing), (1, Some(2)));
}

// A worker died between storing a letter and deleting its message.
#[tokio::test]
async fn a_plan_takes_the_copies_that_its_preview_counted() {
    for (storage, _folder) in storages().await {
        for purges in [true, false] {
            let admin = die(&storage, numbered(0..2)).await;
            let letters = QueueName::new("tasks-poison").unwrap();
            let first = storage.queues().peek(&letters, 1).await.unwrap().remove(0);
            let _ = storage.queues().put(&letters, PutMessage::new(first.text.unwrap())).await.unwrap();
            let bulk = || if purges { admin.purge(QUEUE) } else { admin.redrive(QUEUE) };
            let preview = bulk().filter(DeadLetterFilter::all()).dry_run(true).run().await.unwrap();
            assert_eq!((preview.count, preview.copies), (2, 1), "{preview:?}");
            let report = bulk().plan(preview.plan()).run().await.unwrap();
            assert_eq!((report.count, report.copies), (2, 1), "{report:?}");
            assert_eq!((report.missing, report.complete), (Some(0), true), "{report:?}");
            assert_eq!(dead(&admin).await, 0);
        }
    }
}

// round 35, E6: it was said to be gone, or held by others.
#[tokio::test(start_paused = true)]
async fn letter_that_stays_because_its_job_was_put_back_is_not_missing() {
    let storage = in_memory();
    let admin = operator(&storage);
    let letters = QueueName::new("tasks-poison").unwrap();
    for queue in [QUEUE, letters.as_str()] {
        admin.create_queue(queue).await.unwrap();
    }
    // With the largest base, neither letter is certainly the older.
    let event = json!({"specversion": "1.0", "id": "7", "source": "/shop", "type": "task", "data": {"name": "a"},
                       "fencebase": 9_007_199_254_740_991_u64});
    for _ in 0..2 {
        let _ = storage.queues().put(&letters, PutMessage::new(event.to_string())).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let preview = admin.purge(QUEUE).filter(DeadLetterFilter::all()).dry_run(true).run().await.unwrap();
    let mut plan = preview.plan();
    assert_eq!(plan.letters.len(), 2);
    plan.letters.push(JobReference::new(QUEUE, "gone").into());
    let report = admin.redrive(QUEUE).plan(plan).run().await.unwrap();
    assert_eq!((report.count, report.copies, report.left), (1, 0, 1), "{report:?}");
    assert_eq!((report.missing, dead(&admin).await), (Some(1), 1), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn purge_counts_the_children_that_batches_wait_for() {
    let storage = in_memory();
    let mut batch = storage.batch("waits").await.unwrap();
    batch.send_all(["0", "1"].map(task)).await.unwrap();
    batch.then(&task("join")).await.unwrap();
    let mut batch = storage.batch("goes-on").await.unwrap();
    batch.on_dead_letters(OnDeadLetters::Continue).send_all([task("2")]).await.unwrap();
    batch.then(&task("join")).await.unwrap();
    let _ = storage.queue::<Task>().await.unwrap().send(&task("3")).await.unwrap();
    let handler = async |task: Task| match task.name.as_str() {
        "join" => Ok(()),
        _ => Err(JobError::dead_letter("tile is missing")),
    };
    let _ = worker(&storage)
        .circuit_breaker(None)
        .handle(handler)
        .build()
        .unwrap()
        .run_until(after(60))
        .await
        .unwrap();
    let faulty = Faulty::new(&storage);
    faulty.plan_always(Operation::GetBlob, Fault::Refuse(StoreErrorKind::Unauthorized));
    let (admin, blind) = (operator(&storage), operator(&faulty.storage()));
    for (preview, waited_for) in [
        (admin.redrive("tasks").dry_run(true), Some(2)),
        (admin.purge("tasks").dry_run(true), Some(2)),
        (blind.purge("tasks").dry_run(true), None),
        (admin.purge("tasks"), Some(2)),
    ] {
        let report = preview.filter(DeadLetterFilter::all()).run().await.unwrap();
        assert_eq!((report.count, report.waited_for), (4, waited_for), "{report:?}");
    }
    assert!(admin.batch("goes-on").await.unwrap().finished);
    assert!(!admin.batch("waits").await.unwrap().finished);
}

// The purge of a continuation said that no batch waits for its letter.
#[tokio::test(start_paused = true)]
async fn purge_counts_the_continuation_that_its_batch_waits_for() {
    let storage = in_memory();
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send(&task("tile")).await.unwrap();
    batch.then(&task("join")).await.unwrap();
    let handler = async |task: Task| match task.name.as_str() {
        "join" => Err(JobError::dead_letter("no printer")),
        _ => Ok(()),
    };
    let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    let poison = "tasks-poison".parse().unwrap();
    let forged = json!({"specversion": "1.0", "id": "mosaic", "source": "/s", "type": "task",
        "batchof": "mosaic", "batchoftoken": "t", "data": {"name": "a"}});
    let _ = storage.queues().put(&poison, PutMessage::new(forged.to_string())).await.unwrap();
    let admin = operator(&storage);
    for bulk in [admin.redrive(QUEUE).dry_run(true), admin.purge(QUEUE).dry_run(true), admin.purge(QUEUE)] {
        let report = bulk.filter(DeadLetterFilter::all()).run().await.unwrap();
        assert_eq!(report.count, 2, "{report:?}");
        assert_eq!(report.waited_for, Some(1), "{report:?}");
    }
    assert!(admin.batch("mosaic").await.unwrap().continuation.unwrap().is_gone);
}

// audit 25, operator C7
#[tokio::test(start_paused = true)]
async fn batches_of_many_letters_are_read_after_a_pass_of_minutes() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    storage.queue::<Task>().await.unwrap();
    let poison = "tasks-poison".parse().unwrap();
    storage.queues().create_queue(&poison, &Metadata::new()).await.unwrap();
    for number in 0..1_000 {
        let event = json!({"specversion": "1.0", "id": number.to_string(), "source": "/s", "type": "task",
            "batchid": format!("none-{number}"), "batchindex": "0", "batchtoken": "t", "data": {"name": "a"}});
        let _ = storage.queues().put(&poison, PutMessage::new(event.to_string())).await.unwrap();
    }
    faulty.on(Operation::GetBlob, |_| Some(Fault::DelayBefore(Duration::from_millis(20))));
    let admin = operator(&storage);
    let preview = admin.purge("tasks").filter(DeadLetterFilter::all()).dry_run(true);
    let report = preview.run().await.unwrap();
    assert_eq!((report.count, report.waited_for), (1_000, Some(0)));
}

// audit 25, operator C12
#[tokio::test]
async fn senders_of_an_ambiguous_id_are_listed_up_to_a_bound() {
    let storage = in_memory();
    let admin = operator(&storage);
    admin.create_queue("tasks").await.unwrap();
    for number in 0..12 {
        let job = RawSend::json("task", r#"{"name":"a"}"#).unwrap().id("7").source(&format!("/s{number:02}"));
        let _ = admin.send("tasks", job).await.unwrap();
    }
    let text = admin.identify(&JobReference::new("tasks", "7")).await.unwrap_err().to_string();
    assert!(text.contains("/s00, ") && text.ends_with("/s09 and 2 more"), "{text}");
}

// round 34, A7: an entry without a message took any letter of its job.
#[tokio::test]
async fn letter_that_names_no_message_stands_for_no_other_letter_of_its_job() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        send(&admin, QUEUE, []).await;
        let job = RawSend::json("task", "{\"name\":\"a\"}").unwrap().id("7").source("/shop");
        let _ = admin.send(QUEUE, job).await.unwrap();
        die(&storage, []).await;
        // As another program, or Service Bus itself, moves a message of the job.
        let moved = json!({
            "specversion": "1.0", "id": "7", "source": "/shop", "type": "task", "data": { "name": "a" },
        });
        let dead_letters = QueueName::new(QUEUE).unwrap().dead_letter().unwrap();
        let put = PutMessage::new(moved.to_string());
        let _ = storage.queues().put(&dead_letters, put).await.unwrap();
        let unknown = DeadLetterFilter::new().reason("unknown");
        let plan = admin.purge(QUEUE).filter(unknown).dry_run(true).run().await.unwrap().plan();
        assert_eq!(plan.letters.len(), 1);
        assert_eq!(admin.purge(QUEUE).plan(plan).run().await.unwrap().count, 1);
        let left = admin.dead_letters(QUEUE, &DeadLetterFilter::new()).await.unwrap().letters;
        let reasons: Vec<_> =
            left.iter().map(|letter| letter.dead.as_ref().unwrap().reason.as_str()).collect();
        assert_eq!(reasons, ["rejected"], "it deleted what nobody was shown");
    }
}
