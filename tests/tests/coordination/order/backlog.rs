//! Order by a log behind a long queue of other jobs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::{GetMessages, Operation};
use jobqueue::{JobError, SendOptions};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::worker;
use tokio::time::sleep;

use crate::order::records::steps;
use crate::order::{Step, logged, send, step};

/// Seven hundred jobs of two seconds wait for the one slot, and a job of the key after each twenty-five of
/// them. The first of the key fails once: its second delivery is behind all that wait, and those of the jobs
/// behind it come before.
#[tokio::test(start_paused = true)]
async fn job_that_is_put_back_behind_a_slow_queue_keeps_its_position() {
    const JOBS: u32 = 28;
    let storage = logged();
    let queue = steps(&storage).await;
    let (done, fails) = (Arc::<Mutex<Vec<u32>>>::default(), Arc::new(AtomicBool::new(true)));
    let log = Arc::clone(&done);
    let handler = move |step: Step| {
        let (log, fails) = (Arc::clone(&log), step.of == "k" && fails.swap(false, Ordering::SeqCst));
        async move {
            sleep(Duration::from_secs(2)).await;
            if fails {
                return Err(JobError::retry_after(Duration::from_secs(1), "planted"));
            }
            if step.of == "k" {
                log.lock().unwrap().push(step.number);
            }
            Ok(())
        }
    };
    for number in 0..JOBS {
        send(&queue, &step("k", number)).await;
        let others = (0..25).map(|other| (step(format!("{number} {other}"), 0), SendOptions::new()));
        let sent = queue.send_all(others.collect::<Vec<_>>()).await.unwrap();
        assert!(sent.iter().all(Result::is_ok));
    }
    let built = worker(&storage).concurrency(1).handle(handler).build().unwrap();
    let report = built.run_until(sleep(Duration::from_secs(8_000))).await.unwrap();
    assert_eq!(*done.lock().unwrap(), Vec::from_iter(0..JOBS), "{report:?}");
}

/// A worker leases the jobs behind the running one: some wait in memory, the others are put back, which takes
/// the storage long.
#[tokio::test(start_paused = true)]
async fn jobs_without_room_to_wait_are_leased_no_more_than_slots_are_free() {
    let faulty = Faulty::new(&logged());
    let storage = faulty.storage();
    let queue = steps(&storage).await;
    for number in 0..600 {
        send(&queue, &step("a", number)).await;
    }
    faulty.plan_always(Operation::Update, Fault::DelayBefore(Duration::from_secs(10)));
    let handler = async |_: Step| {
        sleep(Duration::from_secs(3_600)).await;
        Ok::<_, JobError>(())
    };
    let built = worker(&storage).concurrency(4).handle(handler).build().unwrap();
    let running = tokio::spawn(built.run_until(std::future::pending()));
    sleep(Duration::from_secs(8)).await;
    let get = GetMessages::new(32, Duration::from_secs(1));
    assert_eq!(storage.queues().get(queue.name(), get).await.unwrap().messages.len(), 32);
    running.abort();
}
