//! Explanations of jobs that wait for the rate of their kind.

use std::time::Duration;

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::worker::{HandlerLimits, RateLimit};
use jobqueue::{JobError, SendOptions, Storage};
use jobqueue_admin::{JobPlace, JobReference};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory};
use tokio::time::sleep;

use crate::admin::explain::{explain, send};
use crate::admin::presence::present;

#[tokio::test(start_paused = true)]
async fn rate_limit_of_a_kind_is_named() {
    let storage = in_memory();
    for name in ["first", "second", "third"] {
        send(&storage, name, SendOptions::new()).await;
    }
    let limits = HandlerLimits::new().rate(&RateLimit::new(1, Duration::from_secs(600)));
    let worker =
        present(&storage).concurrency(8).handle(async |_: Task| Ok::<_, JobError>(())).limit::<Task>(limits);
    let looking = async {
        sleep(Duration::from_secs(40)).await;
        let last = JobReference::new("tasks", "third");
        let (found, codes) = explain(&storage, &last).await;
        assert_eq!(found.place, JobPlace::Waiting, "{}", found.summary);
        assert_eq!(codes, vec!["rate_limit"], "{}", found.summary);
        assert!(
            found.summary.contains("it may wait for the rate limit of the kind `task`: "),
            "{}",
            found.summary
        );
    };
    let _ = tokio::join!(worker.build().unwrap().run_until(after(60)), looking);
}

// round 31, newcomer b 1: the rate and the slots were the first reasons of a job that neither held up.
#[tokio::test(start_paused = true)]
async fn turn_of_a_job_comes_before_slots_and_rate() {
    let storage = in_memory();
    for name in ["first", "second"] {
        send(&storage, name, SendOptions::new().in_order().key("k")).await;
    }
    let for_an_hour = async |_: Task| {
        sleep(Duration::from_secs(3_600)).await;
        Ok::<_, JobError>(())
    };
    let limits = HandlerLimits::new().rate(&RateLimit::new(20, Duration::from_secs(1)));
    let worker = present(&storage).concurrency(1).handle(for_an_hour).limit::<Task>(limits);
    let looking = async {
        sleep(Duration::from_secs(40)).await;
        let (found, codes) = explain(&storage, &JobReference::new("tasks", "second")).await;
        assert_eq!(codes, ["waits_for_turn", "no_free_slot", "rate_limit"], "{}", found.summary);
        assert!(found.summary.starts_with("It waits: it is number 2 of 2 of its key"), "{}", found.summary);
    };
    let _ = tokio::join!(worker.build().unwrap().run_until(after(60)), looking);
}

// round 31, newcomer b 1
#[tokio::test(start_paused = true)]
async fn rate_of_a_worker_that_may_have_died_does_not_count() {
    let storage = in_memory();
    for name in ["first", "second", "third"] {
        send(&storage, name, SendOptions::new()).await;
    }
    let faulty = Faulty::new(&storage);
    // Its worker fetches nothing, and later writes no record, as one that was killed.
    faulty.plan_always(Operation::Get, Fault::Hang);
    let limited = |storage: &Storage| {
        let limits = HandlerLimits::new().rate(&RateLimit::new(1, Duration::from_secs(100)));
        let worker = present(storage).concurrency(8).handle(async |_: Task| Ok::<_, JobError>(()));
        worker.limit::<Task>(limits).build().unwrap()
    };
    let rate_is = async |most: &str| {
        let (found, _) = explain(&storage, &JobReference::new("tasks", "third")).await;
        let rate = found.reasons.iter().find(|reason| reason.code == "rate_limit").unwrap();
        assert_eq!(
            rate.text,
            format!("it may wait for the rate limit of the kind `task`: {most} jobs a second")
        );
    };
    let looking = async {
        after(17).await;
        rate_is("0.02").await;
        faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unavailable));
        after(24).await;
        rate_is("0.01").await;
        faulty.heal();
    };
    let (silent, running) = (limited(&faulty.storage()), limited(&storage));
    let (silent, running, ()) =
        tokio::join!(silent.run_until(after(90)), running.run_until(after(90)), looking);
    let _ = (silent.unwrap(), running.unwrap());
}
