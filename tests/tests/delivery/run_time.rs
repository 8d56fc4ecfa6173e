//! The maximum run time of a job: it counts while the handler runs.

use std::time::Duration;

use jobqueue::storage::Operation;
use jobqueue::JobError;
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, worker};

use super::redrive::large;

#[tokio::test(start_paused = true)]
async fn a_download_takes_nothing_of_the_run_time() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&large("a")).await.unwrap();
    faulty.plan_always(Operation::GetBlob, Fault::DelayBefore(Duration::from_secs(90)));
    let handler = |_: Task| async {
        after(50).await;
        Ok::<(), JobError>(())
    };
    let built =
        worker(&faulty.storage()).max_run_time(Duration::from_secs(60)).handle(handler).build().unwrap();
    let report = built.run_until(after(600)).await.unwrap();
    assert_eq!((report.completed, report.lease_lost, report.retried), (1, 0, 0), "{report:?}");
}
