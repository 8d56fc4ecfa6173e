//! Records that follow an effect, while blobs cannot be written for some seconds: the effect is not repeated.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::queue::SendUniqueOutcome;
use jobqueue::schedule::Schedule;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{JobError, JobInfo, QueueMessage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{after, in_memory, worker};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "ticks", kind = "tick")]
struct Tick {
    #[message(key)]
    of: String,
}

fn tick() -> Tick {
    Tick { of: "may".into() }
}

const BLOBS: [Operation; 2] = [Operation::PutBlob, Operation::GetBlob];
const OUTAGE: Duration = Duration::from_secs(15);

/// Returns a storage that refuses the operations for a time after the first message was put.
fn throttled_after_put(operations: &[Operation], outage: Duration) -> Faulty {
    let (faulty, throttles) = (Faulty::new(&in_memory()), Arc::new(AtomicBool::new(false)));
    let mut puts = 0;
    let begins = Arc::clone(&throttles);
    faulty.on(Operation::Put, move |_| {
        puts += 1;
        if puts == 1 {
            begins.store(true, Ordering::SeqCst);
            let ends = Arc::clone(&begins);
            drop(tokio::spawn(async move {
                sleep(outage).await;
                ends.store(false, Ordering::SeqCst);
            }));
        }
        None
    });
    for &operation in operations {
        let throttles = Arc::clone(&throttles);
        let refused = Fault::Refuse(StoreErrorKind::Unavailable);
        faulty.on(operation, move |_| throttles.load(Ordering::SeqCst).then_some(refused));
    }
    faulty
}

/// Runs a schedule whose first slot cannot be recorded.
async fn check_slots(faulty: &Faulty) {
    let ids = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&ids);
    let handler = move |_: Tick, info: JobInfo| {
        log.lock().unwrap().push(info.id.to_string());
        async { Ok::<_, JobError>(()) }
    };
    let every_minute = Schedule::every(Duration::from_secs(60)).name("tick");
    let worker = worker(&faulty.storage()).handle(handler).schedule_by(every_minute, tick).build().unwrap();
    let report = worker.run_until(after(260)).await.unwrap();
    let mut ids = ids.lock().unwrap().clone();
    assert!(ids.len() >= 3, "{ids:?}");
    let slots = ids.len();
    ids.dedup();
    assert_eq!((slots, report.duplicates), (ids.len(), 0), "a slot was sent again");
    assert_eq!(faulty.calls_of(Operation::Put), slots);
}

#[tokio::test(start_paused = true)]
async fn slot_whose_record_is_late_is_sent_once() {
    check_slots(&throttled_after_put(&BLOBS, OUTAGE)).await;
}

/// The lease of the leader cannot be renewed either, and ends.
#[tokio::test(start_paused = true)]
async fn slot_is_sent_once_also_if_its_leader_must_lead_again() {
    let all = [&BLOBS[..], &[Operation::AcquireLease, Operation::RenewLease]].concat();
    check_slots(&throttled_after_put(&all, Duration::from_secs(50))).await;
}

#[tokio::test(start_paused = true)]
async fn unique_send_whose_record_is_late_is_joined() {
    let faulty = throttled_after_put(&BLOBS, OUTAGE);
    let queue = faulty.storage().queue::<Tick>().await.unwrap();
    let hour = Duration::from_secs(3_600);
    assert!(queue.send(&tick()).unique_for(hour).await.unwrap().is_sent());
    sleep(Duration::from_secs(50)).await;
    let again = queue.send(&tick()).unique_for(hour).await.unwrap();
    assert!(matches!(again, SendUniqueOutcome::Joined { .. }), "{again:?}");
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
}

/// The hold on the key is over before the record is written, and no other sender has taken the key over.
#[tokio::test(start_paused = true)]
async fn unique_send_whose_record_outlasts_its_hold_is_joined() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Tick>().await.unwrap();
    faulty.plan(Operation::Put, 1, Fault::DelayBefore(Duration::from_secs(44)));
    let slow = Fault::DelayBefore(Duration::from_secs(2));
    let puts = faulty.clone();
    faulty.on(Operation::PutBlob, move |_| (puts.calls_of(Operation::Put) > 0).then_some(slow));
    let hour = Duration::from_secs(3_600);
    assert!(queue.send(&tick()).unique_for(hour).await.unwrap().is_sent());
    let again = queue.send(&tick()).unique_for(hour).await.unwrap();
    assert!(matches!(again, SendUniqueOutcome::Joined { .. }), "{again:?}");
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
}
