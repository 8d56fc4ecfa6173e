//! A wrapper outside jobqueue that reports no powers passes the suite.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jobqueue::clock::ManualClock;
use jobqueue::storage::{BlobPowers, Call, Intercepted, Interceptor, QueuePowers, StoreError};
use jobqueue::{Runtime, Storage, memory};
use jobqueue_conformance::{Deviation, Subject, exercise};

/// Counts the requests to the storage inside, as they would be billed.
#[derive(Debug, Default)]
struct Billed {
    requests: AtomicU64,
}

impl Interceptor for Billed {
    async fn call<T: Send>(
        &self,
        _: Call<'_>,
        perform: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        perform.await
    }

    /// Passes on the guarantees only: the storage inside is stricter than the port demands.
    fn queue_powers(&self, powers: QueuePowers) -> QueuePowers {
        QueuePowers { guarantees: powers.guarantees, ..QueuePowers::default() }
    }

    fn blob_powers(&self, _: BlobPowers) -> BlobPowers {
        BlobPowers::default()
    }
}

fn subject() -> (Arc<Billed>, Subject) {
    let (billed, clock) = (Arc::new(Billed::default()), Arc::new(ManualClock::new()));
    let below = memory::open_on(Runtime::new().with_clock(clock.clone()));
    let queues = Intercepted::queues(Arc::clone(below.queues().store()), &billed);
    let blobs = Intercepted::blobs(Arc::clone(below.blobs()), &billed);
    (billed, Subject::virtual_time(Storage::new(queues, blobs, "billed"), clock))
}

#[tokio::test]
async fn storage_without_powers_keeps_every_promise_that_concerns_it() {
    let (billed, subject) = subject();
    let report = exercise(&subject).await;
    report.assert_kept();
    assert!(billed.requests.load(Ordering::Relaxed) > report.kept() as u64);
    assert!(report.skipped().iter().any(|name| name.starts_with("subscriptions::")));
    assert!(report.skipped().iter().any(|name| name.starts_with("acquire::")));
}

#[tokio::test]
async fn deviation_that_does_not_show_breaks_its_promises_by_name() {
    let report = exercise(&subject().1.deviating([Deviation::PeekShowsLeased])).await;
    assert!(!report.broken().is_empty());
    let known = ["get::hides_the_message", "peek::shows_no_invisible_messages"];
    assert!(report.broken().iter().all(|(name, _)| known.contains(name)), "{report}");
}
