//! Lists whose positions are written or confirmed late: what is acknowledged runs in its order. On memory, in
//! paused time.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::clock::ManualClock;
use jobqueue::queue::SendAnswers;
use jobqueue::storage::{BlobName, Operation, PutBlob};
use jobqueue::{Error, SendOptions, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{runtime, worker};
use tokio::time::{sleep, timeout};

use crate::order::flow::arriving_late;
use crate::order::records::{MINUTE, run, steps};
use crate::order::{Step, Watch, handle, logged, send, step};

// round 30, coordination 1: the jobs of both keys were announced for two minutes, and put after them.
#[tokio::test(start_paused = true)]
async fn list_runs_in_its_order_although_a_log_hangs() {
    let storage = logged();
    let faulty = Faulty::new(&storage);
    let queue = steps(&faulty.storage()).await;
    faulty.plan(Operation::PutBlob, 1, Fault::DelayBefore(Duration::from_secs(200)));
    let watch = Watch::default();
    let worker = worker(&storage).state(watch.clone()).handle(handle).build().unwrap();
    let running = tokio::spawn(worker.run_until(sleep(MINUTE * 15)));
    let list: Vec<Step> = (0..300).flat_map(|number| ["0", "1"].map(|key| step(key, number))).collect();
    let sent = queue.send_all(list.iter().map(|step| (step, arriving_late(step)))).await.unwrap();
    let _ = running.await.unwrap().unwrap();
    assert!(sent.iter().all(|sent| sent.as_ref().err().is_none_or(Error::is_rejected)), "{sent:?}");
    let accepted = ["0", "1"].map(|key| {
        let of_key = list.iter().zip(&sent).filter(|(step, sent)| step.of == key && sent.is_ok());
        of_key.map(|(step, _)| step.number).collect::<Vec<_>>()
    });
    assert_eq!(["0", "1"].map(|key| watch.begun(key)), accepted);
    assert!(accepted.iter().any(|numbers| numbers.len() == 300), "one log hangs: {accepted:?}");
}

// round 30, coordination, "no time limit": the send took 20 minutes.
#[tokio::test(start_paused = true)]
async fn send_is_refused_while_its_log_does_not_answer() {
    let faulty = Faulty::new(&logged());
    let queue = steps(&faulty.storage()).await;
    faulty.plan(Operation::PutBlob, 1, Fault::Hang);
    let job = step("a", 0);
    let sending = timeout(Duration::from_secs(35), queue.send(&job).in_order().into_future());
    let refused = sending.await.expect("a send ends after 30 seconds").unwrap_err();
    assert!(refused.is_rejected() && refused.is_retryable(), "{refused:?}");
    assert!(queue.is_empty().await.unwrap());
}

// round 30, coordination 4: those behind the first 32 got the positions that had become free.
#[tokio::test(start_paused = true)]
async fn jobs_behind_those_that_a_full_log_refused_are_refused() {
    let storage = logged();
    let faulty = Faulty::new(&storage);
    let queue = steps(&faulty.storage()).await;
    send(&queue, &step("b", 0)).await;
    // The log of the key, with other jobs.
    let log = BlobName::new("jobqueue-fifo".parse().unwrap(), "steps/2711").unwrap();
    let other = r#"{"k":"AAAAAAAAAAAAAAAA","j":"AAAAAAAAAAAAAAAA","d":9999999999999}"#;
    let full = format!(r#"{{"entries":[{}]}}"#, vec![other; 20_000].join(","));
    storage.blobs().put_blob(&log, full.into(), PutBlob::new()).await.unwrap();
    faulty.plan(Operation::GetBlob, 2, Fault::DelayBefore(Duration::from_secs(20)));
    let emptied = async {
        sleep(Duration::from_secs(10)).await;
        storage.blobs().put_blob(&log, r#"{"entries":[]}"#.into(), PutBlob::new()).await.unwrap();
    };
    let list: Vec<Step> = (0..64).map(|number| step("a", number)).collect();
    let (sent, ()) = tokio::join!(queue.send_all(&list).in_order().into_future(), emptied);
    assert!(sent.unwrap().iter().all(|sent| sent.as_ref().is_err_and(Error::is_rejected)));
}

// round 30, coordination 1
#[tokio::test(start_paused = true)]
async fn list_that_is_confirmed_late_is_not_acknowledged() {
    let storage = logged();
    let faulty = Faulty::new(&storage);
    let queue = steps(&faulty.storage()).await;
    send(&queue, &step("b", 0)).await;
    // The announcements of two keys are written at once, their confirmations late.
    for nth in [3, 4] {
        faulty.plan(Operation::PutBlob, nth, Fault::DelayBefore(Duration::from_secs(240)));
    }
    let watch = Watch::default();
    let worker = worker(&storage).state(watch.clone()).handle(handle).build().unwrap();
    let running = tokio::spawn(worker.run_until(sleep(MINUTE * 10)));
    let list = [step("a", 0), step("a", 1), step("a", 2), step("c", 0)].map(|step| {
        let delay = if step.of == "a" && step.number == 0 { MINUTE * 5 } else { Duration::ZERO };
        (step, SendOptions::new().in_order().delay(delay))
    });
    let sent = queue.send_all(list).await.unwrap();
    let _ = running.await.unwrap().unwrap();
    assert_eq!(watch.begun("a"), [1, 2, 0], "the first was skipped");
    assert!(sent[..3].iter().all(|sent| sent.as_ref().is_err_and(Error::is_outcome_unknown)), "{sent:?}");
    assert!(sent[3].is_ok(), "the only job of its key has no order to lose: {sent:?}");
}

// round 30, coordination 1
#[tokio::test(start_paused = true)]
async fn list_whose_process_stood_still_before_the_put_is_not_stored() {
    let storage = logged();
    let sent = send_by_a_process_that_stands_still(&storage, 1).await;
    for refused in sent {
        let refused = refused.unwrap_err();
        assert!(refused.is_rejected() && refused.is_retryable(), "{refused:?}");
    }
    let queue = steps(&storage).await;
    send(&queue, &step("a", 2)).await;
    let watch = Watch::default();
    let took = run(&storage, &watch, 2).await;
    assert_eq!(watch.begun("a"), [2]);
    assert!(took < MINUTE, "the positions of the list are left: {took:?}");
}

// round 30, coordination 1
#[tokio::test(start_paused = true)]
async fn list_whose_process_stood_still_before_its_confirmation_is_not_acknowledged() {
    let sent = send_by_a_process_that_stands_still(&logged(), 2).await;
    assert!(sent.iter().all(|sent| sent.as_ref().is_err_and(Error::is_outcome_unknown)), "{sent:?}");
}

/// Sends a list of one key. Its machine is suspended for three minutes at the `nth` write of the log: only
/// the wall clock shows that.
async fn send_by_a_process_that_stands_still(storage: &Storage, nth: u64) -> SendAnswers {
    let faulty = Faulty::new(storage);
    let clock = Arc::new(ManualClock::at(storage.runtime().now()));
    let process = runtime().with_clock(Arc::<ManualClock>::clone(&clock));
    let queue = steps(&faulty.storage().with_runtime(process)).await;
    send(&queue, &step("b", 0)).await;
    let before = faulty.calls_of(Operation::PutBlob) as u64;
    faulty.on(Operation::PutBlob, move |call| {
        if call.nth == before + nth {
            clock.advance(MINUTE * 3);
        }
        None
    });
    let list = [0, 1].map(|number| (step("a", number), SendOptions::new().in_order()));
    queue.send_all(list).await.unwrap()
}
