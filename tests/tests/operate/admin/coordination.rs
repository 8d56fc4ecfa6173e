//! Schedules, leaders, batches and FIFO groups, as operators see them.

use std::time::{Duration, SystemTime};

use jobqueue::schedule::Schedule;
use jobqueue::settings::Metadata;
use jobqueue::storage::{BlobName, ContainerName, Operation, PutBlob, PutMessage, StoreErrorKind};
use jobqueue::{Context, Error, ErrorKind, JobError, JobInfo, QueueMessage, QueueName, SendOptions, Storage};
use jobqueue_admin::{DeadLetterFilter, JobFilter};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::death;
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};
use tokio::time::sleep;

use crate::admin::presence::{operator, present};

fn nightly() -> Schedule {
    Schedule::cron("0 0 * * *", "Europe/Berlin").name("nightly")
}

/// Returns a storage at which it is noon: no slot of the schedule is near.
async fn at_noon() -> Storage {
    const DAY: u64 = 86_400;
    let storage = in_memory();
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    sleep(Duration::from_secs((DAY + DAY / 2 - since_1970 % DAY) % DAY)).await;
    storage
}

/// Runs a leader of the schedule that handles nothing.
async fn lead(storage: &Storage, seconds: u64) {
    let worker = worker(storage).schedule_by(nightly(), || task("from the schedule")).build().unwrap();
    let _ = worker.run_until(after(seconds)).await.unwrap();
}

async fn waiting(storage: &Storage) -> Vec<String> {
    let jobs = operator(storage).peek("tasks").await.unwrap();
    jobs.into_iter().map(|job| job.id).collect()
}

#[tokio::test(start_paused = true)]
async fn schedule_shows_what_it_sends_and_its_next_runs() {
    let storage = at_noon().await;
    let admin = operator(&storage);
    assert!(admin.schedules().await.unwrap().is_empty());
    lead(&storage, 60).await;
    let [schedule] = &admin.schedules().await.unwrap()[..] else { panic!("one schedule") };
    assert_eq!(schedule.name.as_str(), "nightly");
    assert_eq!(schedule.queue.as_deref(), Some("tasks"));
    assert_eq!(schedule.kind.as_deref(), Some("task"));
    assert_eq!(schedule.cron.as_deref(), Some("0 0 * * *"));
    let json = serde_json::to_value(schedule).unwrap();
    let next: Vec<&str> = json["next"].as_array().unwrap().iter().map(|at| at.as_str().unwrap()).collect();
    assert_eq!(next.len(), 5);
    assert!(next.iter().all(|at| at.ends_with(":00:00.000Z")), "midnight in Berlin: {next:?}");
}

#[tokio::test(start_paused = true)]
async fn paused_schedule_sends_nothing_and_goes_on_when_resumed() {
    let storage = at_noon().await;
    let admin = operator(&storage);
    lead(&storage, 60).await;
    assert!(admin.pause_schedule("nightly").await.unwrap());
    assert!(!admin.pause_schedule("nightly").await.unwrap());
    lead(&storage, 3 * 86_400).await;
    assert!(waiting(&storage).await.is_empty());
    assert!(admin.schedules().await.unwrap()[0].paused);
    assert!(admin.resume_schedule("nightly").await.unwrap());
    lead(&storage, 86_400 + 60).await;
    assert_eq!(waiting(&storage).await.len(), 1, "what came due meanwhile is left out");
    assert_eq!(admin.pause_schedule("other").await.unwrap_err().kind(), ErrorKind::NotFound);
}

// Its send had failed for as long as the operator needed to pause the schedule.
#[tokio::test(start_paused = true)]
async fn paused_schedule_does_not_send_a_slot_whose_send_failed() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let faulty = Faulty::new(&at_noon().await);
    let storage = faulty.storage();
    let operating = async {
        sleep(9 * HOUR).await;
        faulty.plan_always(Operation::Put, Fault::Refuse(StoreErrorKind::Unavailable));
        sleep(4 * HOUR).await;
        assert!(operator(&storage).pause_schedule("nightly").await.unwrap());
        // A send that is under way does not look at the pause.
        sleep(HOUR / 60).await;
        faulty.heal();
        sleep(HOUR).await;
        assert!(waiting(&storage).await.is_empty());
    };
    tokio::join!(lead(&storage, 15 * 3_600), operating);
}

#[tokio::test(start_paused = true)]
async fn triggered_schedule_sends_one_job_also_while_paused() {
    let storage = at_noon().await;
    let admin = operator(&storage);
    lead(&storage, 60).await;
    let _ = admin.pause_schedule("nightly").await.unwrap();
    let trigger = admin.trigger_schedule("nightly").await.unwrap();
    assert!(trigger.new && !trigger.led, "its job is sent when a worker leads it: {trigger:?}");
    assert!(!admin.trigger_schedule("nightly").await.unwrap().new, "one is under way");
    lead(&storage, 120).await;
    let ids = waiting(&storage).await;
    assert!(ids.len() == 1 && ids[0].starts_with("schedule/nightly/trigger/"), "{ids:?}");
    assert!(admin.schedules().await.unwrap()[0].triggered.is_none());
}

// R9-9
#[tokio::test(start_paused = true)]
async fn job_of_a_trigger_that_waits_is_not_sent_again_after_a_crash() {
    let storage = at_noon().await;
    lead(&storage, 60).await;
    assert!(operator(&storage).trigger_schedule("nightly").await.unwrap().new);
    let faulty = Faulty::new(&storage);
    let doomed = faulty.clone();
    // The message is stored; the process dies before its answer.
    faulty.on(Operation::Put, move |_| {
        death::now(&doomed);
        Some(Fault::HangAfter)
    });
    lead(&faulty.storage(), 60).await;
    assert_eq!(waiting(&storage).await.len(), 1);
    lead(&storage, 300).await;
    assert_eq!(waiting(&storage).await.len(), 1, "the next leader finds it");
    assert!(operator(&storage).schedules().await.unwrap()[0].triggered.is_none());
}

#[tokio::test(start_paused = true)]
async fn leaders_show_term_and_whether_somebody_leads() {
    let storage = at_noon().await;
    let admin = operator(&storage);
    let watching = async {
        sleep(Duration::from_secs(30)).await;
        let [leader] = &admin.leaders().await.unwrap()[..] else { panic!("one leadership") };
        assert!(leader.held && leader.term.is_some());
        assert_eq!(leader.name, "schedules/nightly");
        let holder = leader.holder.as_deref().unwrap();
        assert!(holder.ends_with(&format!(":{}", std::process::id())), "{holder}");
        assert!(admin.schedules().await.unwrap()[0].led);
        assert!(admin.trigger_schedule("nightly").await.unwrap().led);
    };
    tokio::join!(lead(&storage, 60), watching);
    assert!(!admin.leaders().await.unwrap()[0].held);
    // A queue that is scaled to zero has no worker that leads.
    assert!(!admin.schedules().await.unwrap()[0].led);
}

#[tokio::test(start_paused = true)]
async fn batch_names_the_dead_child_that_holds_it_up() {
    let storage = in_memory();
    let admin = operator(&storage);
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send_all((0..5).map(|n| task(n.to_string()))).await.unwrap();
    batch.then(&task("join")).await.unwrap();
    let handler = async |task: Task, info: JobInfo| match task.name.as_str() {
        "3" => Err(JobError::dead_letter("tile is missing")),
        _ => {
            assert!(info.attempt == 1);
            Ok(())
        }
    };
    let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    let list = admin.batches().await.unwrap();
    assert!(list.complete);
    assert_eq!(list.batches[0].id.as_str(), "mosaic");
    assert_eq!(list.batches[0].done, 4);
    assert!(list.batches[0].sealed);
    assert_eq!((list.batches[0].failed, list.batches[0].dead_text().as_str()), (0, "1"));
    let detail = admin.batch("mosaic").await.unwrap();
    assert_eq!(detail.children, 5);
    assert_eq!((detail.failed, detail.dead_text().as_str()), (0, "1"));
    assert_eq!(detail.done, 4);
    assert!(!detail.finished);
    let [child] = &detail.open[..] else { panic!("{detail:?}") };
    assert_eq!(child.index, 3);
    assert_eq!(child.job.as_str(), "mosaic/3");
    assert_eq!(child.place, "dead");
    assert_eq!(child.queue.as_deref(), Some("tasks"));
    assert_eq!(child.error.as_deref(), Some("tile is missing"));
    // K47: a queue that cannot be read hides no child of another.
    admin.create_queue("secret").await.unwrap();
    let faulty = Faulty::new(&storage);
    faulty.on(Operation::Peek, |call| {
        call.subject.contains("secret").then_some(Fault::Refuse(StoreErrorKind::Unauthorized))
    });
    let partial = operator(&faulty.storage()).batch("mosaic").await.unwrap();
    assert_eq!(partial.open, detail.open);
    assert_eq!(partial.unread, ["secret"]);
    let list = operator(&faulty.storage()).batches().await.unwrap();
    assert_eq!(list.batches[0].dead, 1);
    assert!(list.batches[0].dead_is_exact, "no other child is open");
    // Redriven and done, it holds up nothing.
    let _ = admin.redrive("tasks").filter(DeadLetterFilter::all()).run().await.unwrap();
    let handler = async |_: Task| Ok::<_, JobError>(());
    let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    let detail = admin.batch("mosaic").await.unwrap();
    assert!(detail.finished && detail.open.is_empty());
    assert_eq!(detail.dead_text(), "0");
    assert_eq!(admin.batches().await.unwrap().batches[0].dead_text(), "0");
    assert_eq!(admin.batch("other").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(admin.batch("../x").await.unwrap_err().kind(), ErrorKind::Invalid);
}

/// Runs jobs of which those with a number from 150 die, and the others wait for an hour.
async fn run_those_that_die(storage: &Storage) {
    let handler = async |task: Task| match task.name.parse::<u32>() {
        Ok(150..) => Err::<(), _>(JobError::dead_letter("tile is missing")),
        _ => Err(JobError::snooze(Duration::from_secs(3600))),
    };
    let built = worker(storage).concurrency(200).circuit_breaker(None).handle(handler).build().unwrap();
    let _ = built.run_until(after(60)).await.unwrap();
}

// What is not known is not zero, and what holds the batch up is not behind a hundred jobs that only wait.
#[tokio::test(start_paused = true)]
async fn child_that_has_ended_holds_no_batch_up_with_a_letter_of_another_message() {
    let storage = in_memory();
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send_all((0..2).map(|number| task(number.to_string()))).await.unwrap();
    batch.then(&task("done")).await.unwrap();
    let admin = operator(&storage);
    let queue = "tasks".parse().unwrap();
    let first = storage.queues().peek(&queue, 1).await.unwrap().remove(0).text.unwrap();
    let handler = async |job: Task| match job.name.as_str() {
        "0" => Ok(()),
        _ => Err(JobError::retry_after(Duration::from_secs(7_200), "later")),
    };
    let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    let dead = "tasks-poison".parse().unwrap();
    storage.queues().create_queue(&dead, &Metadata::new()).await.unwrap();
    let _ = storage.queues().put(&dead, jobqueue::storage::PutMessage::new(first)).await.unwrap();
    let [listed] = &admin.batches().await.unwrap().batches[..] else { panic!("one batch") };
    let shown = admin.batch("mosaic").await.unwrap();
    assert_eq!((listed.done, listed.dead, listed.dead_is_exact), (1, 0, true), "{listed:?}");
    assert_eq!((shown.done, shown.dead, shown.dead_is_exact), (1, 0, true), "{shown:?}");
}

#[tokio::test(start_paused = true)]
async fn dead_children_come_first_and_are_counted_as_far_as_known() {
    let storage = in_memory();
    let admin = operator(&storage);
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send_all((0..200).map(|n| task(n.to_string()))).await.unwrap();
    batch.then(&task("join")).await.unwrap();
    run_those_that_die(&storage).await;
    let detail = admin.batch("mosaic").await.unwrap();
    assert_eq!(detail.dead_text(), "50");
    assert_eq!(detail.open.len(), 100);
    assert!(detail.open[50..].iter().all(|child| child.place == "backing_off"), "{detail:?}");
    assert!(detail.open[..50].iter().all(|child| child.place == "dead" && child.index >= 150), "{detail:?}");
    assert_eq!(admin.batches().await.unwrap().batches[0].dead_text(), "32+");
    // Thirty-two that are of no batch hide them.
    let _ = admin.purge("tasks").filter(DeadLetterFilter::all()).run().await.unwrap();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send_all((0..40).map(|n| task((1_000 + n).to_string()))).await.unwrap();
    run_those_that_die(&storage).await;
    let overview = &admin.batches().await.unwrap().batches[0];
    assert_eq!(overview.dead_text(), "?", "{overview:?}");
}

#[tokio::test(start_paused = true)]
async fn tokens_of_batches_are_shown_to_nobody() {
    let storage = in_memory();
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send(&task("tile")).header("tenant", "blue").await.unwrap();
    let shown = operator(&storage).peek("tasks").await.unwrap();
    assert_eq!(shown[0].batch.as_ref().map(|batch| batch.id.as_str()), Some("mosaic"));
    assert_eq!(shown[0].headers["tenant"], "blue");
    assert!(!shown[0].headers.keys().any(|name| name.contains("token")), "{:?}", shown[0].headers.keys());
}

#[tokio::test(start_paused = true)]
async fn groups_show_who_waits_for_whom() {
    let storage = in_memory();
    let admin = operator(&storage);
    let queue = storage.queue::<Task>().await.unwrap();
    for name in ["first", "second", "third"] {
        let options = SendOptions::new().in_order().key("customer 7").id(name);
        let _ = queue.send(&task(name)).with(options).await.unwrap();
    }
    let [group] = &admin.groups("tasks").await.unwrap().groups[..] else { panic!("one group") };
    assert_eq!(group.key.as_deref(), Some("customer 7"));
    let ids: Vec<_> = group.entries.iter().map(|entry| entry.id.as_deref()).collect();
    assert_eq!(ids, [Some("first"), Some("second"), Some("third")]);
    assert_eq!(admin.groups("missing").await.unwrap_err().kind(), ErrorKind::NotFound);
    // A running job is the first, and its progress does not matter to the log.
    let handler = async |_: Task, ctx: Context| {
        ctx.progress(1, 2, "on the way");
        Ok::<_, JobError>(())
    };
    let _ = present(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    let none = admin.groups("tasks").await.unwrap();
    assert!(none.groups.is_empty() && none.complete);
}

/// Fans out a batch whose second child begins a batch of its own, in which one job is broken unless it was
/// `mended`.
async fn run_nested(storage: &Storage, mended: bool) {
    let handler = move |job: Task, ctx: Context| async move {
        match job.name.as_str() {
            "fan out" => {
                let mut inner = ctx.batch("inner").await?;
                inner.send_all(["good", "bad"].map(task)).await?;
                Ok(inner.then(&task("join inner")).await?)
            }
            "bad" if !mended => Err(JobError::dead_letter("tile is missing")),
            _ => Ok(()),
        }
    };
    let _ = worker(storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn batch_of_a_child_is_shown_below_that_of_its_parent() {
    let storage = in_memory();
    let admin = operator(&storage);
    let mut batch = storage.batch("outer").await.unwrap();
    batch.send_all(["plain", "fan out"].map(task)).await.unwrap();
    batch.then(&task("join")).await.unwrap();
    let mut other = storage.batch("other").await.unwrap();
    other.send_all([task("plain")]).await.unwrap();
    other.then(&task("join")).await.unwrap();
    run_nested(&storage, false).await;
    let list = admin.batches().await.unwrap();
    let tree = list.tree();
    let tree: Vec<_> = tree.iter().map(|(branch, batch)| (branch.as_str(), batch.id.as_str())).collect();
    assert_eq!(tree, [("", "outer"), ("└ ", "inner"), ("", "other")], "what is finished comes last");
    let inner = list.tree()[1].1;
    let parent = inner.parent.as_ref().unwrap();
    assert_eq!(parent.batch.as_str(), "outer");
    assert_eq!(parent.child, 1);
    assert_eq!(inner.children, Some(2));
    // What holds the outer batch up is the inner one, and there the dead child.
    let outer = admin.batch("outer").await.unwrap();
    let [child] = &outer.open[..] else { panic!("{outer:?}") };
    assert_eq!(child.index, 1);
    assert_eq!(child.place, "fanned_out");
    assert_eq!(child.batch.as_deref(), Some("inner"));
    let inner = admin.batch("inner").await.unwrap();
    assert_eq!(inner.parent.as_ref().map(|parent| (parent.batch.as_str(), parent.child)), Some(("outer", 1)));
    assert_eq!(inner.open[0].place, "dead");
    assert_eq!(inner.open[0].error.as_deref(), Some("tile is missing"));
    assert_eq!(admin.redrive("tasks").filter(DeadLetterFilter::all()).run().await.unwrap().count, 1);
    run_nested(&storage, true).await;
    assert!(admin.batches().await.unwrap().batches.iter().all(|batch| batch.finished));
}

#[tokio::test(start_paused = true)]
async fn batches_that_somebody_has_put_below_each_other_are_shown_once() {
    let storage = in_memory();
    for (outer, inner) in [("a", "b"), ("b", "a"), ("c", "c")] {
        let container = ContainerName::new("jobqueue-batches").unwrap();
        storage.blobs().create_container(&container).await.unwrap();
        let blob = BlobName::new(container, format!("{outer}/handover/0000000000")).unwrap();
        let options = PutBlob::new().with_metadata(Metadata::new().with("inner", inner));
        storage.blobs().put_blob(&blob, format!("\"{inner}\"").into(), options).await.unwrap();
    }
    let list = operator(&storage).batches().await.unwrap();
    assert_eq!(list.tree().len(), 3);
}

// Another program that passes on headers, such as those of a tenant, passes on those of a child.
#[tokio::test(start_paused = true)]
async fn job_with_the_headers_of_a_child_is_not_shown_as_the_child() {
    let storage = in_memory();
    let admin = operator(&storage);
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send_all([task("tile")]).await.unwrap();
    batch.then(&task("join")).await.unwrap();
    let handler = async |job: Task, ctx: Context| {
        if job.name != "tile" {
            return Err(JobError::dead_letter("the copy is broken"));
        }
        let mut event = serde_json::json!({
            "specversion": "1.0", "id": "copy", "source": "/others", "type": Task::KIND, "datacontenttype": "application/json",
            "data": task("copy"),
        });
        ctx.info().headers.iter().for_each(|(name, value)| event[name] = (&**value).into());
        let tasks = QueueName::new("tasks")?;
        ctx.storage().queues().put(&tasks, PutMessage::new(event.to_string())).await.map_err(Error::from)?;
        Err(JobError::snooze(Duration::from_secs(3_600)))
    };
    let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    let [letter] = &admin.dead_letters("tasks", &DeadLetterFilter::new()).await.unwrap().letters[..] else {
        panic!("one dead letter")
    };
    assert_eq!(letter.headers["batchid"], "mosaic");
    assert_eq!(letter.batch, None);
    assert_eq!(admin.batches().await.unwrap().batches[0].dead_text(), "0");
    assert_ne!(admin.batch("mosaic").await.unwrap().open[0].place, "dead");
    let plan = admin.plan_cancel("tasks", &JobFilter::new().batch("mosaic")).await.unwrap();
    assert_eq!(plan.jobs.iter().map(|job| job.id.as_str()).collect::<Vec<_>>(), ["mosaic/0"]);
}
