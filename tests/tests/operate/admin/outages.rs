//! Looks while a part of the storage does not answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::{GetMessages, Operation, StoreErrorKind};
use jobqueue::{JobError, Storage};
use jobqueue_admin::{DeadLetterFilter, JobPlace, JobReference, QueueHold};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::faults::dead_letters_on_two_shards;
use jobqueue_tests::jobs::{Task, in_memory, task, worker};
use tokio::time::{Instant, timeout};

use crate::admin::canary::{dead, run};
use crate::admin::explain_turns::WithoutIndex;
use crate::admin::support::operator;

#[tokio::test(start_paused = true)]
async fn search_says_that_a_part_of_the_queue_did_not_answer() {
    let (storage, faulty) = dead_letters_on_two_shards().await;
    let admin = operator(&storage);
    let search = async || admin.search_dead_letters("tasks", &DeadLetterFilter::new(), 10).await.unwrap();
    faulty.plan_always(Operation::Get, Fault::Refuse(StoreErrorKind::Unavailable));
    let page = search().await;
    assert!(!page.complete && page.matching < 4, "{page:?}");
    assert!(page.stopped.as_deref().is_some_and(|why| why.contains("did not answer")), "{page:?}");
    faulty.heal();
    let page = search().await;
    assert_eq!((page.matching, page.stopped), (4, None));
}

/// On Azure Storage the records of batches are in another service than the queues.
#[tokio::test(start_paused = true)]
async fn batches_are_shown_while_the_queues_cannot_be_listed() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let mut batch = storage.batch("import").await.unwrap();
    batch.send_all([task("a")]).await.unwrap();
    faulty.plan_always(Operation::ListQueues, Fault::Refuse(StoreErrorKind::Unauthorized));
    let found = operator(&storage).batches().await.unwrap();
    let [batch] = &found.batches[..] else { panic!("{found:?}") };
    assert!(found.complete);
    assert_eq!(batch.dead_text(), "?");
}

// On Azure Storage and Service Bus the blobs are in another service than the queues. audit 25, operator C16
#[tokio::test(start_paused = true)]
async fn jobs_are_explained_while_the_blobs_do_not_answer() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("dead")).id("dead").await.unwrap();
    let reject = |_: Task| async { Err::<(), _>(JobError::dead_letter("row 17 is locked")) };
    let _ = worker(&storage).handle(reject).build().unwrap().run_until_idle().await.unwrap();
    let _ = queue.send(&task("waiting")).id("waiting").await.unwrap();
    let admin = operator(&storage);
    for fault in [Fault::Refuse(StoreErrorKind::Unavailable), Fault::Hang] {
        for operation in [Operation::ListBlobs, Operation::GetBlob] {
            faulty.plan_always(operation, fault);
        }
        let looks = [
            // The memory shows the jobs that run by itself.
            ("dead", JobPlace::Dead, true, vec!["dead_letter", "workers_unread", "cancellation_unread"]),
            ("waiting", JobPlace::Waiting, false, vec!["workers_unread", "cancellation_unread"]),
        ];
        for (id, place, has_ended, codes) in looks {
            let job = JobReference::new("tasks", id);
            let found = timeout(Duration::from_secs(20), admin.explain(&job)).await.unwrap().unwrap();
            assert_eq!((found.place, found.has_ended), (place, has_ended), "{found:?}");
            assert_eq!(found.reasons.iter().map(|reason| reason.code).collect::<Vec<_>>(), codes);
        }
        let gone = JobReference::new("tasks", "gone");
        // A job that seems to have ended is looked for twice.
        let found = timeout(Duration::from_secs(40), admin.explain(&gone)).await.unwrap().unwrap();
        assert_eq!(found.place, JobPlace::Unseen, "{found:?}");
        let waiting = JobReference::new("tasks", "waiting");
        let found = timeout(Duration::from_secs(20), admin.identify(&waiting)).await.unwrap().unwrap();
        assert!(found.source.is_some(), "the memory shows all jobs by itself");
        // A change must not be made to one of several jobs because the others are not seen.
        let shows_few =
            operator(&Storage::from(faulty.storage().stores().intercepted(&Arc::new(WithoutIndex))));
        timeout(Duration::from_secs(20), shows_few.identify(&waiting)).await.unwrap().unwrap_err();
        faulty.heal();
    }
}

// audit 28, operator C5
#[tokio::test(start_paused = true)]
async fn job_is_explained_while_its_payload_does_not_answer() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&Task { data: "x".repeat(100_000), ..task("a") }).id("large").await.unwrap();
    let admin = operator(&storage);
    for fault in [Fault::Refuse(StoreErrorKind::Unavailable), Fault::Hang] {
        faulty.plan_always(Operation::BlobProperties, fault);
        let job = JobReference::new("tasks", "large");
        let found = timeout(Duration::from_secs(20), admin.explain(&job)).await.unwrap().unwrap();
        let codes: Vec<_> = found.reasons.iter().map(|reason| reason.code).collect();
        assert_eq!(codes, ["no_worker", "payload_unread"], "{fault:?}");
    }
}

// audit 28, operator B3: it ended after two minutes, although the letters come back after ten.
#[tokio::test(start_paused = true)]
async fn canary_is_watched_on_while_dead_letters_are_hidden() {
    let storage = in_memory();
    let _ = dead(&storage, 100).await;
    let faulty = Faulty::new(&storage);
    let (waits, mut has_lost) = (Arc::new(AtomicBool::new(false)), false);
    let waiting = Arc::clone(&waits);
    faulty.on(Operation::Get, move |call| {
        let loses = waiting.load(Ordering::Relaxed) && call.subject == "tasks-poison" && !has_lost;
        has_lost |= loses;
        loses.then_some(Fault::DropAnswer(StoreErrorKind::Timeout))
    });
    let admin = operator(&faulty.storage());
    let holds = Mutex::new(Vec::new());
    let bulk = admin.redrive("tasks").filter(DeadLetterFilter::all()).canary(3);
    let bulk = bulk.on_progress(|progress| {
        waits.store(progress.waits, Ordering::Relaxed);
        holds.lock().unwrap().extend(progress.held_up);
    });
    let (report, completed) = tokio::join!(bulk.run(), run(&storage, |_| Ok(()), 1_200));
    let report = report.unwrap();
    assert_eq!((report.count, report.stopped.as_deref(), completed), (100, None, 100), "{report:?}");
    assert!(holds.lock().unwrap().contains(&QueueHold::HiddenLetters));
}

/// A flood of new dead letters has the same effect: no check meets all of them.
#[tokio::test(start_paused = true)]
async fn canary_is_not_watched_without_end_while_dead_letters_are_hidden() {
    let storage = in_memory();
    let admin = dead(&storage, 40).await;
    let day = GetMessages::new(1, Duration::from_secs(86_400));
    let held = storage.queues().get(&"tasks-poison".parse().unwrap(), day).await.unwrap();
    assert_eq!(held.messages.len(), 1);
    let began = Instant::now();
    let redrive = async {
        let bulk = admin.redrive("tasks").filter(DeadLetterFilter::all()).canary(3);
        (bulk.run().await.unwrap(), began.elapsed())
    };
    let ((report, took), completed) = tokio::join!(redrive, run(&storage, |_| Ok(()), 1_800));
    assert_eq!((report.count, completed), (3, 3), "{report:?}");
    assert!(report.stopped.as_deref().is_some_and(|why| why.contains("others hold some")), "{report:?}");
    let minute = Duration::from_secs(60);
    assert!(10 * minute < took && took < 15 * minute, "{took:?}");
}
