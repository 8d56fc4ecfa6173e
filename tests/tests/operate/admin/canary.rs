//! The outcome of jobs that are put back, and the redrive that waits for the first of them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::storage::{Operation, PutMessage, StoreErrorKind};
use jobqueue::{JobError, JobInfo, QueueName, Storage};
use jobqueue_admin::{Admin, BulkReport, DeadLetterFilter, QueueHold};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::admin::support::operator;

/// Dead-letters so many jobs.
pub(super) async fn dead(storage: &Storage, jobs: u32) -> Admin {
    let queue = storage.queue::<Task>().await.unwrap();
    for number in 0..jobs {
        let _ = queue.send(&task(number.to_string())).id(number.to_string()).await.unwrap();
    }
    let _ = run(storage, |_| Err(JobError::dead_letter("row 17 is locked")), 60).await;
    operator(storage)
}

/// Runs a worker for so many seconds.
pub(super) async fn run(
    storage: &Storage,
    end: impl Fn(&str) -> Result<(), JobError> + Clone + Send + Sync + 'static,
    seconds: u64,
) -> u64 {
    let handler = move |_: Task, info: JobInfo| {
        let end = end.clone();
        async move {
            sleep(Duration::from_secs(5)).await;
            end(&info.id)
        }
    };
    let worker = worker(storage).circuit_breaker(None).handle(handler).build().unwrap();
    worker.run_until(after(seconds)).await.unwrap().completed
}

async fn redrive(admin: &Admin, canary: u64) -> BulkReport {
    admin.redrive("tasks").filter(DeadLetterFilter::all()).canary(canary).run().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn canary_that_dies_again_stops_the_redrive() {
    let storage = in_memory();
    let admin = dead(&storage, 40).await;
    let again = run(&storage, |_| Err(JobError::dead_letter("row 18 is locked")), 300);
    let (report, _) = tokio::join!(redrive(&admin, 3), again);
    assert_eq!((report.count, report.complete), (3, false), "{report:?}");
    let why = report.stopped.as_deref().unwrap();
    assert!(why.contains("died again: row 18 is locked"), "{why}");
    assert_eq!(admin.queue("tasks").await.unwrap().dead_letters, Some(40));
}

#[tokio::test(start_paused = true)]
async fn others_follow_when_the_canary_has_ended_well() {
    let storage = in_memory();
    let admin = dead(&storage, 40).await;
    let ended = Arc::<Mutex<Vec<u64>>>::default();
    let count = Arc::clone(&ended);
    let start = tokio::time::Instant::now();
    let well = move |_: &str| {
        count.lock().unwrap().push(start.elapsed().as_secs());
        Ok(())
    };
    let (report, completed) = tokio::join!(redrive(&admin, 3), run(&storage, well, 300));
    assert_eq!((report.count, report.jobs.len(), completed), (40, 40, 40), "{report:?}");
    assert!(report.complete && report.stopped.is_none(), "{report:?}");
    let times = ended.lock().unwrap().clone();
    // A job runs for five seconds: the fourth began after the first three had ended.
    assert!(times[3] >= times[2] + 5, "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn canary_without_a_worker_waits_until_it_is_stopped() {
    let storage = in_memory();
    let admin = dead(&storage, 5).await;
    let stop = CancellationToken::new();
    let stopping = async {
        sleep(Duration::from_secs(3_600)).await;
        stop.cancel();
    };
    let preview = admin.redrive("tasks").filter(DeadLetterFilter::all()).dry_run(true).run().await.unwrap();
    let stoppable = admin.stop_when(stop.clone());
    let bulk = stoppable.redrive("tasks").plan(preview.plan()).canary(2);
    let (report, ()) = tokio::join!(bulk.run(), stopping);
    let report = report.unwrap();
    assert_eq!((report.count, report.complete), (2, false));
    assert!(report.stopped.is_some_and(|why| why.contains("stopped before")));
    // The same plan again takes the others.
    let rest = admin.redrive("tasks").plan(preview.plan()).run().await.unwrap();
    assert_eq!((rest.count, rest.missing), (3, Some(2)));
}

#[tokio::test(start_paused = true)]
async fn outcome_of_a_plan_says_what_became_of_each_job() {
    let storage = in_memory();
    let admin = dead(&storage, 40).await;
    let preview = admin.redrive("tasks").filter(DeadLetterFilter::all()).dry_run(true).run().await.unwrap();
    let plan = preview.plan();
    let outcome = admin.outcome(&plan).await.unwrap();
    assert_eq!((outcome.left, outcome.unknown, outcome.ended), (40, 0, 0), "{outcome:?}");
    let ids = ["1", "2", "3"];
    let redriven = admin.redrive("tasks").filter(DeadLetterFilter::new().ids(ids)).run().await.unwrap();
    assert_eq!(admin.outcome(&redriven.plan()).await.unwrap().open, 3);
    let purged = (4..40).map(|number| number.to_string());
    let _ = admin.purge("tasks").filter(DeadLetterFilter::new().ids(purged)).run().await.unwrap();
    let end = |id: &str| match id {
        "1" => Ok(()),
        "2" => Err(JobError::dead_letter("row 18 is locked")),
        _ => Err(JobError::retry_after(Duration::from_secs(3_600), "later")),
    };
    let _ = run(&storage, end, 60).await;
    let outcome = admin.outcome(&redriven.plan()).await.unwrap();
    assert_eq!((outcome.ended, outcome.open, outcome.left, outcome.unknown), (1, 1, 0, 0), "{outcome:?}");
    let died = &outcome.dead_again[0];
    assert_eq!((died.job.id.as_str(), died.error.as_deref()), ("2", Some("row 18 is locked")));
    let outcome = admin.outcome(&plan).await.unwrap();
    assert_eq!((outcome.left, outcome.ended), (1, 37), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn ages_of_a_filter_count_until_the_beginning_of_the_redrive() {
    let storage = in_memory();
    let admin = dead(&storage, 5).await;
    let young = DeadLetterFilter::new().younger_than(Duration::from_secs(90));
    let slow = async {
        sleep(Duration::from_secs(60)).await;
        run(&storage, |_| Ok(()), 300).await
    };
    let redrive = admin.redrive("tasks").filter(young).canary(1).run();
    let (report, completed) = tokio::join!(redrive, slow);
    let report = report.unwrap();
    assert_eq!((report.count, report.left, completed), (5, 0, 5), "{report:?}");
}

/// Puts texts into the dead-letter queue, as another program may.
async fn put_dead(storage: &Storage, texts: impl IntoIterator<Item = String>) {
    storage.queue::<Task>().await.unwrap();
    let dead = QueueName::new("tasks-poison").unwrap();
    storage.queues().create_queue(&dead, &Metadata::new()).await.unwrap();
    for text in texts {
        let _ = storage.queues().put(&dead, PutMessage::new(text)).await.unwrap();
    }
    sleep(Duration::from_secs(1)).await;
}

// They are put back as messages with other ids, so that nothing is known of them.
#[tokio::test(start_paused = true)]
async fn canary_of_texts_that_are_no_events_lets_none_follow() {
    let storage = in_memory();
    put_dead(&storage, (0..3).map(|number| format!("no event {number}"))).await;
    let report = redrive(&operator(&storage), 1).await;
    assert_eq!((report.count, report.complete), (1, false), "{report:?}");
    assert!(report.stopped.as_deref().unwrap().contains("not to be seen"), "{report:?}");
    let outcome = operator(&storage).outcome(&report.plan()).await.unwrap();
    assert_eq!((outcome.ended, outcome.unknown), (0, 1), "{outcome:?}");
}

// seed 664: such a canary waited for ever, because a look that failed began the time anew.
#[tokio::test(start_paused = true)]
async fn failed_looks_between_others_do_not_prolong_the_wait_for_a_canary() {
    let storage = in_memory();
    put_dead(&storage, (0..3).map(|number| format!("no event {number}"))).await;
    let faulty = Faulty::new(&storage);
    let unread = AtomicU64::new(0);
    // From the sixth look on they are a minute apart: every second one fails.
    let outages = async {
        sleep(Duration::from_secs(30)).await;
        loop {
            sleep(Duration::from_secs(60)).await;
            faulty.plan_always(Operation::Peek, Fault::Refuse(StoreErrorKind::Unavailable));
            sleep(Duration::from_secs(60)).await;
            faulty.heal();
        }
    };
    let admin = operator(&faulty.storage());
    let bulk = admin.redrive("tasks").filter(DeadLetterFilter::all()).canary(1);
    let bulk = bulk.on_progress(|progress| {
        if progress.held_up == Some(QueueHold::Unread) {
            unread.fetch_add(1, Ordering::Relaxed);
        }
    });
    let report = tokio::select! {
        report = tokio::time::timeout(Duration::from_secs(3_600), bulk.run()) => report.unwrap().unwrap(),
        () = outages => unreachable!(),
    };
    assert_eq!((report.count, report.complete), (1, false), "{report:?}");
    assert!(report.stopped.as_deref().unwrap().contains("not to be seen"), "{report:?}");
    assert!(unread.load(Ordering::Relaxed) > 0);
}

// A worker makes events of them, which keep their ids.
#[tokio::test(start_paused = true)]
async fn others_follow_when_a_canary_of_raw_payloads_has_ended_well() {
    let storage = in_memory();
    storage.queue::<Task>().await.unwrap();
    let tasks = QueueName::new("tasks").unwrap();
    for name in ["a", "b", "c"] {
        let payload = PutMessage::new(json!({ "name": name }).to_string());
        let _ = storage.queues().put(&tasks, payload).await.unwrap();
    }
    let _ = run(&storage, |_| Err(JobError::dead_letter("row 17 is locked")), 60).await;
    let admin = operator(&storage);
    let (report, completed) = tokio::join!(redrive(&admin, 1), run(&storage, |_| Ok(()), 300));
    assert_eq!((report.count, report.complete, completed), (3, true, 3), "{report:?}");
    assert_eq!(admin.outcome(&report.plan()).await.unwrap().ended, 3);
}

// The letters do not name the messages that died.
#[tokio::test(start_paused = true)]
async fn canary_that_dies_again_is_known_by_the_time_of_its_letter() {
    let storage = in_memory();
    let event = |id| {
        let data = serde_json::to_value(task("a")).unwrap();
        json!({"specversion": "1.0", "id": id, "source": "/other", "type": "task", "data": data}).to_string()
    };
    put_dead(&storage, ["a", "b", "c", "d"].map(event)).await;
    let admin = operator(&storage);
    let again = run(&storage, |_| Err(JobError::dead_letter("row 18 is locked")), 300);
    let (report, _) = tokio::join!(redrive(&admin, 1), again);
    assert_eq!((report.count, report.complete), (1, false), "{report:?}");
    assert!(report.stopped.as_deref().unwrap().contains("died again: row 18 is locked"), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn other_letters_of_the_jobs_of_a_canary_are_deleted_as_copies_and_counted() {
    for by_plan in [false, true] {
        let storage = in_memory();
        let queue = storage.queue::<Task>().await.unwrap();
        for id in ["twice", "twice", "once"] {
            let _ = queue.send(&task(id)).id(id).await.unwrap();
        }
        let _ = run(&storage, |_| Err(JobError::dead_letter("row 17 is locked")), 60).await;
        let admin = operator(&storage);
        let all = || admin.redrive("tasks").filter(DeadLetterFilter::all());
        let preview = all().dry_run(true).run().await.unwrap();
        assert_eq!((preview.count, preview.copies), (2, 1), "{preview:?}");
        let bulk = if by_plan { admin.redrive("tasks").plan(preview.plan()) } else { all() };
        let (report, completed) = tokio::join!(bulk.canary(1).run(), run(&storage, |_| Ok(()), 300));
        let report = report.unwrap();
        assert_eq!((report.count, report.copies, completed), (2, 1, 2), "{by_plan}: {report:?}");
        assert_eq!((report.missing, report.complete), (by_plan.then_some(0), true), "{by_plan}: {report:?}");
        assert!(report.stopped.is_none(), "{by_plan}: {report:?}");
        assert_eq!(admin.queue("tasks").await.unwrap().dead_letters, Some(0), "{by_plan}");
    }
}

// audit 27, operator B2
#[tokio::test(start_paused = true)]
async fn canary_is_watched_on_after_an_outage() {
    let storage = in_memory();
    let _ = dead(&storage, 40).await;
    let faulty = Faulty::new(&storage);
    let outage = async {
        sleep(Duration::from_secs(3)).await;
        faulty.plan_always(Operation::Peek, Fault::Refuse(StoreErrorKind::Unavailable));
        sleep(Duration::from_secs(300)).await;
        faulty.heal();
    };
    let admin = operator(&faulty.storage());
    let holds = Mutex::new(Vec::new());
    let bulk = admin.redrive("tasks").filter(DeadLetterFilter::all()).canary(3);
    let bulk = bulk.on_progress(|progress| holds.lock().unwrap().extend(progress.held_up));
    let (report, (), completed) = tokio::join!(bulk.run(), outage, run(&storage, |_| Ok(()), 600));
    let report = report.unwrap();
    assert_eq!((report.count, completed), (40, 40), "{report:?}");
    assert!(report.complete && report.stopped.is_none(), "{report:?}");
    assert!(holds.lock().unwrap().contains(&QueueHold::Unread));
}

#[tokio::test(start_paused = true)]
async fn canary_that_waits_hides_no_dead_letter() {
    let storage = in_memory();
    let admin = dead(&storage, 40).await;
    let has_ended = Arc::new(AtomicBool::new(false));
    let end = move |_: &str| match has_ended.swap(true, Ordering::Relaxed) {
        false => Ok(()),
        true => Err(JobError::retry_after(Duration::from_secs(7_200), "later")),
    };
    let stop = CancellationToken::new();
    let stoppable = admin.stop_when(stop.clone());
    let bulk = stoppable.redrive("tasks").filter(DeadLetterFilter::all()).canary(2);
    let stopping = async {
        let _ = run(&storage, end, 3_600).await;
        stop.cancel();
    };
    let (report, ()) = tokio::join!(bulk.run(), stopping);
    assert_eq!(report.unwrap().count, 2);
    let dead = QueueName::new("tasks-poison").unwrap();
    let letters = storage.queues().peek(&dead, 32).await.unwrap();
    assert_eq!(letters.len(), 32);
    assert!(letters.iter().all(|letter| letter.dequeue_count <= 2), "{letters:?}");
}

// A worker was killed between storing the letter and deleting the message.
#[tokio::test(start_paused = true)]
async fn copy_of_a_letter_is_no_death_of_the_canary() {
    let storage = in_memory();
    let admin = dead(&storage, 1).await;
    let letters = storage.queues().peek(&QueueName::new("tasks-poison").unwrap(), 1).await.unwrap();
    put_dead(&storage, [letters[0].text.clone().unwrap()]).await;
    let (report, completed) = tokio::join!(redrive(&admin, 1), run(&storage, |_| Ok(()), 300));
    assert_eq!((report.count, report.stopped.as_deref(), completed), (1, None, 1), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn copy_of_a_letter_of_the_canary_is_taken_with_the_rest_of_its_plan() {
    let storage = in_memory();
    let admin = dead(&storage, 2).await;
    let letters = storage.queues().peek(&QueueName::new("tasks-poison").unwrap(), 1).await.unwrap();
    put_dead(&storage, [letters[0].text.clone().unwrap()]).await;
    let preview = admin.redrive("tasks").filter(DeadLetterFilter::all()).dry_run(true).run().await.unwrap();
    let bulk = admin.redrive("tasks").plan(preview.plan()).canary(1);
    let (report, completed) = tokio::join!(bulk.run(), run(&storage, |_| Ok(()), 300));
    let report = report.unwrap();
    assert_eq!((report.count, report.copies, completed), (2, 1, 2), "{report:?}");
    assert_eq!((report.missing, report.complete), (Some(0), true), "{report:?}");
    assert_eq!(admin.queue("tasks").await.unwrap().dead_letters, Some(0));
}

#[tokio::test(start_paused = true)]
async fn letter_that_was_deleted_as_a_copy_has_no_outcome_of_its_own() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for _ in 0..2 {
        let _ = queue.send(&task("twice")).id("twice").await.unwrap();
    }
    let _ = run(&storage, |_| Err(JobError::dead_letter("row 17 is locked")), 60).await;
    let admin = operator(&storage);
    let preview = admin.redrive("tasks").filter(DeadLetterFilter::all()).dry_run(true).run().await.unwrap();
    let report = admin.redrive("tasks").plan(preview.plan()).run().await.unwrap();
    assert_eq!((report.count, report.copies), (1, 1), "{report:?}");
    assert_eq!(admin.outcome(&preview.plan()).await.unwrap().open, 1);
    let _ = run(&storage, |_| Err(JobError::dead_letter("row 18 is locked")), 60).await;
    let outcome = admin.outcome(&preview.plan()).await.unwrap();
    assert_eq!((outcome.dead_again.len(), outcome.ended), (1, 0), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn letters_of_a_plan_that_a_canary_did_not_meet_are_counted() {
    let storage = in_memory();
    let admin = dead(&storage, 5).await;
    let preview = admin.redrive("tasks").filter(DeadLetterFilter::all()).dry_run(true).run().await.unwrap();
    let _ =
        admin.purge("tasks").filter(DeadLetterFilter::new().ids(["1", "2", "3", "4"])).run().await.unwrap();
    let report = admin.redrive("tasks").plan(preview.plan()).canary(3).run().await.unwrap();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((report.count, json["missing"].as_u64()), (1, Some(4)), "{report:?}");
    let stopped = CancellationToken::new();
    stopped.cancel();
    let stopped = admin.stop_when(stopped);
    let bulk = stopped.redrive("tasks").plan(preview.plan());
    let json = serde_json::to_value(bulk.run().await.unwrap()).unwrap();
    assert!(json["missing"].is_null(), "what was not looked at is not known: {json}");
}

// audit 25, operator B1
#[tokio::test(start_paused = true)]
async fn look_for_the_jobs_of_a_canary_ends_when_the_redrive_is_stopped() {
    let inner = in_memory();
    let _ = dead(&inner, 300).await;
    let faulty = Faulty::new(&inner);
    let admin = operator(&faulty.storage());
    let (stop, waits) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
    let (fired, waiting, gets) = (stop.clone(), Arc::clone(&waits), Arc::<AtomicU64>::default());
    let count = Arc::clone(&gets);
    faulty.on(Operation::Get, move |call| {
        if waiting.load(Ordering::Relaxed) && call.subject == "tasks-poison" {
            fired.cancel();
            count.fetch_add(1, Ordering::Relaxed);
        }
        None
    });
    let stoppable = admin.stop_when(stop);
    let redrive = stoppable.redrive("tasks").filter(DeadLetterFilter::all()).canary(3);
    let redrive = redrive.on_progress(move |at| waits.store(at.waits, Ordering::Relaxed));
    let (report, completed) = tokio::join!(redrive.run(), run(&inner, |_| Ok(()), 300));
    let report = report.unwrap();
    assert_eq!((report.count, completed), (3, 3), "{report:?}");
    assert!(report.stopped.is_some_and(|why| why.contains("stopped before")));
    assert_eq!(gets.load(Ordering::Relaxed), 1);
}
