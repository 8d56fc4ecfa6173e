use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Deleted, Keeper, Lease, LeaseTerms, Loss, TouchError};
use crate::storage::{GetMessages, Late, PutMessage, Storage};
use crate::vocabulary::metadata::Metadata;
use crate::vocabulary::name::QueueName;

const TERM: Duration = Duration::from_secs(30);

/// A leased message on the memory storage, in paused time.
async fn leased(max_run_time: Duration) -> (Storage, QueueName, Keeper, Arc<Lease>) {
    let storage = Storage::memory();
    let queue = QueueName::new("leases").unwrap();
    storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
    storage.queues().put(&queue, PutMessage::new("text")).await.unwrap();
    let keeper = Keeper::on_this_runtime();
    let requested = Instant::now();
    let received = storage.queues().get(&queue, GetMessages { count: 1, visibility: TERM }).await.unwrap();
    let terms = LeaseTerms { visibility: TERM, max_run_time, late: Late::Refuse };
    let (store, apart) = (Arc::clone(storage.queues()), storage.queues_apart());
    let lease = Lease::start(&keeper, store, apart, queue.clone(), &received.messages[0], requested, terms);
    (storage, queue, keeper, lease)
}

#[tokio::test(start_paused = true)]
async fn i08_a_lease_is_renewed_until_it_is_settled_and_then_forgotten() {
    let (storage, queue, keeper, lease) = leased(Duration::from_secs(86_400)).await;
    assert_eq!(keeper.watched(), 1);
    tokio::time::sleep(10 * TERM).await;
    assert!(!lease.lost().is_cancelled());
    assert!(lease.deadline() > Instant::now());
    assert_eq!(lease.delete().await.unwrap(), Deleted::Certainly);
    assert_eq!(keeper.watched(), 0);
    assert_eq!(storage.queues().queue_properties(&queue).await.unwrap().approximate_count, 0);
    assert!(matches!(lease.delete().await, Err(TouchError::Closed)));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_lease_is_forgotten() {
    let (_storage, _queue, keeper, lease) = leased(Duration::from_secs(86_400)).await;
    drop(lease);
    assert_eq!(keeper.watched(), 0);
}

#[tokio::test(start_paused = true)]
async fn i08_renewals_end_with_the_run_time_while_the_message_is_still_ours() {
    let (_storage, _queue, _keeper, lease) = leased(2 * TERM).await;
    lease.lost().cancelled().await;
    assert_eq!(lease.loss(), Some(Loss::MaxRunTime));
    assert!(lease.deadline() > Instant::now());
    lease.release(Duration::ZERO, None).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn i05_a_message_that_is_gone_is_a_lost_lease() {
    let (storage, queue, _keeper, lease) = leased(Duration::from_secs(86_400)).await;
    storage.queues().clear(&queue).await.unwrap();
    assert!(matches!(lease.save("new".to_owned()).await, Err(TouchError::Lost)));
    assert_eq!(lease.loss(), Some(Loss::Taken));
    assert!(lease.lost().is_cancelled());
}
