use std::sync::Arc;
use std::time::Duration;

use jobqueue_testing::faults::{Fault, Faulty};
use tokio::time::Instant;

use crate::lease::BatchDeletion::{Alone, Done};
use crate::lease::tests::leased_queue;
use crate::lease::{Lease, LeaseError, LeaseRenewer, LeaseTerms, Loss, delete_all};
use crate::runtime::Runtime;
use crate::settings::Metadata;
use crate::storage::{
    ExpiredReceipt, GetMessages, Interceptor, LeasedMessage, MessageRef, Operation, PutMessage, QueueName,
    Storage, StoreError, StoreErrorKind, Stores,
};

const TERM: Duration = Duration::from_secs(30);
const DAY: Duration = Duration::from_secs(86_400);

/// Returns leased messages of one queue on the memory storage, with planned faults.
async fn many_leased(count: u32) -> (Faulty, QueueName, LeaseRenewer, Vec<Arc<Lease>>) {
    many_leased_through(count, |stores| stores).await
}

/// Like [`many_leased`], but through a wrapper of the storage.
async fn many_leased_through(
    count: u32,
    wrap: impl FnOnce(Stores) -> Stores,
) -> (Faulty, QueueName, LeaseRenewer, Vec<Arc<Lease>>) {
    let faulty = Faulty::new(&Storage::memory());
    let storage = Storage::from(wrap(Stores::from(faulty.storage())));
    let queue = QueueName::new("leases").unwrap();
    storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
    for number in 0..count {
        storage.queues().put(&queue, PutMessage::new(number.to_string())).await.unwrap();
    }
    let renewer = LeaseRenewer::on_this_runtime(&Runtime::new());
    let requested = Instant::now();
    let received = storage.queues().get(&queue, GetMessages::new(count, TERM)).await.unwrap().messages;
    let terms = LeaseTerms { visibility: TERM, max_run_time: DAY };
    let leased_queue = leased_queue(&storage, &queue, &renewer);
    let lease =
        |message: &LeasedMessage| Lease::start(Arc::clone(&leased_queue), message, requested, terms.clone());
    let leases = received.iter().map(lease).collect();
    (faulty, queue, renewer, leases)
}

#[tokio::test(start_paused = true)]
async fn batch_delete_answers_for_each_message() {
    let (faulty, queue, renewer, leases) = many_leased(5).await;
    let storage = faulty.storage();
    // The first message is settled, the second is taken by another worker, a renewal of the third has no
    // answer, and the fourth is being renewed.
    leases[0].release(TERM, None).await.unwrap();
    storage.queues().delete(&queue, &leases[1].message(), ExpiredReceipt::Refuse).await.unwrap();
    faulty.plan(Operation::Update, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    faulty.plan(Operation::Update, 2, Fault::LoseRequest(StoreErrorKind::Timeout));
    leases[2].renew().await;
    assert!(leases[2].is_uncertain());
    let turn = leases[3].turn.lock().await;

    let outcomes = delete_all(&leases).await;
    assert_eq!(faulty.calls_of(Operation::DeleteAll), 1);
    let left = storage.queues().queue_properties(&queue).await.unwrap().approximate_count;
    assert_eq!(left, 3, "the last one is gone");
    assert!(matches!(outcomes[0], Done(Err(LeaseError::Closed))), "{outcomes:?}");
    assert!(matches!(outcomes[1..], [Alone, Alone, Alone, Done(Ok(()))]), "{outcomes:?}");
    drop(turn);
    assert!(matches!(leases[1].delete().await, Err(LeaseError::Lost)));
    assert_eq!(
        faulty.calls_of(Operation::Delete),
        1,
        "that of the other worker: the common request has its answer"
    );
    assert!(matches!(leases[2].delete().await, Err(LeaseError::Uncertain(_))));
    leases[3].delete().await.unwrap();
    assert_eq!(leases[1].loss(), Some(Loss::Taken));
    assert_eq!(renewer.watched(), 0);
}

/// The storage refuses a message that an open transaction holds up. The deletion neither waits for it nor
/// retries it, and its lease is renewed.
#[tokio::test(start_paused = true)]
async fn held_up_message_is_left_to_its_own_deletion() {
    let (faulty, queue, _renewer, leases) = many_leased(2).await;
    faulty.plan(Operation::DeleteAll, 1, Fault::Refuse(StoreErrorKind::Timeout));
    let outcomes = delete_all(&leases).await;
    assert!(matches!(outcomes[..], [Alone, Alone]), "{outcomes:?}");
    assert_eq!(faulty.calls_of(Operation::Delete), 0);
    tokio::time::sleep(2 * TERM).await;
    for lease in &leases {
        lease.delete().await.unwrap();
    }
    let left = faulty.storage().queues().queue_properties(&queue).await.unwrap().approximate_count;
    assert_eq!(left, 0);
}

/// Answers each batch deletion without performing it: a transaction holds up the first message, and the
/// others may be deleted.
#[derive(Debug)]
struct HoldsUpTheFirst;

impl Interceptor for HoldsUpTheFirst {
    async fn delete_all<F: Future<Output = Vec<Result<(), StoreError>>> + Send>(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        _: impl FnOnce(Vec<MessageRef>) -> F + Send,
    ) -> Vec<Result<(), StoreError>> {
        let late =
            |place| StoreError::new(StoreErrorKind::Timeout, "delete", queue).with_ambiguous(place > 0);
        (0..messages.len()).map(|place| Err(late(place))).collect()
    }
}

/// The deletion of the second message is tried for as long as its lease lasts. Nothing waits for it.
#[tokio::test(start_paused = true)]
async fn undecided_messages_are_left_to_their_own_deletions() {
    let wrap = |stores: Stores| stores.intercepted(&Arc::new(HoldsUpTheFirst));
    let (faulty, _queue, _renewer, leases) = many_leased_through(2, wrap).await;
    faulty.plan_always(Operation::Delete, Fault::Hang);
    let outcomes = delete_all(&leases).await;
    assert!(matches!(outcomes[..], [Alone, Alone]), "{outcomes:?}");
    assert!(matches!(leases[1].delete().await, Err(LeaseError::Uncertain(_))));
    assert_eq!(leases[0].loss(), None, "it was renewed meanwhile");
    faulty.heal();
    leases[0].delete().await.unwrap();
}

/// A renewal in between would find no such message, which is no loss.
#[tokio::test(start_paused = true)]
async fn ambiguous_batch_delete_is_resolved_per_message() {
    let lost_answer = Fault::DropAnswer(StoreErrorKind::Timeout);
    let lost_request = Fault::LoseRequest(StoreErrorKind::Timeout);
    for fault in [lost_answer, lost_request, Fault::Hang, Fault::HangAfter] {
        let (faulty, queue, renewer, leases) = many_leased(3).await;
        faulty.plan(Operation::DeleteAll, 1, fault);
        let outcomes = delete_all(&leases).await;
        assert!(matches!(outcomes[..], [Alone, Alone, Alone]), "{fault:?}");
        for lease in &leases {
            lease.renew().await;
            lease.delete().await.unwrap();
        }
        assert_eq!(faulty.calls_of(Operation::DeleteAll), 1);
        assert_eq!(faulty.calls_of(Operation::Delete), 3);
        assert_eq!(faulty.calls_of(Operation::Update), 0);
        let left = faulty.storage().queues().queue_properties(&queue).await.unwrap().approximate_count;
        assert_eq!(left, 0);
        assert_eq!(renewer.watched(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn expired_leases_are_not_deleted() {
    let (faulty, queue, _renewer, leases) = many_leased(2).await;
    faulty.plan_always(Operation::Update, Fault::Refuse(StoreErrorKind::Unavailable));
    tokio::time::sleep(TERM + Duration::from_secs(1)).await;
    let outcomes = delete_all(&leases).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Done(Err(LeaseError::Lost)))), "{outcomes:?}");
    let left = faulty.storage().queues().queue_properties(&queue).await.unwrap().approximate_count;
    assert_eq!(left, 2);
}
