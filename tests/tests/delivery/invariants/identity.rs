//! The identity of an owner: the delivery, never the worker's name. F39, and the fence.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Context, JobError, memory};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Log, Task, after, outcomes, task, worker};

const NAME: &str = "/the/same";

// F39
#[tokio::test(start_paused = true)]
async fn a_worker_of_the_same_name_does_not_own_what_another_lost() {
    // The first worker's renewals do not arrive; the second reaches the storage.
    let storage = memory::open();
    let faulty = Faulty::new(&storage);
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    faulty.plan_always(Operation::Update, Fault::Refuse(StoreErrorKind::Unavailable));
    let runs = Log::default();
    let handler = |who: &'static str, seconds: u64| {
        let (runs, faulty) = (Arc::clone(&runs), faulty.clone());
        move |_: Task| {
            // The first hears nothing from now on.
            faulty.plan_always(Operation::Get, Fault::Refuse(StoreErrorKind::Unavailable));
            runs.lock().unwrap().push(who.to_owned());
            // Deaf to being cancelled: it ends while the other one works.
            async move {
                let _ = tokio::spawn(after(seconds)).await;
                Ok::<(), JobError>(())
            }
        }
    };
    let ((first_log, first_listens), (second_log, second_listens)) = (outcomes(), outcomes());
    let first = worker(&faulty.storage()).name(NAME).handle(handler("first", 40)).on_event(first_listens);
    let second = worker(&storage).name(NAME).handle(handler("second", 60)).on_event(second_listens);
    let (first, second) = (first.build().unwrap(), second.build().unwrap());
    let later = async {
        after(5).await;
        second.run_until(after(200)).await.unwrap()
    };
    let (_, report) = tokio::join!(first.run_until(after(80)), later);
    assert_eq!(*runs.lock().unwrap(), ["first", "second"]);
    assert_eq!(*first_log.lock().unwrap(), ["lease_lost"]);
    assert_eq!(second_log.lock().unwrap().as_slice(), ["completed".to_owned()].as_slice());
    assert_eq!(report.completed, 1);
    assert!(queue.is_empty().await.unwrap() && queue.dead_letters().unwrap().is_empty().await.unwrap());
}

// F39
#[tokio::test(start_paused = true)]
async fn workers_of_one_name_share_a_queue_and_run_each_job_once() {
    const JOBS: usize = 200;
    let storage = memory::open();
    let queue = storage.queue::<Task>().await.unwrap();
    for number in 0..JOBS {
        let _ = queue.send(&task(number.to_string())).await.unwrap();
    }
    let runs: Arc<Mutex<BTreeMap<String, Vec<usize>>>> = Arc::default();
    let run = |who: usize| {
        let runs = Arc::clone(&runs);
        let handler = move |task: Task| {
            runs.lock().unwrap().entry(task.name).or_default().push(who);
            async {
                after(1).await;
                Ok::<(), JobError>(())
            }
        };
        worker(&storage).name(NAME).concurrency(5).handle(handler).build().unwrap().run_until(after(300))
    };
    let (one, two) = tokio::join!(run(1), run(2));
    assert_eq!(one.unwrap().completed + two.unwrap().completed, JOBS as u64);
    let runs = runs.lock().unwrap();
    assert!(runs.len() == JOBS && runs.values().all(|by| by.len() == 1), "{runs:?}");
    assert!([1, 2].iter().all(|who| runs.values().any(|by| by == &[*who])), "one of them did everything");
}

// I2
#[tokio::test(start_paused = true)]
async fn the_fence_grows_with_every_delivery() {
    let faulty = Faulty::new(&memory::open());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let fences: Arc<Mutex<Vec<u64>>> = Arc::default();
    let (sink, plan) = (Arc::clone(&fences), faulty.clone());
    let handler = move |_: Task, ctx: Context| {
        let (plan, nth) = (plan.clone(), {
            let mut fences = sink.lock().unwrap();
            fences.push(ctx.fence());
            fences.len()
        });
        async move {
            match nth {
                1 => Err(JobError::retry("fails")),
                2 => Err(JobError::snooze(std::time::Duration::from_secs(5))),
                3 => {
                    // A renewal and a checkpoint give the delivery a new receipt, and no new fence.
                    let before = ctx.fence();
                    ctx.checkpoint("half").await?;
                    assert_eq!(ctx.fence(), before);
                    plan.plan_always(Operation::Update, Fault::Refuse(StoreErrorKind::Unavailable));
                    ctx.token().cancelled().await;
                    plan.heal();
                    Ok(())
                }
                4 => panic!("the fourth"),
                _ => Ok(()),
            }
        }
    };
    let (log, listen) = outcomes();
    let worker = worker(&faulty.storage()).handle(handler).on_event(listen).build().unwrap();
    let _ = worker.run_until(after(600)).await.unwrap();
    assert_eq!(*log.lock().unwrap(), ["retried", "released", "lease_lost", "retried", "completed"]);
    let fences = fences.lock().unwrap();
    assert!(fences.len() == 5 && fences.is_sorted_by(|one, next| one < next), "{fences:?}");
}
