//! Keys with more jobs than the head of their log takes: the order lasts whichever request is lost, and with
//! several processes. On memory, in paused time.

use std::time::Duration;

use jobqueue::storage::{ContainerName, Operation, StoreErrorKind};
use jobqueue::{SendOptions, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::worker;
use tokio::time::{sleep, timeout};

use crate::order::records::{MINUTE, run, steps};
use crate::order::{Step, Watch, handle, logged, send, step};

/// The head has 32, the pages 32 and 6.
const JOBS: u32 = 70;
const BLOBS: [Operation; 3] = [Operation::PutBlob, Operation::GetBlob, Operation::DeleteBlob];

/// Sends all jobs as a list, again under the same ids until all are acknowledged.
async fn send_list(storage: &Storage) {
    let queue = steps(storage).await;
    let list: Vec<Step> = (0..JOBS).map(|number| step("a", number)).collect();
    loop {
        let options = |step: &Step| SendOptions::new().in_order().id(step.number.to_string());
        let all = list.iter().map(|step| (step, options(step)));
        if queue.send_all(all).await.unwrap().iter().all(Result::is_ok) {
            return;
        }
    }
}

/// Returns for each operation on blobs how often `work` uses it without a fault.
async fn requests(storage: &Storage, work: impl AsyncFn(&Storage)) -> Vec<(Operation, u64)> {
    let faulty = Faulty::new(storage);
    work(&faulty.storage()).await;
    BLOBS.map(|operation| (operation, faulty.calls_of(operation) as u64)).to_vec()
}

#[tokio::test(start_paused = true)]
async fn list_keeps_its_order_whichever_request_for_its_positions_is_lost() {
    let lost = |fault: fn(StoreErrorKind) -> Fault| fault(StoreErrorKind::Timeout);
    for (operation, count) in requests(&logged(), send_list).await {
        for nth in 1..=count {
            for fault in [lost(Fault::DropAnswer), lost(Fault::LoseRequest)] {
                let storage = logged();
                let faulty = Faulty::new(&storage);
                faulty.plan(operation, nth, fault);
                send_list(&faulty.storage()).await;
                let watch = Watch::default();
                let took = run(&storage, &watch, JOBS as usize).await;
                watch.assert_in_order_of("a", JOBS);
                assert!(took < MINUTE, "{operation:?} {nth} {fault:?}: {took:?}");
            }
        }
    }
}

/// The worker is cut off before any of its requests for blobs, and another one goes on.
#[tokio::test(start_paused = true)]
async fn key_goes_on_whichever_request_its_worker_died_at() {
    let storage = logged();
    send_list(&storage).await;
    let drain = async |storage: &Storage| {
        run(storage, &Watch::default(), JOBS as usize).await;
    };
    for (operation, count) in requests(&storage, drain).await {
        for nth in 1..=count {
            let storage = logged();
            send_list(&storage).await;
            let faulty = Faulty::new(&storage);
            faulty.plan(operation, nth, Fault::Hang);
            let watch = Watch::default();
            let dying = worker(&faulty.storage()).state(watch.clone()).handle(handle).build().unwrap();
            drop(timeout(Duration::from_secs(20), dying.run_until(watch.ends(JOBS as usize))).await);
            let next = worker(&storage).state(watch.clone()).handle(handle).build().unwrap();
            let idle = async {
                while !steps(&storage).await.is_empty().await.unwrap() {
                    sleep(Duration::from_secs(1)).await;
                }
            };
            let ended = timeout(MINUTE * 10, next.run_until(idle)).await;
            assert!(ended.is_ok(), "{operation:?} {nth}: {watch:?}");
            watch.assert_in_order_of("a", JOBS);
        }
    }
}

// In an account with a hierarchical namespace a head had no pages: the 33rd job of a key was refused.
#[tokio::test(start_paused = true)]
async fn no_blob_of_a_log_has_the_name_of_a_folder() {
    let storage = logged();
    send_list(&storage).await;
    let container = ContainerName::new("jobqueue-fifo").unwrap();
    let listed = storage.blobs().list_blobs(&container, "", None).await.unwrap();
    let names: Vec<_> = listed.blobs.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 3, "a head and two pages: {names:?}");
    for name in &names {
        let folder = format!("{name}/");
        assert!(!names.iter().any(|other| other.starts_with(&folder)), "{names:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn processes_that_take_turns_share_the_pages_of_a_key() {
    let storage = logged();
    let process = || Faulty::new(&storage).storage();
    let senders = [steps(&process()).await, steps(&process()).await, steps(&process()).await];
    let watch = Watch::default();
    let workers = [process(), process()].map(|storage| {
        let worker = worker(&storage).state(watch.clone()).handle(handle).build().unwrap();
        tokio::spawn(worker.run_until(sleep(MINUTE * 20)))
    });
    for number in 0..300 {
        send(&senders[number as usize * 7 % 3], &step("a", number)).await;
    }
    timeout(MINUTE * 10, watch.ends(300)).await.unwrap();
    watch.assert_in_order_of("a", 300);
    for worker in workers {
        worker.abort();
    }
}

/// The last of many waiting jobs is cancelled, by the process that sent it.
#[tokio::test(start_paused = true)]
async fn job_far_behind_can_be_cancelled() {
    let storage = logged();
    let queue = steps(&storage).await;
    let mut sent = Vec::new();
    for number in 0..JOBS {
        sent.push(queue.send(&step("a", number)).in_order().await.unwrap());
    }
    for cancelled in &sent[60..] {
        assert!(queue.cancel(cancelled).await.unwrap());
    }
    let watch = Watch::default();
    let took = run(&storage, &watch, 60).await;
    watch.assert_in_order_of("a", 60);
    assert!(took < MINUTE, "{took:?}");
    assert!(queue.is_empty().await.unwrap());
}

/// A sender last read the head before the second page was linked, and the first one has room again.
// audit 13, C13-1
#[tokio::test(start_paused = true)]
async fn sender_with_an_older_head_enters_no_job_before_others() {
    let storage = logged();
    let process = || Faulty::new(&storage).storage();
    let (quiet, busy) = (steps(&process()).await, steps(&process()).await);
    for number in 0..33 {
        send(&quiet, &step("a", number)).await;
    }
    let mut sent = Vec::new();
    for number in 33..66 {
        sent.push(busy.send(&step("a", number)).in_order().await.unwrap());
    }
    assert!(busy.cancel(&sent[3]).await.unwrap());
    send(&quiet, &step("a", 66)).await;
    let watch = Watch::default();
    run(&storage, &watch, 66).await;
    assert_eq!(watch.begun("a"), (0..67).filter(|number| *number != 36).collect::<Vec<_>>());
}

/// The first job is confirmed after the others have passed it by, so that it is moved behind the page into
/// which another sender writes.
// audit 13, C13-1
#[tokio::test(start_paused = true)]
async fn later_sends_run_after_a_job_that_was_acknowledged_late() {
    let storage = logged();
    let slow = Faulty::new(&storage);
    let late = steps(&slow.storage()).await;
    let puts = slow.clone();
    slow.on(Operation::PutBlob, move |_| {
        (puts.calls_of(Operation::Put) == 1).then_some(Fault::DelayBefore(MINUTE * 10))
    });
    let first = tokio::spawn(async move {
        late.send(&step("a", 1_000)).delay(MINUTE * 90).in_order().await.unwrap();
    });
    while slow.calls_of(Operation::Put) == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    let other = steps(&storage).await;
    for number in 0..40 {
        send(&other, &step("a", number)).await;
    }
    let watch = Watch::default();
    run(&storage, &watch, 3).await;
    first.await.unwrap();
    send(&other, &step("a", 40)).await;
    run(&storage, &watch, 42).await;
    assert_eq!(watch.begun("a"), (0..40).chain([1_000, 40]).collect::<Vec<_>>());
}
