//! Explanations of queues: how fast their jobs end, what holds the slots, and why jobs do not start.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::worker::{HandlerLimits, RateLimit};
use jobqueue::{ErrorKind, JobError, SendOptions, Storage, WorkerBuilder};
use jobqueue_admin::{EmptyIn, QueueExplanation, RawSend};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory};
use tokio::time::{Instant, sleep};

use crate::admin::explain::send;
use crate::admin::explain_turns::WithoutIndex;
use crate::admin::presence::{operator, present};

/// Explains the queue of tasks, with looks that are `measure` seconds apart.
async fn explain(storage: &Storage, measure: u64) -> (QueueExplanation, Vec<&'static str>) {
    let found = operator(storage).explain_queue("tasks", Duration::from_secs(measure)).await.unwrap();
    let codes = found.reasons.iter().map(|reason| reason.code).collect();
    assert!(found.reasons.iter().all(|reason| !reason.command.is_empty()), "{found:?}");
    assert!(serde_json::to_string(&found).is_ok());
    (found, codes)
}

async fn send_many(storage: &Storage, count: u32) {
    for number in 0..count {
        send(storage, &number.to_string(), SendOptions::new()).await;
    }
}

/// Returns a worker with a record, whose jobs take `seconds` each.
fn busy(storage: &Storage, slots: usize, seconds: u64) -> WorkerBuilder {
    present(storage).concurrency(slots).handle(move |_: Task| async move {
        sleep(Duration::from_secs(seconds)).await;
        Ok::<_, JobError>(())
    })
}

/// Looks 20 seconds after the start of a worker.
async fn beside(worker: WorkerBuilder, look: impl AsyncFnOnce()) {
    let looking = async {
        after(20).await;
        look().await;
    };
    let (report, ()) = tokio::join!(worker.build().unwrap().run_until(after(120)), looking);
    let _ = report.unwrap();
}

#[tokio::test(start_paused = true)]
async fn queue_that_gets_shorter_says_when_it_is_empty_and_which_jobs_hold_its_slots() {
    let storage = in_memory();
    send_many(&storage, 60).await;
    beside(busy(&storage, 2, 10), async || {
        let (found, codes) = explain(&storage, 30).await;
        let rate = found.pace.ended_per_second.unwrap();
        assert!((0.1..0.3).contains(&rate), "two slots, and 10 seconds a job: {rate}");
        let EmptyIn::After { seconds } = found.empty_in else { panic!("{:?}", found.empty_in) };
        assert!((120.0..600.0).contains(&seconds), "{seconds}");
        assert!(found.summary.contains(" ended in the last 30s, and it is empty in about "), "{found:?}");
        assert_eq!(codes, ["no_free_slot"]);
        assert_eq!(found.reasons[0].command, ["workers", "--jobs"]);
        let slots = found.slots.unwrap();
        assert_eq!(slots.slots, 2);
        assert_eq!(slots.running, 2);
        let [holder] = &slots.holders[..] else { panic!("{:?}", slots.holders) };
        assert_eq!(holder.worker, "the worker");
        assert_eq!(holder.kind, "task");
        assert_eq!(holder.queue, "tasks");
        assert_eq!(holder.jobs, 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn queue_whose_jobs_do_not_end_is_never_empty() {
    let storage = in_memory();
    send_many(&storage, 3).await;
    beside(busy(&storage, 1, 3_600), async || {
        let (found, _) = explain(&storage, 30).await;
        assert_eq!(found.pace.ended_per_second, Some(0.0));
        assert_eq!(found.empty_in, EmptyIn::Never);
        assert!(
            found.summary.contains("none ended in the last 30s, and it will not be empty at this pace"),
            "{found:?}"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn rate_that_was_not_measured_is_unknown() {
    let storage = in_memory();
    send_many(&storage, 3).await;
    beside(busy(&storage, 1, 3_600), async || {
        // No record is written within a second, so the counters of the worker stay as they are.
        for measure in [0, 1] {
            let (found, _) = explain(&storage, measure).await;
            assert_eq!(found.pace.ended_per_second, None, "{measure}");
            assert_eq!(found.empty_in, EmptyIn::Unknown, "{measure}");
            assert!(found.summary.contains("the rate at which jobs end is unknown"), "{found:?}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn queue_without_a_worker_says_why_nothing_runs_at_once() {
    let storage = in_memory();
    send_many(&storage, 2).await;
    let admin = operator(&storage);
    let began = Instant::now();
    let (found, codes) = explain(&storage, 3_600).await;
    assert!(began.elapsed() < Duration::from_secs(60), "no worker ends a job");
    assert_eq!(codes, ["no_worker"]);
    assert_eq!(found.empty_in, EmptyIn::Unknown);
    assert_eq!(found.slots.unwrap().slots, 0);
    let _ = admin.pause("tasks").await.unwrap();
    let (found, codes) = explain(&storage, 0).await;
    assert_eq!(codes, ["paused", "no_worker"]);
    assert_eq!(found.reasons[0].command, ["queue", "resume", "tasks"]);
    assert!(found.summary.contains("Held up: the queue is paused by ada"), "{}", found.summary);
    admin.create_queue("empty").await.unwrap();
    let empty = admin.explain_queue("empty", Duration::ZERO).await.unwrap();
    assert_eq!(empty.summary, "It is empty.");
    assert_eq!(empty.empty_in, EmptyIn::After { seconds: 0.0 });
    let missing = admin.explain_queue("missing", Duration::ZERO).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let letters = admin.explain_queue("tasks-poison", Duration::ZERO).await.unwrap_err();
    assert_eq!(letters.kind(), ErrorKind::Invalid);
}

// newcomers 33: neither the error of jobs that back off nor their unknown kind was a reason.
#[tokio::test(start_paused = true)]
async fn jobs_that_back_off_are_explained_by_their_last_error_and_kind() {
    let storage = in_memory();
    send_many(&storage, 3).await;
    operator(&storage).send("tasks", RawSend::json("letter", "{}").unwrap()).await.unwrap();
    let failing = present(&storage).circuit_breaker(None).handle(async |task: Task| {
        let number = task.name;
        Err::<(), _>(JobError::retry_after(Duration::from_secs(600), format!("no route to host {number}")))
    });
    beside(failing, async || {
        let (found, codes) = explain(&storage, 0).await;
        assert!(codes.contains(&"unknown_kind") && codes.contains(&"backing_off"), "{found:?}");
        let why = found.reasons.iter().find(|reason| reason.code == "backing_off").unwrap();
        assert!(why.text.starts_with("of the first 4 that back off, 3 failed last with: "), "{why:?}");
        assert!(why.text.contains("no route to host"), "{why:?}");
        assert_eq!(why.command, ["peek", "tasks", "--state", "backing-off"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn queue_of_delayed_jobs_says_that_none_is_due() {
    let storage = in_memory();
    send(&storage, "later", SendOptions::new().delay(Duration::from_secs(3_600))).await;
    beside(busy(&storage, 1, 10), async || {
        let (found, codes) = explain(&storage, 0).await;
        assert_eq!(codes, ["not_due"], "{found:?}");
        assert_eq!(found.reasons[0].command, ["peek", "tasks", "--state", "delayed"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn rate_limit_of_a_kind_is_the_last_reason_of_its_queue() {
    let storage = in_memory();
    send_many(&storage, 3).await;
    let limits = HandlerLimits::new().rate(&RateLimit::new(1, Duration::from_secs(600)));
    beside(busy(&storage, 8, 1).limit::<Task>(limits), async || {
        let (found, codes) = explain(&storage, 0).await;
        assert_eq!(codes, ["rate_limit"], "{found:?}");
        assert!(found.summary.contains("Held up: perhaps the rate limit of the kind `task`: "), "{found:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn keys_of_the_backlog_are_counted() {
    let storage = in_memory();
    let in_order = || SendOptions::new().in_order().key("ada");
    for id in ["1", "2", "3"] {
        send(&storage, id, in_order()).await;
    }
    send(&storage, "4", SendOptions::new().key("bob")).await;
    let keys = operator(&storage).key_backlog("tasks").await.unwrap();
    assert!(keys.complete);
    assert_eq!(keys.distinct, 2);
    assert_eq!(keys.without_key, Some(0));
    assert_eq!(keys.keys[0].key.as_deref(), Some("ada"));
    assert_eq!(keys.keys[0].jobs, 3);
    assert!(keys.keys[0].in_order);
    assert!(!keys.keys[1].in_order);
    assert_eq!(explain(&storage, 0).await.0.keys, Some(keys));
    // A storage that does not show its jobs knows the keys of jobs in order.
    let shows_few = Storage::from(storage.stores().intercepted(&Arc::new(WithoutIndex)));
    let keys = operator(&shows_few).key_backlog("tasks").await.unwrap();
    let [ada] = &keys.keys[..] else { panic!("{keys:?}") };
    assert_eq!(ada.key.as_deref(), Some("ada"));
    assert_eq!(ada.jobs, 3);
    assert_eq!(keys.without_key, None);
}

#[tokio::test(start_paused = true)]
async fn queue_is_explained_while_the_records_of_workers_cannot_be_read() {
    let storage = in_memory();
    send_many(&storage, 2).await;
    let faulty = Faulty::new(&storage);
    faulty.plan_always(Operation::ListBlobs, Fault::Refuse(StoreErrorKind::Unavailable));
    let (found, codes) = explain(&faulty.storage(), 30).await;
    assert_eq!(codes, ["workers_unread"]);
    assert_eq!(found.slots, None);
    assert_eq!(found.length, Some(2));
    assert_eq!(found.summary, "It has 2 jobs; the rate at which jobs end is unknown.");
}
