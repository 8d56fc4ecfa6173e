//! Queues that a handler has left alone.

use jobqueue::{Context, JobError, State};
use jobqueue_tests::jobs::{in_memory, worker};
use tokio::time::{Instant, sleep};

use crate::limits::{Quick, SECOND, Slow, Watch, quick, send, slow};

async fn snoozes(job: Slow, ctx: Context, State(watch): State<Watch>) -> Result<(), JobError> {
    if watch.count("slow") == 0 {
        watch.run(&ctx, 0).await;
        ctx.snooze_queue(SECOND * 600);
        // The longer one holds.
        ctx.snooze_queue(SECOND);
        return Err(JobError::snooze(SECOND * 60));
    }
    slow(job, ctx, State(watch)).await
}

#[tokio::test(start_paused = true)]
async fn a_snoozed_queue_is_left_alone_until_its_time_and_no_other_is() {
    let (storage, watch) = (in_memory(), Watch::default());
    send(&storage, 10, || Slow { seconds: 0 }).await;
    let worker = worker(&storage).concurrency(2).state(watch.clone()).handle(snoozes).handle(quick).build();
    let began = Instant::now();
    let all = async {
        sleep(SECOND * 30).await;
        send(&storage, 10, || Quick { seconds: 0 }).await;
        watch.until("quick", 10).await;
        watch.until("slow", 11).await;
    };
    let report = worker.unwrap().run_until(all).await.unwrap();
    assert_eq!(report.completed, 20);
    assert_eq!(report.dead_lettered, 0);
    assert_eq!(report.retried, 0);
    for ran in watch.ended().iter().filter(|ran| ran.kind == "slow").skip(1) {
        assert!(ran.began.duration_since(began) >= SECOND * 600, "{ran:?}");
    }
    let quick = watch.ended().into_iter().filter(|ran| ran.kind == "quick");
    assert!(quick.map(|ran| ran.began.duration_since(began)).all(|after| after < SECOND * 60));
}

#[tokio::test(start_paused = true)]
async fn a_snooze_holds_for_one_worker_and_nobody_waits_idle_for_it() {
    let (storage, watch) = (in_memory(), Watch::default());
    send(&storage, 10, || Slow { seconds: 0 }).await;
    let first = worker(&storage).concurrency(1).state(watch.clone()).handle(snoozes).build().unwrap();
    assert_eq!(first.run_until_idle().await.unwrap().completed, 0);
    let second = worker(&storage).state(watch.clone()).handle(slow).build().unwrap();
    assert_eq!(second.run_until_idle().await.unwrap().completed, 9, "the snoozed job is delayed");
}
