//! Order by a log after an outage of its blobs, or of what handlers need: positions are kept, and the queue
//! goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jobqueue::storage::Operation;
use jobqueue::{Event, JobError, JobInfo};
use jobqueue_testing::faults::Faulty;
use jobqueue_tests::jobs::{after, worker};
use tokio::time::sleep;

use super::disturbed::{REFUSED, SECOND, Step, Trail, long_first, step, steps};
use crate::order::{logged, with_clock_ahead};

#[tokio::test(start_paused = true)]
async fn queue_in_order_goes_on_soon_after_an_outage() {
    let storage = logged();
    let queue = steps(&storage).await;
    let trail = Trail::new();
    let down = Arc::new(AtomicBool::new(true));
    let (log, is_down) = (trail.clone(), Arc::clone(&down));
    let handler = move |step: Step| {
        let (log, down) = (log.clone(), is_down.load(Ordering::SeqCst));
        async move {
            if down {
                return Err(JobError::retry("the database is down"));
            }
            log.note(format!("done {}", step.of));
            Ok(())
        }
    };
    let events = trail.clone();
    let listen = move |event: &Event| match event {
        Event::CircuitOpened { retry_in, .. } => events.note(format!("opened for {retry_in:?}")),
        Event::CircuitClosed { .. } => events.note("closed"),
        _ => {}
    };
    let worker = worker(&storage).handle(handler).on_event(listen).build().unwrap();
    let running = tokio::spawn(worker.run_until(after(1_200)));
    for number in 0..30 {
        for key in 0..6 {
            queue.send(&step(key.to_string(), number)).in_order().await.unwrap();
        }
        sleep(SECOND).await;
    }
    down.store(false, Ordering::SeqCst);
    trail.note("the database is back");
    queue.send(&step("x", 0)).await.unwrap();
    let _ = running.await.unwrap().unwrap();
    let waited = trail.at("done x") - trail.at("the database is back");
    assert!(waited < 60.0, "a job without order waited {waited:.0} s after the outage");
}

#[tokio::test(start_paused = true)]
async fn job_put_back_during_an_outage_of_blobs_keeps_its_position() {
    let storage = logged();
    let faulty = Faulty::new(&storage);
    let queue = steps(&faulty.storage()).await;
    let trail = Trail::new();
    let (log, blobs) = (trail.clone(), faulty.clone());
    let handler = move |step: Step, info: JobInfo| {
        let (log, blobs) = (log.clone(), blobs.clone());
        async move {
            log.note(format!("begin {} attempt {}", step.number, info.attempt));
            if step.number == 0 && info.attempt == 1 {
                blobs.plan_always(Operation::PutBlob, REFUSED);
                return Err(JobError::retry_after(SECOND * 3_600, "later"));
            }
            Ok(())
        }
    };
    queue.send(&step("a", 0)).in_order().await.unwrap();
    queue.send(&step("a", 1)).in_order().await.unwrap();
    let built = worker(&faulty.storage()).handle(handler).build().unwrap();
    let running = tokio::spawn(built.run_until(after(9_000)));
    sleep(SECOND * 60).await;
    faulty.heal();
    let _ = running.await.unwrap().unwrap();
    let (first, second) = (trail.at("begin 0 attempt 2"), trail.at("begin 1 attempt 1"));
    assert!(second >= first, "1 begins at {second:.0} s, 0 comes back at {first:.0} s");
}

/// Notes its end, also if the handler is dropped.
struct Ends(Trail, u32);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.note(format!("end {}", self.1));
    }
}

// I21
#[tokio::test(start_paused = true)]
async fn job_whose_turn_cannot_be_renewed_ends_before_the_next_of_its_key_begins() {
    turn_that_cannot_be_renewed(Duration::ZERO).await;
}

// round 29, coordination 2: the next job began while the first still ran.
#[tokio::test(start_paused = true)]
async fn turn_ends_in_time_if_the_clock_of_the_next_worker_is_ahead() {
    turn_that_cannot_be_renewed(SECOND * 240).await;
}

/// Runs the second job on a worker whose clock is `ahead` of the first worker's.
async fn turn_that_cannot_be_renewed(ahead: Duration) {
    let storage = logged();
    let faulty = Faulty::new(&storage);
    let queue = steps(&storage).await;
    let trail = Trail::new();
    let log = trail.clone();
    let handler = move |step: Step| {
        let log = log.clone();
        async move {
            log.note(format!("begin {}", step.number));
            let _ends = Ends(log, step.number);
            sleep(SECOND * if step.number == 0 { 900 } else { 1 }).await;
            Ok::<_, JobError>(())
        }
    };
    let lost = trail.clone();
    let listen = move |event: &Event| {
        if let Event::LeaseLost { .. } = event {
            lost.note("lost");
        }
    };
    let first = worker(&faulty.storage()).concurrency(1).handle(handler.clone()).on_event(listen);
    let first = tokio::spawn(first.build().unwrap().run_until(after(3_000)));
    queue.send(&step("a", 0)).in_order().await.unwrap();
    sleep(SECOND * 5).await;
    let begun = trail.at("begin 0");
    // Its worker reaches the queues, not the blobs; that of the next job reaches both.
    faulty.plan_always(Operation::PutBlob, REFUSED);
    faulty.plan_always(Operation::GetBlob, REFUSED);
    queue.send(&step("a", 1)).in_order().await.unwrap();
    let second = worker(&with_clock_ahead(&storage, ahead)).concurrency(1).handle(handler).build().unwrap();
    let heal = async {
        sleep(SECOND * 850).await;
        faulty.heal();
    };
    let (second, ()) = tokio::join!(second.run_until(after(3_000)), heal);
    let _ = second.unwrap();
    let _ = first.await.unwrap().unwrap();
    let told = trail.at("lost") - begun;
    assert!((300.0..420.0).contains(&told), "the handler ran for {told:.0} s without its turn");
    assert_eq!(trail.most(), 1, "one of the key at a time");
    assert!(trail.at("begin 1") > trail.at("end 0"));
}

#[tokio::test(start_paused = true)]
async fn long_job_keeps_its_turn_over_a_short_outage_of_blobs() {
    let storage = logged();
    let faulty = Faulty::new(&storage);
    let queue = steps(&storage).await;
    let trail = Trail::new();
    let built = worker(&faulty.storage()).handle(long_first(1_800, &trail)).build().unwrap();
    let running = tokio::spawn(built.run_until(after(2_400)));
    queue.send(&step("a", 0)).in_order().await.unwrap();
    queue.send(&step("a", 1)).in_order().await.unwrap();
    sleep(SECOND * 5).await;
    faulty.plan_always(Operation::PutBlob, REFUSED);
    sleep(SECOND * 240).await;
    faulty.heal();
    let report = running.await.unwrap().unwrap();
    assert_eq!((report.completed, report.lease_lost), (2, 0));
    assert!(trail.at("begin 1") > trail.at("end 0"));
}
