//! Explanations of jobs that the records of workers show as running.

use std::time::Duration;

use jobqueue::settings::SettingOverrides;
use jobqueue::{JobError, SendOptions};
use jobqueue_admin::JobPlace;
use jobqueue_tests::jobs::{Task, after, in_memory};
use tokio::time::sleep;

use crate::admin::explain::{explain, send};
use crate::admin::presence::{operator, present};

// newcomers 34 d, 2-1: such a job was said to run until the next record of its worker.
#[tokio::test(start_paused = true)]
async fn record_that_names_a_job_which_has_ended_is_not_believed() {
    let storage = in_memory();
    let dies = send(&storage, "dies", SendOptions::new()).await;
    let done = send(&storage, "done", SendOptions::new()).await;
    let handler = async |task: Task| {
        sleep(Duration::from_secs(40)).await;
        if task.name == "dies" { Err(JobError::dead_letter("never")) } else { Ok(()) }
    };
    let worker = present(&storage).concurrency(2).handle(handler).build().unwrap();
    let looking = async {
        sleep(Duration::from_secs(39)).await;
        let (found, _) = explain(&storage, &dies).await;
        assert!(found.place == JobPlace::Running && found.run.is_some(), "{}", found.summary);
        assert!(operator(&storage).identify_all(std::slice::from_ref(&dies)).await.unwrap()[0].is_open);
        sleep(Duration::from_millis(1_500)).await;
        let workers = operator(&storage).workers().await.unwrap();
        assert_eq!(workers[0].record.running.len(), 2, "its record still names both");
        // A request to cancel them was made, and stood for 30 days.
        let identified = operator(&storage).identify_all(&[dies.clone(), done.clone()]).await.unwrap();
        assert!(identified.iter().all(|job| !job.is_open), "{identified:?}");
        let (found, codes) = explain(&storage, &dies).await;
        assert_eq!((found.place, codes), (JobPlace::Dead, vec!["dead_letter"]), "{}", found.summary);
        assert!(found.has_ended && found.run.is_none());
        let (found, codes) = explain(&storage, &done).await;
        assert_eq!((found.place, codes), (JobPlace::Unseen, vec!["not_found"]), "{}", found.summary);
        assert!(found.has_ended && found.run.is_none());
    };
    let (report, ()) = tokio::join!(worker.run_until(after(60)), looking);
    assert_eq!(report.unwrap().completed, 1);
}

// It was said to run, and to wait for an answer of its worker.
#[tokio::test(start_paused = true)]
async fn job_of_a_killed_worker_waits_for_its_lease_also_if_it_is_to_be_cancelled() {
    let storage = in_memory();
    let job = send(&storage, "stuck", SendOptions::new()).await;
    let mut long = SettingOverrides::default();
    long.timeout = Some(Duration::from_secs(600));
    let handler = async |_: Task| std::future::pending::<Result<(), JobError>>().await;
    let worker = present(&storage).overrides(long).handle(handler).build().unwrap();
    tokio::select! {
        biased;
        _ = worker.run_until(after(100_000)) => panic!("it runs"),
        () = after(20) => {}
    }
    after(60).await;
    let _ = operator(&storage).cancel(&job).await.unwrap();
    let (found, codes) = explain(&storage, &job).await;
    assert_eq!(codes, ["worker_gone", "cancel_requested"]);
    assert!(found.summary.contains("its worker has written no record for"), "{}", found.summary);
}
