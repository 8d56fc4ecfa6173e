//! The outcome of a redrive among more dead letters than a peek shows.

use std::time::Duration;

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{JobError, Storage, Worker};
use jobqueue_admin::DeadLetterFilter;
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, worker};

use crate::admin::presence::present;
use crate::admin::support::{operator, send, storages};

const QUEUE: &str = "tasks";

async fn run(storage: &Storage, handler: fn(&str) -> Result<(), JobError>) {
    let handler = move |task: Task| {
        let result = handler(&task.name);
        async { result }
    };
    let worker = Worker::builder(storage.clone()).handle_on(QUEUE, handler).build().unwrap();
    let _ = worker.run_until_idle().await.unwrap();
}

// newcomers 33, 4: without a journal, or before it is written, all three were unknown.
#[tokio::test]
async fn outcome_behind_the_first_letters_is_known_right_after_a_redrive() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        send(&admin, QUEUE, (0..40).map(|number| number.to_string())).await;
        run(&storage, |_| Err(JobError::dead_letter("row 17 is locked"))).await;
        let three = DeadLetterFilter::new().ids(["0", "1", "2"]);
        let redriven = admin.redrive(QUEUE).filter(three).run().await.unwrap();
        assert_eq!(redriven.count, 3);
        let outcome = admin.outcome(&redriven.plan()).await.unwrap();
        assert_eq!((outcome.open, outcome.unknown), (3, 0), "{outcome:?}");
        let again = |name: &str| match name {
            "2" => Err(JobError::dead_letter("row 18 is locked")),
            _ => Ok(()),
        };
        run(&storage, again).await;
        let outcome = admin.outcome(&redriven.plan()).await.unwrap();
        assert_eq!((outcome.ended, outcome.open, outcome.unknown), (2, 0, 0), "{outcome:?}");
        assert_eq!(outcome.dead_again[0].error.as_deref(), Some("row 18 is locked"));
        assert!(!outcome.more_letters);
    }
}

// round 34, A1: the server of a shard is behind that which gave the time of the plan.
#[tokio::test]
async fn job_that_died_again_has_not_ended_whatever_the_clock_says() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        send(&admin, QUEUE, ["0".to_owned()]).await;
        run(&storage, |_| Err(JobError::dead_letter("row 17 is locked"))).await;
        let redriven = admin.redrive(QUEUE).filter(DeadLetterFilter::all()).run().await.unwrap();
        run(&storage, |_| Err(JobError::dead_letter("row 18 is locked"))).await;
        let mut plan = redriven.plan();
        plan.before = plan.before.map(|before| before + Duration::from_secs(3_600));
        let outcome = admin.outcome(&plan).await.unwrap();
        assert_eq!((outcome.ended, outcome.dead_again.len()), (0, 1), "{outcome:?}");
    }
}

async fn run_paused(storage: &Storage, answer: fn() -> Result<(), JobError>) {
    let handler = move |_: Task| async move { answer() };
    let _ = worker(storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
}

// round 34, A8: a second message of the job died between the preview and the redrive.
#[tokio::test(start_paused = true)]
async fn letter_from_before_a_redrive_is_no_death_of_its_job_also_after_the_preview() {
    let storage = in_memory();
    let admin = operator(&storage);
    send(&admin, QUEUE, ["0".to_owned()]).await;
    run_paused(&storage, || Err(JobError::dead_letter("row 17 is locked"))).await;
    let all = DeadLetterFilter::all();
    let plan = admin.redrive(QUEUE).filter(all).dry_run(true).run().await.unwrap().plan();
    send(&admin, QUEUE, ["0".to_owned()]).await;
    run_paused(&storage, || Err(JobError::dead_letter("row 17 is locked"))).await;
    let redriven = admin.redrive(QUEUE).plan(plan).run().await.unwrap();
    assert_eq!((redriven.count, redriven.copies), (1, 0));
    run_paused(&storage, || Ok(())).await;
    let outcome = admin.outcome_of(&redriven).await.unwrap();
    assert_eq!((outcome.ended, outcome.dead_again.len()), (1, 0), "{outcome:?}");
}

// review 34, admin B1: a canary stopped at the letters of jobs that an earlier redrive had put back twice.
#[tokio::test(start_paused = true)]
async fn letter_of_an_earlier_redrive_is_no_death_of_its_job() {
    // Quiet: no other call may fail than the planned put.
    let faulty = Faulty::quiet(&in_memory());
    let storage = faulty.storage();
    let admin = operator(&storage);
    send(&admin, QUEUE, ["0".to_owned()]).await;
    run_paused(&storage, || Err(JobError::dead_letter("row 17 is locked"))).await;
    faulty.plan(Operation::Put, 1, Fault::DropAnswer(StoreErrorKind::Unavailable));
    let _ = admin.redrive(QUEUE).filter(DeadLetterFilter::all()).run().await.unwrap();
    run_paused(&storage, || Err(JobError::dead_letter("row 17 is locked"))).await;
    // Of the two letters of the job, it takes one, as a canary does.
    let redriven = admin.redrive(QUEUE).filter(DeadLetterFilter::all()).limit(1).run().await.unwrap();
    assert_eq!(redriven.count, 1);
    let letters = admin.dead_letters(QUEUE, &DeadLetterFilter::new()).await.unwrap();
    assert_eq!(letters.matching, 1, "the other letter stays");
    run_paused(&storage, || Ok(())).await;
    let outcome = admin.outcome_of(&redriven).await.unwrap();
    assert_eq!((outcome.ended, outcome.dead_again.len()), (1, 0), "{outcome:?}");
}

// round 35 f, C7: the job counted as open until the next record of its worker.
#[tokio::test(start_paused = true)]
async fn job_that_died_again_is_not_open_although_a_record_still_names_it() {
    let storage = in_memory();
    let admin = operator(&storage);
    send(&admin, QUEUE, ["0".to_owned()]).await;
    run_paused(&storage, || Err(JobError::dead_letter("row 17 is locked"))).await;
    let redriven = admin.redrive(QUEUE).filter(DeadLetterFilter::all()).run().await.unwrap();
    let handler = async |_: Task| {
        after(25).await;
        Err::<(), _>(JobError::dead_letter("row 18 is locked"))
    };
    let running = present(&storage).handle(handler).build().unwrap().run_until(after(100_000));
    let looking = async {
        while admin.dead_letters(QUEUE, &DeadLetterFilter::new()).await.unwrap().matching == 0 {
            after(1).await;
        }
        let workers = admin.workers().await.unwrap();
        assert_eq!(workers[0].record.running.len(), 1, "its record still names the job");
        let outcome = admin.outcome_of(&redriven).await.unwrap();
        assert_eq!((outcome.open, outcome.dead_again.len()), (0, 1), "{outcome:?}");
    };
    tokio::select! {
        biased;
        _ = running => panic!("the worker runs on"),
        () = looking => {}
    }
}
