//! Explanations: where a job stands, and why it does not run.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::storage::{Operation, PutMessage};
use jobqueue::worker::{HandlerLimits, QueueLimits};
use jobqueue::{JobError, QueueMessage, SendOptions, Storage};
use jobqueue_admin::{DeadLetterFilter, Explanation, JobPlace, JobReference, RawSend};
use jobqueue_testing::faults::{Call, Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};
use tokio::time::sleep;

use crate::admin::explain_turns::WithoutIndex;
use crate::admin::presence::{operator, present};

pub(super) async fn send(storage: &Storage, id: &str, options: SendOptions) -> JobReference {
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task(id)).with(options.id(id)).await.unwrap();
    JobReference::new("tasks", id)
}

pub(super) async fn explain(storage: &Storage, job: &JobReference) -> (Explanation, Vec<&'static str>) {
    let explanation = operator(storage).explain(job).await.unwrap();
    let codes = explanation.reasons.iter().map(|reason| reason.code).collect();
    assert!(!explanation.summary.is_empty());
    assert!(serde_json::to_string(&explanation).is_ok());
    (explanation, codes)
}

/// Looks while a worker that handles tasks for an hour each is present.
async fn beside_a_worker(storage: &Storage, slots: usize, look: impl AsyncFnOnce()) {
    let handler = async |_: Task| {
        sleep(Duration::from_secs(3600)).await;
        Ok::<_, JobError>(())
    };
    let running = present(storage).concurrency(slots).handle(handler).build().unwrap().run_until(after(60));
    let looking = async {
        sleep(Duration::from_secs(40)).await;
        look().await;
    };
    let (report, ()) = tokio::join!(running, looking);
    let _ = report.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiting_job_says_why() {
    let storage = in_memory();
    let job = send(&storage, "one", SendOptions::new()).await;
    let (found, codes) = explain(&storage, &job).await;
    assert_eq!(found.place, JobPlace::Waiting);
    assert_eq!(codes, vec!["no_worker"]);
    let admin = operator(&storage);
    let _ = admin.pause(Task::QUEUE).await.unwrap();
    let (_, codes) = explain(&storage, &job).await;
    assert_eq!(codes, ["paused", "no_worker"]);
    let _ = admin.cancel(&job).await.unwrap();
    let (found, codes) = explain(&storage, &job).await;
    assert_eq!(codes[0], "cancel_requested");
    assert!(found.summary.contains("ada"), "{}", found.summary);
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_behind_those_looked_at_has_not_ended() {
    let storage = in_memory();
    let mut jobs = Vec::new();
    for number in 0..40 {
        jobs.push(send(&storage, &number.to_string(), SendOptions::new()).await);
    }
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("never"));
    let worker = present(&storage).circuit_breaker(None).handle(handler).build().unwrap();
    assert_eq!(worker.run_until(after(60)).await.unwrap().dead_lettered, 40);
    let shows_few = Storage::from(storage.stores().intercepted(&Arc::new(WithoutIndex)));
    let mut hidden = 0;
    for job in &jobs {
        // newcomers 28, C7: also where the storage shows all messages.
        assert_eq!(explain(&storage, job).await.0.place, JobPlace::Dead);
        let (found, codes) = explain(&shows_few, job).await;
        assert_ne!(found.place, JobPlace::Ended, "{}", found.summary);
        assert!(!codes.contains(&"not_found"), "{}", found.summary);
        hidden += u64::from(found.place == JobPlace::Unseen);
    }
    assert_eq!(hidden, 8);
    let never = JobReference::new("tasks", "never");
    let (found, codes) = explain(&shows_few, &never).await;
    assert!(found.place == JobPlace::Unseen && codes.contains(&"behind_dead_letters"), "{codes:?}");
    assert_eq!(explain(&storage, &never).await.1, ["not_found"]);
    let _ = operator(&storage).purge("tasks").filter(DeadLetterFilter::all()).run().await.unwrap();
    let (_, codes) = explain(&shows_few, &never).await;
    assert_eq!(codes, ["not_found"]);
}

// audit 24, OP24-B4
#[tokio::test(start_paused = true)]
async fn dead_letter_behind_those_looked_at_is_not_sought_among_the_jobs() {
    let storage = in_memory();
    let dead = "tasks-poison".parse().unwrap();
    storage.queues().create_queue(&dead, &Metadata::new()).await.unwrap();
    for _ in 0..10_001 {
        let _ = storage.queues().put(&dead, PutMessage::new("of another program")).await.unwrap();
    }
    after(1).await;
    let mut jobs = vec![send(&storage, "dead", SendOptions::new()).await];
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("never"));
    let worker = present(&storage).circuit_breaker(None).handle(handler).build().unwrap();
    assert_eq!(worker.run_until(after(60)).await.unwrap().dead_lettered, 1);
    for number in 0..3 {
        send(&storage, &format!("waits {number}"), SendOptions::new()).await;
    }
    jobs.push(JobReference::new("tasks", "never sent"));
    let mut hidden = 0;
    for job in &jobs {
        let (found, codes) = explain(&storage, job).await;
        assert!(found.has_ended, "no message of the job waits or runs: {codes:?}");
        if found.place == JobPlace::Unseen {
            hidden += 1;
            assert_eq!(codes, ["behind_dead_letters"]);
            assert!(found.summary.contains("about 10002 dead letters"), "{}", found.summary);
            assert!(!found.summary.contains("`jobqueue"), "{}", found.summary);
        }
    }
    assert_eq!(hidden, 2);
}

// audit 24, OP24-C12
#[tokio::test(start_paused = true)]
async fn summary_of_an_unseen_job_says_where_it_may_be() {
    let storage = in_memory();
    send(&storage, "one", SendOptions::new()).await;
    let shows_few = Storage::from(storage.stores().intercepted(&Arc::new(WithoutIndex)));
    let (found, codes) = explain(&shows_few, &JobReference::new("tasks", "other")).await;
    assert_eq!(codes, ["not_visible", "no_worker"]);
    assert!(found.summary.starts_with("It was not found: it is not visible"), "{}", found.summary);
}

// K48
#[tokio::test(start_paused = true)]
async fn job_that_dies_during_a_look_is_found() {
    let storage = in_memory();
    let job = send(&storage, "one", SendOptions::new()).await;
    let faulty = Faulty::new(&storage);
    faulty.on(Operation::ListBlobs, |_| Some(Fault::DelayBefore(Duration::from_secs(6))));
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("never"));
    let running = async {
        // The look has counted the dead letters by then, and lists the workers.
        after(1).await;
        present(&storage).handle(handler).build().unwrap().run_until(after(4)).await
    };
    let watched = faulty.storage();
    let (report, (found, _)) = tokio::join!(running, explain(&watched, &job));
    assert_eq!(report.unwrap().dead_lettered, 1);
    assert_eq!(found.place, JobPlace::Dead, "{}", found.summary);
}

// K48
#[tokio::test(start_paused = true)]
async fn end_in_the_journal_is_no_proof_while_messages_are_not_shown() {
    let storage = in_memory();
    let done = send(&storage, "done", SendOptions::new()).await;
    let handler = async |task: Task| match task.name.as_str() {
        "done" => Ok(()),
        _ => Err(JobError::dead_letter("never")),
    };
    let run = async || {
        let worker = present(&storage).history(Duration::from_secs(86_400)).circuit_breaker(None);
        let _ = worker.handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    };
    run().await;
    let (found, codes) = explain(&storage, &done).await;
    assert!(found.place == JobPlace::Ended && codes.is_empty(), "{codes:?}");
    assert!(found.job.source.is_none() && found.reference().source.is_some(), "its end has its sender");
    for number in 0..40 {
        send(&storage, &number.to_string(), SendOptions::new()).await;
    }
    run().await;
    assert!(explain(&storage, &done).await.1.is_empty(), "it shows all dead letters");
    let shows_few = Storage::from(storage.stores().intercepted(&Arc::new(WithoutIndex)));
    let (found, codes) = explain(&shows_few, &done).await;
    assert!(found.place == JobPlace::Ended && codes == ["ended_once"], "{codes:?}");
}

#[tokio::test(start_paused = true)]
async fn job_that_is_put_back_during_a_look_has_not_ended() {
    let storage = in_memory();
    let job = send(&storage, "one", SendOptions::new()).await;
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("never"));
    let worker = present(&storage).history(Duration::from_secs(86_400));
    let _ = worker.handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    let faulty = Faulty::new(&storage);
    // The waiting jobs are read before the redrive, the dead letters after it.
    let mut counted = 0;
    faulty.on(Operation::QueueProperties, move |call| {
        counted += u32::from(call.subject == "tasks-poison");
        let is_second = call.subject == "tasks-poison" && counted == 2;
        is_second.then_some(Fault::DelayBefore(Duration::from_secs(60)))
    });
    let putting_back = async {
        sleep(Duration::from_secs(30)).await;
        operator(&storage).redrive("tasks").filter(DeadLetterFilter::all()).run().await.unwrap()
    };
    let watched = faulty.storage();
    let (report, (found, codes)) = tokio::join!(putting_back, explain(&watched, &job));
    assert_eq!(report.count, 1);
    assert_eq!(found.place, JobPlace::Waiting, "{codes:?}: {}", found.summary);
}

#[tokio::test(start_paused = true)]
async fn job_that_dies_after_its_dead_letters_were_read_has_not_ended() {
    let storage = in_memory();
    send(&storage, "other", SendOptions::new()).await;
    let handler = async |task: Task| {
        sleep(Duration::from_secs(if task.name == "other" { 0 } else { 30 })).await;
        Err::<(), _>(JobError::dead_letter("never"))
    };
    let run = async || {
        let unseen = worker(&storage).presence(None).history(Duration::from_secs(86_400));
        unseen.handle(handler).build().unwrap().run_until(after(60)).await.unwrap()
    };
    let _ = run().await;
    let job = send(&storage, "one", SendOptions::new()).await;
    let faulty = Faulty::new(&storage);
    faulty.on(Operation::Peek, |call| {
        (call.subject == "tasks-poison").then_some(Fault::DelayAfter(Duration::from_secs(60)))
    });
    let watched = faulty.storage();
    let looking = async {
        sleep(Duration::from_secs(10)).await;
        explain(&watched, &job).await
    };
    let (report, (found, codes)) = tokio::join!(run(), looking);
    assert_eq!(report.dead_lettered, 1);
    assert!(matches!(found.place, JobPlace::Running | JobPlace::Dead), "{codes:?}: {}", found.summary);
}

#[tokio::test(start_paused = true)]
async fn running_job_and_those_behind_it_are_told_apart() {
    let storage = in_memory();
    let first = send(&storage, "first", SendOptions::new()).await;
    beside_a_worker(&storage, 1, async || {
        let (found, codes) = explain(&storage, &first).await;
        assert_eq!(found.place, JobPlace::Running);
        assert!(codes.is_empty());
        assert!(found.run.is_some() && found.worker.is_some());
        let second = send(&storage, "second", SendOptions::new()).await;
        let (found, codes) = explain(&storage, &second).await;
        assert_eq!(found.place, JobPlace::Waiting);
        assert_eq!(codes, vec!["no_free_slot"]);
    })
    .await;
}

// D21
#[tokio::test(start_paused = true)]
async fn explanation_does_not_read_the_payload() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let large = format!("{{\"name\":\"a\",\"data\":\"{}\"}}", "x".repeat(100_000));
    let admin = operator(&storage);
    admin.create_queue("tasks").await.unwrap();
    let job = admin.send("tasks", RawSend::json("task", &large).unwrap()).await.unwrap();
    let (found, codes) = explain(&storage, &job).await;
    assert_eq!((found.place, codes), (JobPlace::Waiting, vec!["no_worker"]));
    let payloads = |call: &Call| call.operation == Operation::GetBlob && call.subject.contains("payloads");
    assert!(!faulty.calls().iter().any(payloads), "only its properties are read");
}

#[tokio::test(start_paused = true)]
async fn explanation_reads_the_batch_of_its_job_alone() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    for id in ["mosaic", "other", "third"] {
        storage.batch(id).await.unwrap().send(&task(id)).await.unwrap();
    }
    let is_read = |call: &&Call| call.operation == Operation::GetBlob && call.subject.contains("batches");
    let reads = || faulty.calls().iter().filter(is_read).count();
    let before = reads();
    let (found, _) = explain(&storage, &JobReference::new("tasks", "mosaic/0")).await;
    assert_eq!(found.message.unwrap().batch.unwrap().id, "mosaic");
    assert_eq!(reads() - before, 1);
}

#[tokio::test(start_paused = true)]
async fn many_ids_cost_one_look() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let mut jobs = vec![JobReference::new("tasks", "never sent")];
    for number in 0..20 {
        jobs.push(send(&storage, &number.to_string(), SendOptions::new()).await);
    }
    let look = async |jobs: &[JobReference]| {
        let before = faulty.calls().len();
        let found = operator(&storage).identify_all(jobs).await.unwrap();
        (found, faulty.calls().len() - before)
    };
    let ((one, calls), (all, calls_for_all)) = (look(&jobs[..1]).await, look(&jobs).await);
    assert!(!one[0].is_open && one[0].job == jobs[0]);
    assert!(all[1..].iter().all(|found| found.is_open && found.job.source.is_some()));
    assert_eq!(calls_for_all, calls);
}

#[tokio::test(start_paused = true)]
async fn unknown_kind_and_missing_payload_are_told() {
    let storage = in_memory();
    let _ = send(&storage, "other", SendOptions::new()).await;
    let admin = operator(&storage);
    beside_a_worker(&storage, 1, async || {
        let large = format!("\"{}\"", "x".repeat(100_000));
        let job = admin.send("tasks", RawSend::json("<b>new</b>", &large).unwrap()).await.unwrap();
        storage.blobs().delete_container(&"jobqueue-payloads".parse().unwrap()).await.unwrap();
        let (_, codes) = explain(&storage, &job).await;
        assert_eq!(codes, ["unknown_kind", "payload_missing", "no_free_slot"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn job_in_order_says_for_whom_it_waits() {
    let storage = in_memory();
    for id in ["first", "second", "third"] {
        let _ = send(&storage, id, SendOptions::new().in_order().key("k")).await;
    }
    let (found, codes) = explain(&storage, &JobReference::new("tasks", "third")).await;
    assert_eq!(codes, ["no_worker", "waits_for_turn"]);
    assert_eq!(found.reasons[1].text, "it is number 3 of 3 of its key, and waits for first");
}

#[tokio::test(start_paused = true)]
async fn dead_delayed_and_ended_jobs_are_told() {
    let storage = in_memory();
    let dead = send(&storage, "dead", SendOptions::new()).await;
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("no such address"));
    let _ = present(&storage).handle(handler).build().unwrap().run_until(after(30)).await.unwrap();
    let (found, codes) = explain(&storage, &dead).await;
    assert_eq!(found.place, JobPlace::Dead);
    assert_eq!(codes, vec!["dead_letter"]);
    assert_eq!(found.summary, "It is a dead letter: rejected: no such address.");
    let (found, codes) = explain(&storage, &JobReference::new("tasks", "never sent")).await;
    assert_eq!(found.place, JobPlace::Unseen);
    assert_eq!(codes, ["not_found"]);
    let delayed = send(&storage, "delayed", SendOptions::new().delay(Duration::from_secs(60))).await;
    let (found, codes) = explain(&storage, &delayed).await;
    assert_eq!(found.place, JobPlace::Delayed);
    assert_eq!(codes, ["delayed_until", "no_worker"]);
}

#[tokio::test(start_paused = true)]
async fn limits_of_queue_and_kind_are_named_when_they_are_reached() {
    for of_kind in [false, true] {
        let storage = in_memory();
        let handler = async |_: Task| {
            sleep(Duration::from_secs(3600)).await;
            Ok::<_, JobError>(())
        };
        for name in ["first", "second"] {
            send(&storage, name, SendOptions::new()).await;
        }
        let third = send(&storage, "third", SendOptions::new()).await;
        let worker = present(&storage).concurrency(8).handle(handler);
        let worker = match of_kind {
            false => worker.limit_queue("tasks", QueueLimits::new().concurrency(2)),
            true => worker.limit::<Task>(HandlerLimits::new().concurrency(2)),
        };
        let looking = async {
            sleep(Duration::from_secs(40)).await;
            let (found, codes) = explain(&storage, &third).await;
            let wanted = if of_kind { "kind_limit" } else { "queue_limit" };
            assert_eq!(found.place, JobPlace::Waiting);
            assert_eq!(codes, vec![wanted]);
            assert!(
                found.summary.contains("limit for the ")
                    && found.summary.contains("is reached: 2 jobs at once"),
                "{}",
                found.summary
            );
        };
        let _ = tokio::join!(worker.build().unwrap().run_until(after(60)), looking);
    }
}
