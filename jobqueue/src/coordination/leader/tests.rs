use std::time::Duration;

use super::*;
use crate::runtime::Runtime;

const LEASE: Duration = Duration::from_secs(15);

fn candidate(storage: &Storage) -> Leader {
    let storage = storage.clone().with_runtime(Runtime::paused());
    Leader::new(&storage, "cop").unwrap().lease(LEASE).poll_interval(Duration::from_secs(1))
}

#[tokio::test(start_paused = true)]
async fn one_of_two_candidates_leads_and_terms_grow() {
    let storage = Storage::memory();
    let (a, b) = (candidate(&storage), candidate(&storage));
    let first = a.lead().await.unwrap();
    assert!(a.has_control() && b.try_lead().await.unwrap().is_none());
    // The lease is renewed for much longer than its duration.
    tokio::time::sleep(LEASE * 10).await;
    assert!(a.has_control() && b.try_lead().await.unwrap().is_none());
    first.release().await;
    assert!(!a.has_control());
    let second = b.try_lead().await.unwrap().expect("released");
    assert!(second.term() > first.term());
}

#[tokio::test(start_paused = true)]
async fn terms_grow_after_the_container_is_deleted() {
    let storage = Storage::memory();
    let (a, b) = (candidate(&storage), candidate(&storage));
    let first = a.lead().await.unwrap();
    let container = blob::name("cop").unwrap().container().clone();
    tokio::time::sleep(Duration::from_secs(3)).await;
    storage.blobs().delete_container(&container).await.unwrap();
    let second = b.lead().await.unwrap();
    assert!(second.term() > first.term());
    first.token().cancelled().await;
    assert!(!a.has_control() && b.has_control());
}

// audit 33, coordination B1
#[tokio::test(start_paused = true)]
async fn work_that_must_be_polled_and_is_not_loses_the_leadership() {
    let storage = Storage::memory();
    let (a, b) = (candidate(&storage), candidate(&storage));
    let first = a.lead().await.unwrap();
    let work = async |leadership: Leadership| leadership.while_polled(std::future::pending::<()>()).await;
    let mut term = pin!(a.run_term(first, work));
    let hour = Duration::from_secs(3600);
    // Polled work keeps it.
    assert!(tokio::time::timeout(hour, &mut term).await.is_err() && a.has_control());
    let second = tokio::time::timeout(Duration::from_secs(130), b.lead()).await;
    assert!(second.is_ok(), "a candidate whose task is blocked leads on");
    assert!(!a.has_control() && term.await.is_none());
}

#[tokio::test(start_paused = true)]
async fn work_that_may_block_its_thread_keeps_the_leadership() {
    let storage = Storage::memory();
    let (a, b) = (candidate(&storage), candidate(&storage));
    let first = a.lead().await.unwrap();
    let mut term = pin!(a.run_term(first, |_| std::future::pending::<()>()));
    assert!(tokio::time::timeout(LEASE, &mut term).await.is_err());
    assert!(tokio::time::timeout(Duration::from_secs(3600), b.lead()).await.is_err() && a.has_control());
}
