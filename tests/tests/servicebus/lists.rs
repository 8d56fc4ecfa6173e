//! Lists of all messages of a queue, by peeks.

use jobqueue::ErrorKind;
use jobqueue::storage::{LoggedState, PutMessage};
use jobqueue_admin::{Admin, DeadLetterFilter, JobFilter, JobPlace, JobReference, JobState};
use serde_json::json;

use super::jobs::{Work, work};
use super::{Bench, MINUTE};

fn admin(bench: &Bench) -> Admin {
    Admin::builder(bench.storage.clone()).build()
}

impl Bench {
    /// Sends jobs with the ids `job-0`, `job-1` and so on.
    async fn send_jobs(&self, count: u32) {
        let queue = self.storage.queue::<Work>().await.unwrap();
        for number in 0..count {
            queue.send(&work("listed")).id(format!("job-{number}")).await.unwrap();
        }
    }
}

/// Returns the ids of all jobs that a list shows, page by page.
async fn listed(admin: &Admin, state: JobState) -> Vec<String> {
    let (mut ids, mut from) = (Vec::new(), None::<String>);
    loop {
        let page = admin.jobs("work", state, &JobFilter::new().limit(30).from(from)).await.unwrap();
        assert!(!page.partial);
        ids.extend(page.jobs.into_iter().map(|job| job.id));
        from = page.next;
        if from.is_none() {
            return ids;
        }
    }
}

// The first 32 were listed, and none that is delayed.
#[tokio::test]
async fn jobs_behind_the_first_32_are_listed_by_state() {
    let bench = Bench::new();
    let queue = bench.storage.queue::<Work>().await.unwrap();
    queue.send(&work("running")).id("running").await.unwrap();
    assert!(bench.get().await.is_some());
    queue.send(&work("delayed")).id("delayed").delay(MINUTE).await.unwrap();
    bench.send_jobs(40).await;
    let admin = admin(&bench);
    let waiting = listed(&admin, JobState::Waiting).await;
    assert_eq!(waiting.len(), 41);
    // The service does not show that a message is locked.
    assert_eq!(waiting[0], "running");
    assert_eq!(waiting[40], "job-39");
    assert_eq!(listed(&admin, JobState::Delayed).await, ["delayed"]);
    assert!(listed(&admin, JobState::BackingOff).await.is_empty());
    let running = admin.jobs("work", JobState::Running, &JobFilter::new()).await.unwrap_err();
    assert_eq!(running.kind(), ErrorKind::Invalid, "{running:?}");
}

// It was not among the first 32, and an unknown one may have been behind them.
#[tokio::test]
async fn job_behind_others_is_found_by_its_id() {
    let bench = Bench::new();
    bench.send_jobs(60).await;
    let admin = admin(&bench);
    let found = admin.explain(&JobReference::new("work", "job-59")).await.unwrap();
    assert_eq!(found.place, JobPlace::Waiting, "{found:?}");
    let unknown = admin.explain(&JobReference::new("work", "unknown")).await.unwrap();
    assert!(unknown.has_ended, "{unknown:?}");
    assert!(unknown.reasons.iter().any(|reason| reason.code == "not_found"), "{unknown:?}");
}

// It read on behind the job, as far as two seconds reach.
#[tokio::test]
async fn search_for_a_job_ends_at_the_page_that_has_it() {
    let bench = Bench::new();
    let queue = bench.storage.queue::<Work>().await.unwrap();
    queue.send(&work("first")).id("first").delay(MINUTE).await.unwrap();
    bench.put_delayed(150).await;
    queue.send(&work("last")).id("last").delay(MINUTE).await.unwrap();
    let admin = admin(&bench);
    let peeks = || bench.emulator.calls("peek-message", "work", 0);
    let cost = async |id: &str| {
        let before = peeks();
        let found = admin.explain(&JobReference::new("work", id)).await.unwrap();
        assert_eq!(found.place, JobPlace::Delayed, "{found:?}");
        peeks() - before
    };
    // The first peek passes the delayed messages, and later ones begin behind them.
    cost("first").await;
    let (first, last) = (cost("first").await, cost("last").await);
    assert_eq!(first + 2, last);
}

#[tokio::test]
async fn page_of_a_list_costs_two_peeks_at_most() {
    let bench = Bench::new();
    bench.put_delayed(250).await;
    let log = bench.store().powers().log.clone().unwrap();
    let page = log.logged(&bench.queue, Some(LoggedState::Active), None, 1_000).await.unwrap();
    assert!(page.messages.is_empty());
    assert!(page.next.is_some());
    let peeks = bench.emulator.calls("peek-message", "work", 0);
    assert!(peeks <= 2, "{peeks} peeks");
}

// Each list of the waiting jobs would read all delayed ones that were sent before them.
#[tokio::test]
async fn list_of_waiting_jobs_begins_where_an_earlier_one_found_none() {
    let bench = Bench::new();
    bench.put_delayed(250).await;
    bench.put(PutMessage::new("job")).await.unwrap();
    let log = bench.store().powers().log.clone().unwrap();
    let mut lists = Vec::new();
    for _ in 0..4 {
        let page = log.logged(&bench.queue, Some(LoggedState::Active), None, 1_000).await.unwrap();
        lists.push(page.messages.len());
    }
    assert_eq!(lists, [0, 0, 1, 1]);
}

#[tokio::test]
async fn list_of_a_partitioned_queue_says_that_it_may_be_partial() {
    let bench = Bench::with(json!({ "EnablePartitioning": true, "MaxDeliveryCount": 2000 }), &[]);
    let admin = admin(&bench);
    let empty = admin.jobs("work", JobState::Waiting, &JobFilter::new()).await.unwrap();
    assert!(empty.partial);
    bench.send_jobs(8).await;
    let page = admin.jobs("work", JobState::Waiting, &JobFilter::new()).await.unwrap();
    assert!(page.partial && !page.jobs.is_empty(), "{page:?}");
    // It may be in another partition.
    let unknown = admin.explain(&JobReference::new("work", "unknown")).await.unwrap();
    assert!(!unknown.has_ended, "{unknown:?}");
}

// It was whole, unless the messages on its first page had the numbers of a partition.
#[tokio::test]
async fn list_of_a_queue_that_may_be_partitioned_may_be_partial() {
    for has_jobs in [false, true] {
        let bench = Bench::new();
        if has_jobs {
            bench.send_jobs(1).await;
        }
        bench.emulator.plant_with("http-get", "error", json!({ "status": 401, "times": null }));
        let log = bench.store().powers().log.clone().unwrap();
        let page = log.logged(&bench.queue, None, None, 100).await.unwrap();
        assert_eq!(page.messages.len(), usize::from(has_jobs));
        assert!(page.is_partial, "{page:?}");
        let unknown = admin(&bench).explain(&JobReference::new("work", "unknown")).await.unwrap();
        assert!(!unknown.has_ended, "{unknown:?}");
    }
}

// The page ended after the first 32, and there was no other.
#[tokio::test]
async fn dead_letters_behind_the_first_32_are_listed() {
    let bench = Bench::new();
    for number in 0..34 {
        bench.dead_letter(&number.to_string(), "listed").await;
    }
    let (admin, all) = (admin(&bench), DeadLetterFilter::new());
    let first = admin.dead_letters_from("work", &all, None).await.unwrap();
    assert_eq!(first.letters.len(), 32);
    assert!(!first.complete);
    let second = admin.dead_letters_from("work", &all, first.next.as_deref()).await.unwrap();
    assert_eq!(second.letters.len(), 2);
    assert_eq!(second.next, None);
}
