//! Messages that cannot run, of children and continuations that are done: they are deleted.

use std::time::Duration;

use jobqueue::batch::OnDeadLetters;
use jobqueue::settings::Metadata;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::in_memory;
use tokio::time::sleep;

use super::{Log, Slice, fan_out, run};

// The deletions got no answer, the worker that remembers the jobs is gone, and an operator has lowered the bound of deliveries.
#[tokio::test(start_paused = true)]
async fn message_of_a_child_that_is_done_is_no_dead_letter() {
    for undeleted in ["slices", "joins"] {
        let (storage, log) = (in_memory(), Log::default());
        let faulty = Faulty::deleting_one_by_one(&storage);
        faulty.on(Operation::Delete, move |call| {
            (call.subject == undeleted).then_some(Fault::LoseRequest(StoreErrorKind::Timeout))
        });
        fan_out(&faulty.storage(), 1, OnDeadLetters::Wait).await;
        run(&faulty.storage(), &log).await;
        assert_eq!(log.joins.lock().unwrap().len(), 1);
        let queue = undeleted.parse().unwrap();
        let once = Metadata::new().with("maxdeliveries", "1");
        storage.queues().set_queue_metadata(&queue, &once).await.unwrap();
        sleep(Duration::from_secs(3_600)).await;
        run(&storage, &log).await;
        let dead = storage.queue_named::<Slice>(undeleted).await.unwrap().dead_letters().unwrap();
        assert_eq!(dead.approximate_len().await.unwrap(), 0, "{undeleted}");
        assert_eq!(storage.queues().queue_properties(&queue).await.unwrap().approximate_count, 0);
        assert_eq!(log.runs.lock().unwrap().values().sum::<u32>(), 1);
    }
}
