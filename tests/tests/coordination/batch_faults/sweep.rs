//! The sweep of batches that ended long ago, or were abandoned.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jobqueue::Storage;
use jobqueue::batch::{BatchSweepOptions, sweep_batches};
use jobqueue::storage::{ContainerName, Operation, StoreErrorKind};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::in_memory;
use tokio::time::sleep;

use crate::batch_faults::{Join, Log, Slice, run};

const DAY: Duration = Duration::from_secs(86_400);

/// Returns the number of blobs of batches.
async fn left(storage: &Storage, batch: &str) -> usize {
    let container = ContainerName::new("jobqueue-batches").unwrap();
    storage.blobs().list_blobs(&container, batch, None).await.unwrap().blobs.len()
}

async fn small(storage: &Storage, id: &str) {
    let mut batch = storage.batch(id).await.unwrap();
    batch.send_all((0..3).map(|n| Slice { n })).await.unwrap();
    batch.then(&Join {}).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn sweep_removes_only_batches_that_ended_long_ago() {
    let (storage, log) = (in_memory(), Log::default());
    assert_eq!(sweep_batches(&storage, BatchSweepOptions::new()).await.unwrap(), 0, "no container yet");
    small(&storage, "old").await;
    run(&storage, &log).await;
    sleep(DAY * 10).await;
    small(&storage, "new").await;
    run(&storage, &log).await;
    small(&storage, "waiting").await;
    sleep(DAY * 5).await;
    let waiting = left(&storage, "waiting/").await;
    assert_eq!(sweep_batches(&storage, BatchSweepOptions::new()).await.unwrap(), 1);
    assert_eq!(left(&storage, "old/").await, 0);
    assert_eq!(left(&storage, "waiting/").await, waiting);
    assert!(left(&storage, "new/").await > 0);
    assert_eq!(sweep_batches(&storage, BatchSweepOptions::new()).await.unwrap(), 0);
    // The batch that was kept continues.
    run(&storage, &log).await;
    assert_eq!(log.joins.lock().unwrap().len(), 3);
    // An id whose batch is gone is good for another one.
    small(&storage, "old").await;
    run(&storage, &log).await;
    assert_eq!(log.joins.lock().unwrap().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_sweep_removes_what_was_abandoned_only_if_told_to() {
    let (storage, log) = (in_memory(), Log::default());
    small(&storage, "left").await;
    sleep(DAY * 100).await;
    assert_eq!(sweep_batches(&storage, BatchSweepOptions::new()).await.unwrap(), 0);
    assert_eq!(sweep_batches(&storage, BatchSweepOptions::new().abandoned(DAY * 101)).await.unwrap(), 0);
    assert_eq!(sweep_batches(&storage, BatchSweepOptions::new().abandoned(DAY * 99)).await.unwrap(), 1);
    assert_eq!(left(&storage, "left/").await, 0);
    // Its children still run; their end leads nowhere.
    run(&storage, &log).await;
    assert_eq!(log.runs.lock().unwrap().len(), 3);
    assert_eq!(log.joins.lock().unwrap().len(), 0);
}

/// The mark that a batch is done is deleted last, so that the next sweep completes one that died at any point.
#[tokio::test(start_paused = true)]
async fn a_sweep_that_is_interrupted_anywhere_is_finished_by_the_next() {
    let mut interrupted = 0;
    for nth in 1.. {
        let (storage, log) = (in_memory(), Log::default());
        small(&storage, "old").await;
        run(&storage, &log).await;
        sleep(DAY * 15).await;
        let faulty = Faulty::new(&storage);
        let deleted = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&deleted);
        faulty.on(Operation::DeleteBlob, move |_| {
            let dies = count.fetch_add(1, Ordering::SeqCst) + 1 >= nth;
            dies.then_some(Fault::Refuse(StoreErrorKind::Unavailable))
        });
        let swept = sweep_batches(&faulty.storage(), BatchSweepOptions::new()).await;
        if swept.is_ok() {
            break;
        }
        interrupted += 1;
        assert!(left(&storage, "old/done").await == 1, "the mark is gone before the rest at {nth}");
        assert_eq!(sweep_batches(&storage, BatchSweepOptions::new()).await.unwrap(), 1);
        assert_eq!(left(&storage, "old/").await, 0);
    }
    // Plan, cursor, sent, done, four claims, three markers.
    assert!(interrupted >= 10, "only {interrupted} deletions");
}
