use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Lease, LeaseError, LeaseRenewer, LeaseTerms, LeasedQueue, Loss};
use crate::runtime::Runtime;
use crate::settings::Metadata;
use crate::storage::{GetMessages, PutMessage, QueueName, Storage};

const TERM: Duration = Duration::from_secs(30);
const DAY: Duration = Duration::from_secs(86_400);

/// Returns a leased message on the memory storage, in paused time.
async fn leased(max_run_time: Duration) -> (Storage, QueueName, LeaseRenewer, Arc<Lease>) {
    leased_since(Instant::now(), max_run_time).await
}

/// Like [`leased`], but the request was sent at `requested`. In the storage the lease has just begun.
async fn leased_since(
    requested: Instant,
    max_run_time: Duration,
) -> (Storage, QueueName, LeaseRenewer, Arc<Lease>) {
    let terms = LeaseTerms { visibility: TERM, max_run_time };
    lease_of(PutMessage::new("text"), requested, terms).await
}

/// Returns the lease of a message whose time to live is `life`.
async fn leased_with_life(life: Duration, visibility: Duration) -> (Storage, QueueName, Arc<Lease>) {
    let terms = LeaseTerms { visibility, max_run_time: DAY };
    let message = PutMessage::new("text").with_ttl(Some(life));
    let (storage, queue, _renewer, lease) = lease_of(message, Instant::now(), terms).await;
    (storage, queue, lease)
}

async fn lease_of(
    message: PutMessage,
    requested: Instant,
    terms: LeaseTerms,
) -> (Storage, QueueName, LeaseRenewer, Arc<Lease>) {
    granted_lease_of(message, requested, terms, None).await
}

/// Like [`lease_of`], but the storage reports how long after the request the lease ends.
async fn granted_lease_of(
    message: PutMessage,
    requested: Instant,
    terms: LeaseTerms,
    granted: Option<Duration>,
) -> (Storage, QueueName, LeaseRenewer, Arc<Lease>) {
    let storage = crate::memory::open_on(Runtime::paused());
    let queue = QueueName::new("leases").unwrap();
    storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
    storage.queues().put(&queue, message).await.unwrap();
    let renewer = LeaseRenewer::on_this_runtime(&Runtime::new());
    let mut received = storage.queues().get(&queue, GetMessages::new(1, terms.visibility)).await.unwrap();
    received.messages[0].granted = granted;
    let leased_queue = leased_queue(&storage, &queue, &renewer);
    let lease = Lease::start(leased_queue, &received.messages[0], requested, terms);
    (storage, queue, renewer, lease)
}

/// Returns the handles for leases of `queue`, which nothing observes.
pub(super) fn leased_queue(storage: &Storage, queue: &QueueName, renewer: &LeaseRenewer) -> Arc<LeasedQueue> {
    Arc::new(LeasedQueue {
        name: queue.clone(),
        store: Arc::clone(storage.queues()),
        renewer_store: storage.detached_queues(),
        renewer: renewer.clone(),
        observers: Arc::default(),
    })
}

#[tokio::test(start_paused = true)]
async fn lease_is_renewed_until_settled() {
    let (storage, queue, renewer, lease) = leased(DAY).await;
    assert_eq!(renewer.watched(), 1);
    tokio::time::sleep(10 * TERM).await;
    assert!(!lease.stop_token().is_cancelled());
    assert!(lease.deadline() > Instant::now());
    lease.delete().await.unwrap();
    assert_eq!(renewer.watched(), 0);
    assert_eq!(storage.queues().queue_properties(&queue).await.unwrap().approximate_count, 0);
    assert!(matches!(lease.delete().await, Err(LeaseError::Closed)));
}

#[tokio::test(start_paused = true)]
async fn dropped_lease_is_forgotten() {
    let (_storage, _queue, renewer, lease) = leased(DAY).await;
    drop(lease);
    assert_eq!(renewer.watched(), 0);
}

#[tokio::test(start_paused = true)]
async fn renewals_end_with_the_run_time() {
    let started = Instant::now();
    let (_storage, _queue, _renewer, lease) = leased(2 * TERM).await;
    assert!(lease.begin_run());
    lease.stop_token().cancelled().await;
    assert_eq!(lease.loss(), Some(Loss::MaxRunTime));
    assert!(lease.deadline() > Instant::now());
    let deadline = lease.deadline();
    assert!(deadline < started + 3 * TERM, "renewed while it might run: {:?}", deadline - started);
    tokio::time::sleep_until(deadline - Duration::from_secs(2)).await;
    assert_eq!(lease.deadline(), deadline, "and no more");
    lease.release(Duration::ZERO, None).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn run_time_counts_from_start_of_run() {
    for (prepared, max_run_time) in [(1, TERM / 3), (10 * 60, TERM / 3), (10 * 60, 100 * TERM)] {
        let (_storage, _queue, _renewer, lease) = leased(max_run_time).await;
        tokio::time::sleep(Duration::from_secs(prepared)).await;
        assert!(lease.begin_run(), "renewed for {prepared} s before the run");
        let began = Instant::now();
        lease.stop_token().cancelled().await;
        assert_eq!(began.elapsed(), max_run_time);
        assert_eq!(lease.loss(), Some(Loss::MaxRunTime));
    }
}

#[tokio::test(start_paused = true)]
async fn run_that_starts_too_late_is_refused() {
    let (_storage, _queue, _renewer, lease) = leased(TERM).await;
    lease.stop_token().cancelled().await;
    assert!(!lease.begin_run());
    lease.release(Duration::ZERO, None).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn renewals_go_on_for_the_grace_after_the_run_time() {
    let (_storage, _queue, _renewer, lease) = leased(2 * TERM).await;
    assert!(lease.begin_run());
    lease.stop_token().cancelled().await;
    lease.renew_for(3 * TERM);
    tokio::time::sleep(3 * TERM).await;
    assert_eq!(lease.loss(), Some(Loss::MaxRunTime));
    tokio::time::sleep_until(lease.deadline()).await;
    assert_eq!(lease.loss(), Some(Loss::Expired), "and no longer");
}

#[tokio::test(start_paused = true)]
async fn lease_beyond_the_life_of_its_message_ends_with_it() {
    let (_storage, _queue, lease) = leased_with_life(TERM / 2, TERM).await;
    let expires = Instant::now() + TERM / 2;
    lease.save("progress".to_owned()).await.unwrap();
    lease.stop_token().cancelled().await;
    assert!(Instant::now() < expires);
}

#[tokio::test(start_paused = true)]
async fn change_in_last_second_does_not_show_message() {
    let life = Duration::from_secs(5);
    let (storage, queue, lease) = leased_with_life(life, life).await;
    tokio::time::sleep(life - Duration::from_millis(500)).await;
    assert!(matches!(lease.save("new".to_owned()).await, Err(LeaseError::Lost)));
    assert!(lease.stop_token().is_cancelled());
    let visible = storage.queues().get(&queue, GetMessages::new(1, TERM)).await.unwrap();
    assert!(visible.messages.is_empty());
}

#[tokio::test(start_paused = true)]
async fn put_back_in_last_second_does_not_show_message() {
    let life = Duration::from_secs(5);
    for (delay, visible) in [(TERM, 0), (Duration::ZERO, 1)] {
        let (storage, queue, lease) = leased_with_life(life, life).await;
        tokio::time::sleep(life - Duration::from_millis(900)).await;
        lease.release(delay, None).await.unwrap();
        let received = storage.queues().get(&queue, GetMessages::new(1, TERM)).await.unwrap();
        assert_eq!(received.messages.len(), visible);
    }
}

#[tokio::test(start_paused = true)]
async fn released_or_dropped_lease_is_not_renewed() {
    for release in [true, false] {
        let (storage, queue, renewer, lease) = leased(DAY).await;
        if release {
            lease.release(TERM, None).await.unwrap();
        } else {
            lease.abandon();
        }
        assert_eq!(renewer.watched(), 0);
        // The lease is closed although its receipt is still valid.
        assert!(matches!(lease.save("new".to_owned()).await, Err(LeaseError::Closed)));
        assert!(matches!(lease.release(TERM, None).await, Err(LeaseError::Closed)));
        assert!(matches!(lease.delete().await, Err(LeaseError::Closed)));
        tokio::time::sleep(TERM + Duration::from_secs(1)).await;
        let back = storage.queues().peek(&queue, 1).await.unwrap();
        assert_eq!(back[0].text.as_deref().unwrap(), "text", "it came back by itself, as it was");
    }
}

/// After the process slept, or the renewer starved, nothing has fired yet although the lease has expired.
#[tokio::test(start_paused = true)]
async fn expired_owner_deletes_nothing() {
    for renewer_has_seen_it in [false, true] {
        let requested = Instant::now();
        tokio::time::sleep(TERM + Duration::from_secs(1)).await;
        let (storage, queue, _renewer, lease) = leased_since(requested, DAY).await;
        if renewer_has_seen_it {
            lease.stop_token().cancelled().await;
        }
        assert!(matches!(lease.delete().await, Err(LeaseError::Lost)));
        assert_eq!(storage.queues().queue_properties(&queue).await.unwrap().approximate_count, 1);
        assert!(lease.stop_token().is_cancelled());
        assert_eq!(lease.loss(), Some(Loss::Expired));
    }
}

#[tokio::test(start_paused = true)]
async fn missing_message_is_a_lost_lease() {
    let (storage, queue, _renewer, lease) = leased(DAY).await;
    storage.queues().clear(&queue).await.unwrap();
    assert!(matches!(lease.save("new".to_owned()).await, Err(LeaseError::Lost)));
    assert_eq!(lease.loss(), Some(Loss::Taken));
    assert!(lease.stop_token().is_cancelled());
    let (storage, queue, _renewer, lease) = leased(DAY).await;
    storage.queues().clear(&queue).await.unwrap();
    assert!(matches!(lease.delete().await, Err(LeaseError::Lost)));
    assert_eq!(lease.loss(), Some(Loss::Taken));
    assert!(lease.stop_token().is_cancelled());
}

/// A get from many shards may ask one of them late; a get from Service Bus may wait for its first message.
#[tokio::test(start_paused = true)]
async fn lease_that_begins_long_after_request_has_full_length() {
    const SECOND: Duration = Duration::from_secs(1);
    for (late, storage_leases, lasts) in [
        (2 * TERM, TERM, TERM),
        (TERM / 2, TERM, TERM),
        (3 * TERM / 2, 2 * TERM, TERM),
        (3 * TERM / 2, TERM / 3, TERM / 3),
        // Longer than a preparation may take.
        (100 * TERM, 2 * TERM, TERM),
    ] {
        let requested = Instant::now();
        tokio::time::sleep(late).await;
        let terms = LeaseTerms { visibility: TERM, max_run_time: SECOND };
        let granted = Some(late + storage_leases);
        let leasing = granted_lease_of(PutMessage::new("text"), requested, terms, granted);
        let (_storage, _queue, _renewer, lease) = leasing.await;
        assert_eq!(lease.deadline(), Instant::now() + lasts, "{late:?} after the request");
        tokio::time::sleep(lasts / 2).await;
        assert!(lease.begin_run(), "{late:?} after the request");
    }
}

/// The lease ends with the storage's lease, however late the answer came.
#[tokio::test(start_paused = true)]
async fn lease_ends_no_later_than_in_the_storage() {
    for (late, granted, lasts) in [(TERM / 3, TERM, 2 * TERM / 3), (TERM / 2, 3 * TERM / 4, TERM / 4)] {
        let requested = Instant::now();
        tokio::time::sleep(late).await;
        let terms = LeaseTerms { visibility: TERM, max_run_time: DAY };
        let leasing = granted_lease_of(PutMessage::new("text"), requested, terms, Some(granted));
        let (_storage, _queue, _renewer, lease) = leasing.await;
        assert_eq!(lease.deadline(), Instant::now() + lasts);
    }
}

#[tokio::test(start_paused = true)]
async fn lease_is_lost_by_clock_even_if_renewer_is_late() {
    let (_storage, _queue, _renewer, lease) = leased(DAY).await;
    // Polled once: the clock moves, and no other task runs.
    let mut stopped = Box::pin(tokio::time::advance(2 * TERM));
    let _ = futures_util::poll!(&mut stopped);
    assert_eq!(lease.loss(), Some(Loss::Expired));
}
