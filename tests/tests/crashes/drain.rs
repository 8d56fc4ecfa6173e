//! The last process, which is not killed. It runs the remaining jobs, fixes the cause of the failures,
//! redrives all dead letters and runs those, then sends one more job of each key in order.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::{QueueMessage, SendOptions};

use super::handlers::worker;
use super::jobs::{Freight, Join, Order, Slice, Task};
use super::operator::redrive_all;
use super::process::Process;
use super::senders::KEYS;

/// The maximum time until all queues must be empty.
const PATIENCE: Duration = Duration::from_secs(180);

pub async fn drain(process: &Arc<Process>) {
    work_off(process).await;
    note_letters::<Task>(process).await;
    note_letters::<Order>(process).await;
    note_letters::<Slice>(process).await;
    note_letters::<Join>(process).await;
    process.ledger.note("quiet", 0, "");
    std::fs::write(process.folder.join("mended"), "").unwrap();
    // A redriven job may have a continuation whose letter came after it.
    while redrive_all(process, u64::MAX).await > 0 {
        work_off(process).await;
    }
    for key in 0..KEYS {
        let id = format!("s-o{key}-last");
        process.ledger.note("intend", 0, &id);
        let options = SendOptions::new().id(&id).key(format!("o{key}")).in_order();
        let orders = process.storage.queue::<Order>().await.unwrap();
        orders.send(&Order(Freight::of(&id))).with(options).await.unwrap();
        process.ledger.note("sent", 0, &id);
    }
    work_off(process).await;
}

/// Works until all queues are empty, or it is clear that they will not be.
async fn work_off(process: &Arc<Process>) {
    let empty = async {
        let mut times = 0;
        // A job may send another into a queue that was just found empty.
        while times < 3 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let left = left::<Task>(process).await
                + left::<Order>(process).await
                + left::<Slice>(process).await
                + left::<Join>(process).await;
            times = if left == 0 { times + 1 } else { 0 };
        }
    };
    let end = async {
        if tokio::time::timeout(PATIENCE, empty).await.is_err() {
            process.ledger.note("stuck", 0, "");
        }
    };
    let _ = worker(process).build().unwrap().run_until(end).await.unwrap();
}

async fn left<M: QueueMessage>(process: &Process) -> u64 {
    process.storage.queue::<M>().await.unwrap().approximate_len().await.unwrap()
}

async fn note_letters<M: QueueMessage>(process: &Process) {
    let queue = process.storage.queue::<M>().await.unwrap();
    let note = |letter: &jobqueue::dead_letters::DeadLetter| {
        process.ledger.note("letter", letter.attempts, &letter.id)
    };
    let visited = queue.dead_letters().unwrap().for_each(note).await.unwrap();
    assert_eq!(visited.unseen, Some(0), "another process holds dead letters");
}
