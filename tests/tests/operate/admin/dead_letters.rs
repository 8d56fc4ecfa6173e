//! Dead letters: found by a filter, previewed, put back and deleted.

use std::time::Duration;

use jobqueue::storage::{GetMessages, Operation, PutMessage, QueueName, StoreErrorKind, UpdateMessage};
use jobqueue::{ErrorKind, JobError, JobInfo, Storage, Worker};
use jobqueue_admin::{AccessLevel, Admin, BulkReport, DeadLetterFilter, JobState, OperatorResult, RawSend};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::Task;
use tokio_util::sync::CancellationToken;

use crate::admin::support::{operator, put_letter, send, storages, watched};

const QUEUE: &str = "tasks";

/// Dead-letters jobs: the even ones with one error, the odd ones with another.
async fn with_dead_letters(storage: &Storage, jobs: u64) -> Admin {
    let admin = operator(storage);
    send(&admin, QUEUE, (0..jobs).map(|n| n.to_string())).await;
    let handler = async |_: Task, info: JobInfo| {
        let is_even = info.id.parse::<u64>().is_ok_and(|n| n % 2 == 0);
        Err::<(), _>(JobError::dead_letter(if is_even { "No Such Address" } else { "<b>refused</b>" }))
    };
    let worker = Worker::builder(storage.clone()).handle_on(QUEUE, handler).build().unwrap();
    let report = worker.run_until_idle().await.unwrap();
    assert_eq!(report.dead_lettered, jobs);
    admin
}

async fn counts(admin: &Admin) -> (u64, u64) {
    let queue = admin.queue(QUEUE).await.unwrap();
    (queue.length.unwrap(), queue.dead_letters.unwrap())
}

// newcomers 33, 4: a filter looked at the oldest 32.
#[tokio::test]
async fn letters_of_a_filter_are_found_behind_the_first() {
    for (storage, _folder) in storages().await {
        let admin = with_dead_letters(&storage, 40).await;
        let job = RawSend::json("task", r#"{"name":"a","data":""}"#).unwrap().id("of-ada").key("ada");
        let _ = admin.send(QUEUE, job).await.unwrap();
        let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("<b>refused</b>"));
        let worker = Worker::builder(storage.clone()).handle_on(QUEUE, handler).build().unwrap();
        let _ = worker.run_until_idle().await.unwrap();
        let of_ada = admin.dead_letters(QUEUE, &DeadLetterFilter::new().key("ada")).await.unwrap();
        assert_eq!((of_ada.matching, of_ada.looked_at, of_ada.complete), (1, 41, true));
        let refused = admin.dead_letters(QUEUE, &DeadLetterFilter::new().text("refused")).await.unwrap();
        assert_eq!((refused.letters.len(), refused.matching), (21, 21));
        let first = admin.dead_letters(QUEUE, &DeadLetterFilter::new()).await.unwrap();
        assert_eq!((first.looked_at, first.complete), (32, false));
    }
}

#[tokio::test]
async fn filters_select_by_kind_reason_age_text_and_id() {
    for (storage, _folder) in storages().await {
        let admin = with_dead_letters(&storage, 6).await;
        let hour = Duration::from_secs(3600);
        let all = DeadLetterFilter::new();
        let cases = [
            (all.clone(), 6),
            (all.clone().kind("task"), 6),
            (all.clone().kind("other"), 0),
            (all.clone().reason("rejected"), 6),
            (all.clone().reason("attempts_exhausted"), 0),
            (all.clone().text("no such address"), 3),
            (all.clone().text("<B>"), 3),
            (all.clone().text("\"name\":\"4\""), 1),
            // Every message of the queue has these, in its envelope.
            (all.clone().text(QUEUE), 0),
            (all.clone().text("rejected"), 0),
            (all.clone().ids(["1", "2", "77"]), 2),
            (all.clone().younger_than(hour), 6),
            (all.clone().older_than(hour), 0),
            (all.clone().text("refused").ids(["1", "2"]), 1),
        ];
        for (filter, expected) in cases {
            let page = admin.dead_letters(QUEUE, &filter).await.unwrap();
            assert_eq!(page.matching, expected, "{filter:?}");
            assert_eq!(page.looked_at, 6, "{filter:?}");
            assert!(page.complete, "{filter:?}");
            let searched = admin.search_dead_letters(QUEUE, &filter, 2).await.unwrap();
            assert_eq!(searched.matching, expected, "{filter:?}");
            assert_eq!(searched.looked_at, 6, "{filter:?}");
            assert_eq!(searched.letters.len() as u64, expected.min(2));
        }
        let page = admin.dead_letters(QUEUE, &all.ids(["3"])).await.unwrap();
        let job = &page.letters[0];
        let end = job.dead.as_ref().unwrap();
        assert_eq!(job.state, JobState::Dead);
        assert_eq!(end.reason.as_str(), "rejected");
        assert_eq!(job.attempts, 1);
        assert_eq!(job.last_error.as_deref(), Some("<b>refused</b>"));
    }
}

#[tokio::test]
async fn preview_changes_nothing_and_says_what_the_redrive_does() {
    for (storage, _folder) in storages().await {
        let admin = with_dead_letters(&storage, 50).await;
        let even = DeadLetterFilter::new().text("address");
        let mut told = 0;
        let preview =
            admin.redrive(QUEUE).filter(even.clone()).dry_run(true).on_progress(|_| told += 1).run().await;
        let mut preview: BulkReport = preview.unwrap();
        assert_eq!(preview.count, 25);
        assert_eq!(preview.left, 25);
        assert!(preview.dry_run);
        assert_eq!(told, 25);
        let purge = admin.purge(QUEUE).filter(even.clone()).dry_run(true).run().await.unwrap();
        assert_eq!(purge.count, 25);
        assert_eq!(counts(&admin).await, (0, 50));
        let redriven = admin.redrive(QUEUE).plan(preview.plan()).run().await.unwrap();
        assert_eq!(counts(&admin).await, (25, 25));
        let mut redriven_jobs = redriven.jobs.clone();
        preview.jobs.sort();
        redriven_jobs.sort();
        assert_eq!(redriven_jobs, preview.jobs);
        let purged = admin.purge(QUEUE).filter(DeadLetterFilter::all()).run().await.unwrap();
        assert_eq!(purged.count, 25);
        assert_eq!(counts(&admin).await, (25, 0));
    }
}

#[tokio::test]
async fn redrive_that_is_told_to_stop_loses_nothing() {
    for (storage, _folder) in storages().await {
        let admin = with_dead_letters(&storage, 40).await;
        let token = CancellationToken::new();
        let stop = token.clone();
        let listen = move |progress: jobqueue_admin::BulkProgress| {
            assert_eq!(progress.total, Some(40));
            if progress.done == 10 {
                stop.cancel();
            }
        };
        let all = DeadLetterFilter::all();
        let stopped = admin.stop_when(token);
        let report = stopped.redrive(QUEUE).filter(all.clone()).on_progress(listen).run().await.unwrap();
        // Those that were under way are put back, too.
        assert!((10..26).contains(&report.count), "{}", report.count);
        assert!(report.stopped.is_some());
        // Those that it held are visible at once.
        let left = 40 - report.count;
        let letters = admin.dead_letters(QUEUE, &DeadLetterFilter::new()).await.unwrap().letters;
        assert_eq!(letters.len() as u64, left);
        assert_eq!(admin.redrive(QUEUE).filter(all).run().await.unwrap().count, left);
        assert_eq!(counts(&admin).await, (40, 0));
    }
}

#[tokio::test]
async fn limit_and_rate_hold_for_redrive_and_purge() {
    let (storage, _) = storages().await.remove(0);
    let admin = with_dead_letters(&storage, 12).await;
    let started = std::time::Instant::now();
    let all = DeadLetterFilter::all();
    assert_eq!(
        admin.redrive(QUEUE).filter(all.clone()).limit(5).per_second(50).run().await.unwrap().count,
        5
    );
    assert_eq!(admin.purge(QUEUE).filter(all).limit(5).per_second(50).run().await.unwrap().count, 5);
    assert!(started.elapsed() >= Duration::from_millis(2 * 4 * 20), "{:?}", started.elapsed());
    assert_eq!(counts(&admin).await, (5, 2));
}

#[tokio::test]
async fn dead_letters_of_other_programs_are_shown_and_put_back() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        send(&admin, QUEUE, []).await;
        send(&admin, "tasks-poison", []).await;
        let poison = "tasks-poison".parse().unwrap();
        let _ = storage.queues().put(&poison, PutMessage::new("<not an event>")).await.unwrap();
        let page = admin.dead_letters(QUEUE, &DeadLetterFilter::new()).await.unwrap();
        let [letter] = &page.letters[..] else { panic!("one letter") };
        assert_eq!(letter.dead.as_ref().unwrap().reason, "unknown");
        assert!(!letter.id.is_empty() && letter.problem.is_some());
        assert_eq!(admin.redrive(QUEUE).filter(DeadLetterFilter::all()).run().await.unwrap().count, 1);
        let [job] = &admin.peek(QUEUE).await.unwrap()[..] else { panic!("one message") };
        assert_eq!(serde_json::to_value(&job.payload).unwrap()["value"], "<not an event>");
    }
}

#[tokio::test]
async fn large_payload_of_a_dead_letter_is_read_on_request() {
    let (storage, _) = storages().await.remove(0);
    let admin = operator(&storage);
    send(&admin, QUEUE, []).await;
    let json = format!(r#"{{"name":"large","data":"{}"}}"#, "x".repeat(100_000));
    let _ = admin.send(QUEUE, RawSend::json("task", &json).unwrap()).await.unwrap();
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("planted"));
    let worker = Worker::builder(storage.clone()).handle_on(QUEUE, handler).build().unwrap();
    let _ = worker.run_until_idle().await.unwrap();
    let page = admin.dead_letters(QUEUE, &DeadLetterFilter::new()).await.unwrap();
    assert_eq!(admin.payload(&page.letters[0]).await.unwrap().bytes(), json.len() as u64);
}

// D7
#[tokio::test]
async fn dead_letter_without_a_readable_text_is_listed_and_can_be_purged() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jobs.db");
    let storage = Storage::connect(&format!("sqlite:{}", file.display())).await.unwrap();
    let admin = operator(&storage);
    send(&admin, "tasks", []).await;
    put_letter(&admin, "tasks-poison").await;
    let connection = rusqlite::Connection::open(&file).unwrap();
    assert_eq!(connection.execute("UPDATE jobqueue_message SET text = CAST(x'ff' AS TEXT)", []).unwrap(), 1);
    let listed = admin.dead_letters("tasks", &DeadLetterFilter::new()).await.unwrap();
    let [letter] = &listed.letters[..] else { panic!("{listed:?}") };
    assert!(listed.complete);
    assert_eq!(letter.dead.as_ref().unwrap().reason, "unreadable");
    assert!(letter.problem.is_some(), "{letter:?}");
    let unreadable = DeadLetterFilter::new().reason("unreadable").ids([letter.id.clone()]);
    let redrive = admin.redrive("tasks").filter(unreadable.clone()).run().await.unwrap();
    assert_eq!(redrive.count, 0);
    assert!(redrive.skipped[0].error.contains("cannot be read"), "{redrive:?}");
    assert!(!redrive.skipped[0].maybe_moved);
    assert_eq!(admin.queue("tasks").await.unwrap().length, Some(0));
    let purge = admin.purge("tasks").filter(unreadable).run().await.unwrap();
    assert_eq!(purge.count, 1);
    assert_eq!(admin.queue("tasks").await.unwrap().dead_letters, Some(0));
}

#[tokio::test]
async fn text_is_found_however_its_json_is_escaped() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        send(&admin, QUEUE, []).await;
        // Programs in Python send the second, and the third is no event.
        let texts = [r#"{"name":"Müller","data":""}"#, r#"{"name":"M\u00fcller \ud83d\ude00","data":""}"#];
        for text in texts {
            let _ = admin.send(QUEUE, RawSend::json("task", text).unwrap()).await.unwrap();
        }
        let queue = QueueName::new(QUEUE).unwrap();
        let _ = storage.queues().put(&queue, PutMessage::new(texts[1])).await.unwrap();
        let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("planted"));
        let worker = Worker::builder(storage.clone()).handle_on(QUEUE, handler).build().unwrap();
        assert_eq!(worker.run_until_idle().await.unwrap().dead_lettered, 3);
        for (text, expected) in
            [("müller", 3), ("\"name\":\"Müller", 3), ("MÜLLER 😀", 2), ("\\u00fc", 2), ("Mueller", 0)]
        {
            let filter = DeadLetterFilter::new().text(text);
            assert_eq!(admin.dead_letters(QUEUE, &filter).await.unwrap().matching, expected, "{text}");
        }
        let purge = admin.purge(QUEUE).filter(DeadLetterFilter::new().text("Müller")).run().await.unwrap();
        assert_eq!((purge.count, purge.left), (3, 0));
    }
}

#[tokio::test]
async fn a_preview_says_which_letter_a_redrive_deletes_as_a_copy() {
    for (storage, _folder) in storages().await {
        let admin = with_dead_letters(&storage, 1).await;
        let _ = with_dead_letters(&storage, 1).await;
        let preview = admin.redrive(QUEUE).filter(DeadLetterFilter::all()).dry_run(true).run().await.unwrap();
        assert_eq!((preview.count, preview.copies), (1, 1), "{preview:?}");
        assert_eq!(preview.plan().letters.len(), 2, "the redrive deletes it");
        let purge = admin.purge(QUEUE).filter(DeadLetterFilter::all()).dry_run(true).run().await.unwrap();
        assert_eq!((purge.count, purge.copies), (2, 0));
        assert_eq!(counts(&admin).await, (0, 2));
        let report = admin.redrive(QUEUE).plan(preview.plan()).run().await.unwrap();
        assert_eq!((report.count, report.copies, report.missing), (1, 1, Some(0)), "{report:?}");
        assert!(report.complete, "{report:?}");
        assert_eq!(counts(&admin).await, (1, 0));
    }
}

/// Dead-letters jobs whose payloads are in blobs.
async fn with_large_dead_letters(storage: &Storage, jobs: u32) {
    let queue = storage.queue_named::<Task>(QUEUE).await.unwrap();
    for n in 0..jobs {
        let _ = queue.send(&Task { name: n.to_string(), data: "x".repeat(100_000) }).await.unwrap();
    }
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("planted"));
    let worker = Worker::builder(storage.clone()).handle_on(QUEUE, handler).circuit_breaker(None);
    assert_eq!(worker.build().unwrap().run_until_idle().await.unwrap().dead_lettered, u64::from(jobs));
}

// L9
#[tokio::test]
async fn purge_names_what_it_deletes_although_payloads_stay() {
    let faulty = Faulty::new(&Storage::memory());
    let storage = faulty.storage();
    with_large_dead_letters(&storage, 5).await;
    let (admin, events) = watched(&storage, AccessLevel::Operate);
    faulty.plan_always(Operation::DeleteBlob, Fault::Refuse(StoreErrorKind::Unauthorized));
    let one = admin.purge(QUEUE).filter(DeadLetterFilter::all()).limit(1).run().await.unwrap();
    assert_eq!((one.count, one.jobs.len(), one.skipped.len(), one.payloads_left), (1, 1, 0, 1));
    assert_eq!(counts(&admin).await, (0, 4));
    let all = admin.purge(QUEUE).filter(DeadLetterFilter::all()).run().await.unwrap();
    assert_eq!((all.count, all.payloads_left, all.left), (3, 3, 1), "it stops after three refusals");
    assert!(all.stopped.is_some());
    let events = events.lock().unwrap();
    assert_eq!((&events[0].jobs, &events[1].jobs), (&one.jobs, &all.jobs));
    let OperatorResult::Done(detail) = &events[1].result else { panic!("{events:?}") };
    assert!(detail.starts_with("3 deleted, 0 skipped; it ended early: "), "{detail}");
}

// audit 27, operator C1
#[tokio::test]
async fn audit_names_the_jobs_of_copies_that_were_deleted() {
    let faulty = Faulty::new(&Storage::memory());
    let storage = faulty.storage();
    with_large_dead_letters(&storage, 1).await;
    let (admin, events) = watched(&storage, AccessLevel::Operate);
    let redrive = || admin.redrive(QUEUE).filter(DeadLetterFilter::all()).run();
    faulty.plan_always(Operation::Delete, Fault::LoseRequest(StoreErrorKind::Timeout));
    assert_eq!(redrive().await.unwrap().skipped.len(), 1);
    faulty.heal();
    let again = redrive().await.unwrap();
    assert_eq!((again.count, again.copies), (0, 1), "{again:?}");
    let event = events.lock().unwrap().pop().unwrap();
    assert_eq!(event.jobs.len(), 1, "{event:?}");
    assert_eq!(event.result, OperatorResult::Done("0 put back, 1 deleted as copies, 0 skipped".to_owned()));
}

// L9
#[tokio::test]
async fn audit_names_jobs_that_may_be_changed() {
    let faulty = Faulty::new(&Storage::memory());
    let storage = faulty.storage();
    with_large_dead_letters(&storage, 1).await;
    let (admin, events) = watched(&storage, AccessLevel::Operate);
    faulty.plan_always(Operation::Delete, Fault::LoseRequest(StoreErrorKind::Timeout));
    let purge = admin.purge(QUEUE).filter(DeadLetterFilter::all()).run().await.unwrap();
    let redrive = admin.redrive(QUEUE).filter(DeadLetterFilter::all()).run().await.unwrap();
    for report in [purge, redrive] {
        assert_eq!((report.count, report.skipped.len()), (0, 1));
        assert!(report.skipped[0].maybe_moved);
    }
    let events = events.lock().unwrap();
    assert_eq!((events[0].jobs.len(), events[1].jobs.len()), (1, 1));
}

#[tokio::test]
async fn a_look_is_not_complete_while_others_hold_dead_letters() {
    for (storage, _folder) in storages().await {
        let admin = with_dead_letters(&storage, 3).await;
        let (all, none) = (DeadLetterFilter::all(), DeadLetterFilter::new().kind("other"));
        let dead = QueueName::new("tasks-poison").unwrap();
        let held = storage.queues().get(&dead, GetMessages::new(1, Duration::from_secs(300))).await.unwrap();
        assert_eq!(held.messages.len(), 1);
        let page = admin.search_dead_letters(QUEUE, &all, 10).await.unwrap();
        assert_eq!((page.matching, page.looked_at), (2, 2));
        assert!(!page.complete, "{page:?}");
        let report = admin.purge(QUEUE).filter(none.clone()).run().await.unwrap();
        assert_eq!((report.count, report.unseen, report.complete), (0, Some(1), false), "{report:?}");
        let limited = admin.redrive(QUEUE).filter(all.clone()).limit(1).run().await.unwrap();
        assert!(limited.complete && limited.count == 1, "{limited:?}");
        for message in held.messages {
            let given_back = UpdateMessage::new(Duration::ZERO);
            let _ = storage.queues().update(&dead, &message.message, given_back).await.unwrap();
        }
        assert!(admin.search_dead_letters(QUEUE, &all, 10).await.unwrap().complete);
        assert!(admin.purge(QUEUE).filter(none).run().await.unwrap().complete);
    }
}

#[tokio::test]
async fn dead_letters_behind_the_first_are_listed_page_by_page() {
    for (storage, _folder) in storages().await {
        let admin = with_dead_letters(&storage, 70).await;
        let all = DeadLetterFilter::all();
        for (filter, expected, expected_pages) in
            [(all.clone(), 70, 3), (DeadLetterFilter::new().text("refused"), 35, 1)]
        {
            let (mut found, mut pages, mut from) = (Vec::new(), 0, None);
            loop {
                let page = admin.dead_letters_from(QUEUE, &filter, from.as_deref()).await.unwrap();
                found.extend(page.letters.iter().map(|letter| letter.id.clone()));
                (pages, from) = (pages + 1, page.next);
                if from.is_none() {
                    break;
                }
            }
            found.sort_unstable();
            found.dedup();
            assert_eq!(found.len(), expected, "{filter:?}");
            assert_eq!(pages, expected_pages, "{filter:?}");
        }
        let wrong = admin.dead_letters_from(QUEUE, &all, Some("nowhere")).await.unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::Invalid);
        let ids = admin.dead_letters_from(QUEUE, &all.ids(["3"]), Some("nowhere")).await.unwrap_err();
        assert_eq!(ids.kind(), ErrorKind::Invalid);
    }
}
