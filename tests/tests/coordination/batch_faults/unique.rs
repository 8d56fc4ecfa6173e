//! Unique children whose work other jobs do: the sender ends them.

use std::time::Duration;

use jobqueue::batch::OnDeadLetters;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Error, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::in_memory;

use super::{Join, Log, Slice, run};

const HOUR: Duration = Duration::from_secs(3_600);

async fn send_children(storage: &Storage) -> Result<(), Error> {
    let mut batch = storage.batch("b").await?;
    batch.on_dead_letters(OnDeadLetters::Wait);
    for n in 0..150 {
        batch.send(&Slice { n }).unique_for(HOUR).await?;
    }
    batch.then(&Join {}).await
}

/// The sender dies after the last marker of a group, before that of the group.
// I12b
#[tokio::test(start_paused = true)]
async fn batch_of_unique_children_is_restarted_behind_any_marker() {
    let (storage, log) = (in_memory(), Log::default());
    let queue = storage.queue::<Slice>().await.unwrap();
    for n in 0..150 {
        assert!(queue.send(&Slice { n }).unique_for(HOUR).await.unwrap().is_sent());
    }
    let faulty = Faulty::new(&storage);
    // The first hundred children end, each with a listing of their group.
    faulty.plan(Operation::ListBlobs, 100, Fault::Refuse(StoreErrorKind::Unauthorized));
    send_children(&faulty.storage()).await.unwrap_err();
    send_children(&storage).await.unwrap();
    run(&storage, &log).await;
    assert_eq!(log.joins.lock().unwrap().len(), 1);
}
