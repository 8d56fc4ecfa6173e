//! Order by a log behind a long queue of other jobs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::{JobError, SendOptions};
use jobqueue_tests::jobs::worker;
use tokio::time::sleep;

use crate::order::records::steps;
use crate::order::{Step, logged, send, step};

/// Seven hundred jobs of two seconds wait for the one slot, and a job of the key after each twenty-five of them. The first of the key fails
/// once: its second delivery is behind all that wait, and those of the jobs behind it come before.
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
