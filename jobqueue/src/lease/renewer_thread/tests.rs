use jobqueue_testing::faults::{Fault, Faulty};
use tokio::time::{Instant, sleep};

use super::*;
use crate::lease::LeaseTerms;
use crate::lease::tests::leased_queue;
use crate::settings::Metadata;
use crate::storage::{GetMessages, Operation, PutMessage, QueueName, Storage, Stores};

const TERM: Duration = Duration::from_secs(30);
const DAY: Duration = Duration::from_secs(86_400);

/// Leases `count` messages of a new queue.
async fn leases(
    inner: &Storage,
    storage: &Storage,
    renewer: &LeaseRenewer,
    count: usize,
    visibility: Duration,
) -> Vec<Arc<Lease>> {
    let name = QueueName::new("leases").unwrap();
    inner.queues().create_queue(&name, &Metadata::new()).await.unwrap();
    let terms = LeaseTerms { visibility, max_run_time: DAY };
    let leased_queue = leased_queue(storage, &name, renewer);
    let mut leases = Vec::new();
    for _ in 0..count {
        inner.queues().put(&name, PutMessage::new("text")).await.unwrap();
        let received = inner.queues().get(&name, GetMessages::new(1, visibility)).await.unwrap();
        let queue = Arc::clone(&leased_queue);
        leases.push(Lease::start(queue, &received.messages[0], Instant::now(), terms.clone()));
    }
    leases
}

/// Leases messages of a storage that answers no renewal.
async fn hanging(renewer: &LeaseRenewer, count: usize, visibility: Duration) -> Vec<Arc<Lease>> {
    let inner = crate::memory::open_on(Runtime::paused());
    // Quiet: the hanging renewals are the only faults.
    let faulty = Faulty::quiet(&inner);
    faulty.plan_always(Operation::Update, Fault::Hang);
    let storage = Storage::from(Stores::from(faulty.storage()));
    leases(&inner, &storage, renewer, count, visibility).await
}

#[tokio::test(start_paused = true)]
async fn hanging_renewals_do_not_delay_others() {
    for hanging_leases in [200, 1_000] {
        let renewer = LeaseRenewer::on_this_runtime(&Runtime::new());
        let good = crate::memory::open_on(Runtime::paused());
        let _hanging = hanging(&renewer, hanging_leases, 10 * TERM).await;
        let lease = leases(&good, &good, &renewer, 1, TERM).await.remove(0);
        sleep(12 * TERM).await;
        assert_eq!(lease.loss(), None, "{hanging_leases}");
    }
}

#[tokio::test(start_paused = true)]
async fn unsent_renewals_count_as_behind() {
    let renewer = LeaseRenewer::on_this_runtime(&Runtime::new());
    let _hanging = hanging(&renewer, 2_000, TERM).await;
    let mut max_delay = Duration::ZERO;
    for _ in 0..30 {
        sleep(Duration::from_secs(1)).await;
        max_delay = max_delay.max(renewer.behind());
    }
    assert!(max_delay > Duration::from_secs(2) && max_delay < Duration::from_secs(9), "{max_delay:?}");
}
