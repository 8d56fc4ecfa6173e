//! Jobs by state: lists, search, run now, and where `explain` finds them.

use std::time::Duration;

use jobqueue::storage::{Operation, PutMessage};
use jobqueue::{ErrorKind, JobError, QueueMessage, Storage, Worker};
use jobqueue_admin::{Admin, JobFilter, JobPlace, JobReference, JobState};
use jobqueue_testing::faults::Faulty;
use jobqueue_tests::jobs::in_memory;
use serde::{Deserialize, Serialize};

use crate::admin::support::{operator, put_letter};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail", backoff(base = "10m", max = "10m"))]
struct Mail {
    #[message(key)]
    to: String,
}

fn mail(to: &str) -> Mail {
    Mail { to: to.into() }
}

const HOUR: Duration = Duration::from_secs(3_600);

async fn ids(admin: &Admin, state: JobState, filter: &JobFilter) -> Vec<String> {
    let page = admin.jobs("mails", state, filter).await.unwrap();
    page.jobs.into_iter().map(|job| job.id).collect()
}

/// Returns storages with a job in each state: `delayed`, `failed`, `running`, `first` and `second` of a key.
async fn storages() -> Vec<(Storage, Option<tempfile::TempDir>)> {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("jobs.db").display());
    let all = vec![(in_memory(), None), (Storage::connect(&file).await.unwrap(), Some(folder))];
    for (storage, _) in &all {
        let mails = storage.queue::<Mail>().await.unwrap();
        mails.send(&mail("bob")).id("failed").await.unwrap();
        let fails = |_: Mail| async { Err::<(), _>(JobError::retry_after(HOUR, "no answer from bob")) };
        let worker = Worker::builder(storage.clone()).handle(fails).build().unwrap();
        assert_eq!(worker.run_until_idle().await.unwrap().retried, 1);
        mails.send(&mail("cy")).id("running").await.unwrap();
        // Its lease ends by its time.
        std::mem::forget(mails.receive(Duration::ZERO).await.unwrap().unwrap());
        mails.send(&mail("ada")).id("delayed").delay(HOUR).await.unwrap();
        for id in ["first", "second"] {
            mails.send(&mail("dan")).id(id).in_order().await.unwrap();
        }
    }
    all
}

#[tokio::test]
async fn each_state_is_listed_and_searched() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        let all = JobFilter::new();
        assert_eq!(ids(&admin, JobState::Delayed, &all).await, ["delayed"]);
        assert_eq!(ids(&admin, JobState::BackingOff, &all).await, ["failed"]);
        assert_eq!(ids(&admin, JobState::Running, &all).await, ["running"]);
        assert_eq!(ids(&admin, JobState::Waiting, &all).await, ["first", "second"]);
        assert_eq!(ids(&admin, JobState::Waiting, &JobFilter::new().key("nobody")).await, [""; 0]);
        let failed = JobFilter::new().key("bob").kind("mail").error("no answer");
        assert_eq!(ids(&admin, JobState::BackingOff, &failed).await, ["failed"]);
        assert_eq!(ids(&admin, JobState::BackingOff, &JobFilter::new().error("refused")).await, [""; 0]);
        // Page by page, over both parts of the list.
        let first = admin.jobs("mails", JobState::Waiting, &JobFilter::new().limit(1)).await.unwrap();
        assert_eq!(first.jobs[0].id, "first");
        let rest = JobFilter::new().limit(1).from(first.next.clone());
        assert_eq!(ids(&admin, JobState::Waiting, &rest).await, ["second"]);
        let wrong =
            admin.jobs("mails", JobState::Waiting, &JobFilter::new().from("nowhere".to_owned())).await;
        assert!(wrong.is_err());
        let dead = admin.jobs("mails", JobState::Dead, &all).await.unwrap_err();
        assert_eq!(dead.kind(), ErrorKind::Invalid);
        let none = admin.jobs("others", JobState::Waiting, &all).await.unwrap_err();
        assert_eq!(none.kind(), ErrorKind::NotFound);
    }
}

#[tokio::test]
async fn hidden_jobs_are_due_when_an_operator_says_so() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        for id in ["delayed", "failed"] {
            assert!(admin.run_now(&JobReference::new("mails", id)).await.unwrap().is_some(), "{id}");
            assert!(
                admin.run_now(&JobReference::new("mails", id)).await.unwrap().is_none(),
                "{id} is due already"
            );
        }
        for id in ["running", "first", "nobody"] {
            assert!(admin.run_now(&JobReference::new("mails", id)).await.unwrap().is_none(), "{id}");
        }
        let done = |_: Mail| async { Ok::<(), JobError>(()) };
        let worker = Worker::builder(storage.clone()).handle(done).build().unwrap();
        assert_eq!(worker.run_until_idle().await.unwrap().completed, 4);
    }
}

#[tokio::test]
async fn explanation_finds_a_job_in_every_state_and_in_the_history() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        let explain = async |id: &str| admin.explain(&JobReference::new("mails", id)).await.unwrap();
        for (id, place, words) in [
            ("delayed", JobPlace::Delayed, "It waits: it is delayed until "),
            ("failed", JobPlace::BackingOff, "It waits: it is tried again at "),
            (
                "running",
                JobPlace::Running,
                "no record that was read names it: it has begun since the last record ",
            ),
            ("nobody", JobPlace::Unseen, "it has ended, or never existed"),
        ] {
            let found = explain(id).await;
            assert_eq!(found.place, place, "{id}: {}", found.summary);
            assert!(found.summary.contains(words), "{}", found.summary);
        }
        let done = |_: Mail| async { Ok::<(), JobError>(()) };
        let worker = Worker::builder(storage.clone()).handle(done).history(HOUR).build().unwrap();
        assert_eq!(worker.run_until_idle().await.unwrap().completed, 2);
        let ended = explain("first").await;
        assert_eq!(ended.place, JobPlace::Ended, "{}", ended.summary);
        assert!(ended.summary.starts_with("It has ended: completed at "), "{}", ended.summary);
        assert!(ended.reasons.is_empty(), "{:?}", ended.reasons);
    }
}

// round 30, operator C4: it was said to wait, and to be served by no worker.
#[tokio::test]
async fn dead_letter_is_no_job_of_its_dead_letter_queue() {
    let admin = operator(&Storage::memory());
    put_letter(&admin, "mails-poison").await;
    let refused = admin.explain(&JobReference::new("mails-poison", "7")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("dead letters of `mails`: name that queue"), "{refused}");
}

// More jobs are due before them than `identify` reads.
#[tokio::test]
async fn job_behind_thousands_is_made_due_with_its_sender() {
    let storage = Storage::memory();
    let mails = storage.queue::<Mail>().await.unwrap();
    let before = (0..10_001).map(|_| mail("ada"));
    for sent in mails.send_all(before).delay(HOUR).await.unwrap() {
        let _ = sent.unwrap();
    }
    for (source, id) in [("/shop", "7"), ("/bank", "7"), ("/bank", "8")] {
        mails.send(&mail("bob")).id(id).source(source).delay(2 * HOUR).await.unwrap();
    }
    let admin = operator(&storage);
    let refused = admin.run_now(&JobReference::new("mails", "7")).await.unwrap_err();
    assert!(
        refused.kind() == ErrorKind::Invalid && refused.to_string().contains("/bank, /shop"),
        "{refused}"
    );
    let made = admin.run_now(&JobReference::new("mails", "8")).await.unwrap();
    assert_eq!(made, Some(JobReference::new("mails", "8").with_source("/bank")));
}

#[tokio::test]
async fn job_of_another_sender_that_waits_for_no_time_is_compared() {
    let storage = Storage::memory();
    let mails = storage.queue::<Mail>().await.unwrap();
    mails.send(&mail("bob")).id("7").source("/shop").await.unwrap();
    let before = (0..10_001).map(|_| mail("ada"));
    for sent in mails.send_all(before).delay(HOUR).await.unwrap() {
        let _ = sent.unwrap();
    }
    mails.send(&mail("bob")).id("7").source("/bank").delay(2 * HOUR).await.unwrap();
    let refused = operator(&storage).run_now(&JobReference::new("mails", "7")).await.unwrap_err();
    assert!(refused.to_string().contains("/bank, /shop"), "{refused}");
}

/// Each page of those that wait costs as much as the whole look at the others.
#[tokio::test]
async fn delayed_job_is_made_due_without_another_look_at_those_that_wait() {
    const PAGES: usize = 5;
    let storage = Storage::memory();
    let mails = storage.queue::<Mail>().await.unwrap();
    for _ in 0..PAGES {
        let strange = vec![PutMessage::new("{}"); 1_000];
        assert!(storage.queues().put_all(mails.name(), strange.into()).await.iter().all(Result::is_ok));
    }
    mails.send(&mail("bob")).id("7").delay(HOUR).await.unwrap();
    // Quiet: requests are counted in real time.
    let faulty = Faulty::quiet(&storage);
    let job = JobReference::new("mails", "7");
    let _ = operator(&faulty.storage()).identify(&job).await.unwrap();
    let of_name = faulty.calls_of(Operation::Peek);
    assert!(operator(&faulty.storage()).run_now(&job).await.unwrap().is_some());
    let further = faulty.calls_of(Operation::Peek) - 2 * of_name;
    assert!(further < PAGES, "{further} pages beside those by which the job is identified");
}
