use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::time::Duration;

use futures_util::FutureExt;
use jobqueue_testing::faults::{Fault, Faulty};
use tokio::time::Instant;

use crate::event::{Event, Observers};
use crate::lease::BatchDeletion::{Alone, Done};
use crate::lease::owner::TransactionState;
use crate::lease::tests::leased_queue;
use crate::lease::{Lease, LeaseError, LeaseRenewer, LeaseTerms, LeasedQueue, Loss, delete_all};
use crate::memory::TokioClock;
use crate::runtime::Runtime;
use crate::settings::Metadata;
use crate::storage::{
    ExpiredReceipt, GetMessages, LeasedMessage, Operation, PopReceipt, PutMessage, QueueName, Queues,
    Storage, StoreErrorKind, Stores, UpdateMessage,
};

const TERM: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);
const LOST_REQUEST: Fault = Fault::LoseRequest(StoreErrorKind::Timeout);
const LOST_ANSWER: Fault = Fault::DropAnswer(StoreErrorKind::Timeout);

struct Scene {
    inner: Storage,
    faulty: Faulty,
    queue: QueueName,
    renewer: LeaseRenewer,
}

impl Scene {
    async fn new() -> Self {
        Self::over(Faulty::new).await
    }

    /// Returns a scene whose storage answers at once.
    async fn quiet() -> Self {
        // Quiet: for immediate answers, and for refusals that certainly changed nothing.
        Self::over(Faulty::quiet).await
    }

    async fn over(faulty: fn(&Storage) -> Faulty) -> Self {
        let inner = crate::memory::open_on(Runtime::new().with_clock(Arc::new(TokioClock::new())));
        let (faulty, queue) = (faulty(&inner), QueueName::new("leases").unwrap());
        inner.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
        Self { faulty, queue, inner, renewer: LeaseRenewer::on_this_runtime(&Runtime::new()) }
    }

    async fn message(&self, message: PutMessage) -> LeasedMessage {
        self.inner.queues().put(&self.queue, message).await.unwrap();
        take(self.inner.queues(), &self.queue).unwrap()
    }

    /// Leases a message as if the request had been sent `ago`.
    async fn leased(&self, ago: Duration, max_run_time: Duration) -> Arc<Lease> {
        self.lease_of(PutMessage::new("text"), ago, max_run_time).await
    }

    async fn lease_of(&self, message: PutMessage, ago: Duration, max_run_time: Duration) -> Arc<Lease> {
        let storage = Storage::from(Stores::from(self.faulty.storage()));
        let message = self.message(message).await;
        let terms = LeaseTerms { visibility: TERM, max_run_time };
        let leased_queue = leased_queue(&storage, &self.queue, &self.renewer);
        Lease::start(leased_queue, &message, Instant::now() - ago, terms)
    }

    async fn waiting(&self) -> u64 {
        self.inner.queues().queue_properties(&self.queue).await.unwrap().approximate_count
    }
}

/// Leases a message as another worker would, without waiting.
fn take(store: &Queues, queue: &QueueName) -> Option<LeasedMessage> {
    let get = GetMessages::new(1, TERM);
    store.get(queue, get).now_or_never()?.ok()?.messages.pop()
}

/// Returns a lease whose renewer has its own connections, while the application's connections no longer
/// answer.
async fn lease_of_a_blocked_application(scene: &Scene) -> Arc<Lease> {
    let message = scene.message(PutMessage::new("text")).await;
    let terms = LeaseTerms { visibility: TERM, max_run_time: 100 * TERM };
    let queue = LeasedQueue {
        name: scene.queue.clone(),
        store: Arc::clone(scene.faulty.storage().queues()),
        renewer_store: Arc::clone(scene.inner.queues()),
        renewer: scene.renewer.clone(),
        observers: Arc::default(),
    };
    scene.faulty.plan_always(Operation::Update, Fault::Hang);
    Lease::start(Arc::new(queue), &message, Instant::now(), terms)
}

#[tokio::test(start_paused = true)]
async fn background_release_needs_no_connection_of_the_application() {
    let scene = Scene::quiet().await;
    let lease = lease_of_a_blocked_application(&scene).await;
    lease.release_later(Duration::ZERO, None);
    tokio::time::sleep(SECOND).await;
    assert!(take(scene.inner.queues(), &scene.queue).is_some(), "it is visible at once");
}

#[tokio::test(start_paused = true)]
async fn checkpoint_after_a_rollback_needs_no_connection_of_the_application() {
    let scene = Scene::quiet().await;
    let lease = lease_of_a_blocked_application(&scene).await;
    lease.state().transaction = TransactionState::Open(PopReceipt::new("rolled back"));
    lease.save("new".to_owned()).await.unwrap();
    assert!(!lease.is_in_transaction());
}

// The first try was applied, whatever the storage says about the second.
#[tokio::test(start_paused = true)]
async fn refusal_after_lost_answer_leaves_change_in_doubt() {
    for refusal in [StoreErrorKind::Throttled, StoreErrorKind::Unavailable, StoreErrorKind::Unauthorized] {
        let scene = Scene::new().await;
        let lease = scene.leased(Duration::ZERO, 100 * TERM).await;
        scene.faulty.plan_always(Operation::Update, Fault::Refuse(refusal));
        scene.faulty.plan(Operation::Update, 1, LOST_ANSWER);
        let saved = lease.save("new".to_owned()).await;
        assert!(matches!(saved, Err(LeaseError::Uncertain(_))), "{refusal:?}: {saved:?}");
        assert!(lease.is_uncertain());
    }
}

#[tokio::test(start_paused = true)]
async fn deletion_in_doubt_is_not_refused() {
    let scene = Scene::new().await;
    let lease = scene.leased(Duration::ZERO, 100 * TERM).await;
    scene.faulty.plan_always(Operation::Delete, Fault::Refuse(StoreErrorKind::Unauthorized));
    scene.faulty.plan(Operation::Delete, 1, LOST_ANSWER);
    assert!(matches!(lease.delete().await, Err(LeaseError::Uncertain(_))));
    assert_eq!(scene.waiting().await, 0);
}

#[tokio::test(start_paused = true)]
async fn late_answer_does_not_revive_lost_lease() {
    let scene = Scene::new().await;
    // The job has exceeded its run time, so the renewer does not touch the lease.
    let lease = scene.leased(Duration::ZERO, SECOND).await;
    assert!(lease.begin_run());
    tokio::time::sleep(TERM - Duration::from_millis(1_200)).await;
    scene.faulty.plan(Operation::Update, 1, LOST_ANSWER);
    scene.faulty.plan(Operation::Update, 2, Fault::DelayBefore(Duration::from_millis(300)));
    let released = lease.release(TERM, None).await;
    assert!(matches!(released, Err(LeaseError::Uncertain(_))), "{released:?}");
    assert_eq!(lease.loss(), Some(Loss::Expired));
}

// A process is suspended during its deletion, or before it tries again, while another process does the job.
#[tokio::test(start_paused = true)]
async fn owner_suspended_during_deletion_does_not_claim_success() {
    for in_request in [true, false] {
        // Latency would leave the second try no time for its answer.
        let scene = Scene::quiet().await;
        let lease = scene.leased(Duration::ZERO, SECOND).await;
        let (inner, queue) = (scene.inner.clone(), scene.queue.clone());
        scene.faulty.on(Operation::Delete, move |call| {
            let (inner, queue) = (inner.clone(), queue.clone());
            match (call.nth, in_request) {
                (1, true) => done_by_another(&inner, &queue),
                // Runs in the pause before the next try.
                (1, false) => drop(tokio::spawn(async move { done_by_another(&inner, &queue) })),
                _ => return None,
            }
            Some(LOST_REQUEST)
        });
        let deleted = lease.delete().await;
        assert!(matches!(deleted, Err(LeaseError::Uncertain(_))), "{in_request}: {deleted:?}");
    }
}

/// Lets the lease run out. Another worker takes the message and deletes it.
fn done_by_another(inner: &Storage, queue: &QueueName) {
    let _ = tokio::time::advance(TERM + SECOND).now_or_never();
    let taken = take(inner.queues(), queue).unwrap().message;
    inner.queues().delete(queue, &taken, ExpiredReceipt::Refuse).now_or_never().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn throttled_deletion_is_retried_until_lease_ends() {
    for ambiguous in [false, true] {
        let scene = if ambiguous { Scene::new().await } else { Scene::quiet().await };
        let lease = scene.leased(Duration::ZERO, SECOND).await;
        let busy = StoreErrorKind::Throttled;
        let fault = if ambiguous { Fault::LoseRequest(busy) } else { Fault::Refuse(busy) };
        scene.faulty.plan_always(Operation::Delete, fault);
        let faulty = scene.faulty.clone();
        tokio::spawn(async move {
            tokio::time::sleep(TERM * 2 / 3).await;
            faulty.heal();
        });
        lease.delete().await.unwrap();
        assert!(scene.faulty.calls_of(Operation::Delete) > 3);
        assert_eq!(scene.waiting().await, 0);
    }
}

// round 31: it was given up after two tries, and the message stayed hidden until its lease ended.
#[tokio::test(start_paused = true)]
async fn settlement_is_retried_after_an_outage_within_its_lease() {
    for (deletes, is_lost) in [(true, false), (true, true), (false, false), (false, true)] {
        let scene = Scene::quiet().await;
        let lease = scene.leased(Duration::ZERO, SECOND).await;
        let operation = if deletes { Operation::Delete } else { Operation::Update };
        let fault = if is_lost { LOST_REQUEST } else { Fault::Refuse(StoreErrorKind::Unavailable) };
        scene.faulty.plan_always(operation, fault);
        let faulty = scene.faulty.clone();
        tokio::spawn(async move {
            tokio::time::sleep(TERM / 2).await;
            faulty.heal();
        });
        let settled = if deletes { lease.delete().await } else { lease.release(Duration::ZERO, None).await };
        settled.unwrap();
        let visible = take(scene.inner.queues(), &scene.queue);
        assert_eq!(visible.is_none(), deletes, "deletes: {deletes}, lost: {is_lost}");
    }
}

#[tokio::test(start_paused = true)]
async fn throttled_release_is_retried_until_lease_ends() {
    let scene = Scene::new().await;
    let lease = scene.leased(Duration::ZERO, SECOND).await;
    for nth in 1..=3 {
        let fault = Fault::ThrottleInDoubt { retry_after: 6 * SECOND, applied: false };
        scene.faulty.plan(Operation::Update, nth, fault);
    }
    lease.release(Duration::ZERO, None).await.unwrap();
    assert_eq!(scene.faulty.calls_of(Operation::Update), 4);
}

#[tokio::test(start_paused = true)]
async fn retried_release_stays_within_message_ttl() {
    for life in [2 * TERM, 6 * SECOND] {
        let scene = Scene::quiet().await;
        let message = PutMessage::new("text").with_ttl(Some(life));
        let lease = scene.lease_of(message, Duration::ZERO, 100 * TERM).await;
        scene.faulty.on(Operation::Update, |call| {
            let _ = (call.nth == 1).then(|| tokio::time::advance(4 * SECOND).now_or_never());
            (call.nth == 1).then_some(Fault::Refuse(StoreErrorKind::Unavailable))
        });
        lease.release(100 * TERM, None).await.unwrap();
        assert_eq!(scene.waiting().await, 1);
        // The message does not become visible before it expires.
        assert!(take(scene.inner.queues(), &scene.queue).is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn lease_near_its_end_is_left_out_of_batch_deletion() {
    let scene = Scene::new().await;
    let mut leases = Vec::new();
    for ago in [Duration::ZERO, TERM - 2 * SECOND, Duration::ZERO] {
        leases.push(scene.leased(ago, SECOND).await);
    }
    scene.faulty.plan(Operation::DeleteAll, 1, Fault::DelayBefore(3 * SECOND));
    let outcomes = delete_all(&leases).await;
    assert!(matches!(outcomes[..], [Done(Ok(())), Alone, Done(Ok(()))]), "{outcomes:?}");
    assert_eq!(scene.faulty.calls_of(Operation::DeleteAll), 1);
    assert_eq!(scene.faulty.calls_of(Operation::Delete), 0);
}

#[tokio::test(start_paused = true)]
async fn update_whose_caller_is_dropped_leaves_doubt() {
    let scene = Scene::new().await;
    let lease = scene.leased(Duration::ZERO, SECOND).await;
    scene.faulty.plan(Operation::Update, 1, Fault::HangAfter);
    assert!(tokio::time::timeout(SECOND, lease.save_here("new".to_owned())).await.is_err());
    assert!(lease.is_uncertain());
    let deleted = lease.delete().await;
    assert!(matches!(deleted, Err(LeaseError::Uncertain(_))), "{deleted:?}");
}

#[tokio::test(start_paused = true)]
async fn renewal_that_panics_does_not_cost_the_lease() {
    let scene = Scene::quiet().await;
    let lease = scene.leased(Duration::ZERO, 100 * TERM).await;
    let mut calls = 0;
    scene.faulty.on(Operation::Update, move |_| {
        calls += 1;
        assert!(calls > 2, "boom");
        None
    });
    tokio::time::sleep(3 * TERM).await;
    assert_eq!(lease.loss(), None);
    assert!(scene.faulty.calls_of(Operation::Update) >= 4);
}

#[tokio::test(start_paused = true)]
async fn zero_retry_after_does_not_hammer_busy_storage() {
    let scene = Scene::new().await;
    let lease = scene.leased(Duration::ZERO, SECOND).await;
    let fault = Fault::ThrottleInDoubt { retry_after: Duration::ZERO, applied: false };
    scene.faulty.plan_always(Operation::Delete, fault);
    assert!(lease.delete().await.is_err());
    assert!(scene.faulty.calls_of(Operation::Delete) < 700);
}

/// Puts back a message that a transaction of the handler has changed. Returns the stored text.
async fn put_back_after_a_transaction(commits: bool) -> String {
    let scene = Scene::quiet().await;
    let lease = scene.leased(Duration::ZERO, 100 * TERM).await;
    let receipt = if commits {
        let change = UpdateMessage::new(TERM).with_text("finished".to_owned());
        let updated = scene.inner.queues().update(&scene.queue, &lease.message(), change).await;
        updated.unwrap().receipt
    } else {
        PopReceipt::new("rolled back")
    };
    lease.state().transaction = TransactionState::Open(receipt);
    assert!(lease.end_transactions());
    lease.release(Duration::ZERO, Some("uncounted".to_owned())).await.unwrap();
    take(scene.inner.queues(), &scene.queue).unwrap().text.unwrap()
}

// A shutdown counts no delivery.
#[tokio::test(start_paused = true)]
async fn text_of_a_put_back_is_written_unless_the_transaction_has_committed() {
    assert_eq!(put_back_after_a_transaction(false).await, "uncounted");
    assert_eq!(put_back_after_a_transaction(true).await, "finished");
}

#[tokio::test(start_paused = true)]
async fn lease_in_doubt_after_a_rollback_is_not_called_settled() {
    let scene = Scene::quiet().await;
    let lease = scene.leased(Duration::ZERO, SECOND).await;
    lease.state().transaction = TransactionState::Open(PopReceipt::new("rolled back"));
    scene.faulty.plan(Operation::Update, 1, LOST_ANSWER);
    lease.renew().await;
    assert!(lease.is_uncertain());
    let mut change = lease.change_in_transaction().unwrap();
    let refused = scene.inner.queues().update(&scene.queue, change.message(), UpdateMessage::new(TERM)).await;
    let answer = change.answered(refused);
    assert!(matches!(answer, Err(LeaseError::Uncertain(_))), "{answer:?}");
}

/// Returns a lease whose events `listener` receives.
async fn observed(scene: &Scene, listener: impl Fn(&Event) + Send + Sync + 'static) -> Arc<Lease> {
    let message = scene.message(PutMessage::new("text")).await;
    let mut observers = Observers::default();
    observers.add(listener);
    let queue = LeasedQueue {
        name: scene.queue.clone(),
        store: Arc::clone(scene.faulty.storage().queues()),
        renewer_store: Arc::clone(scene.faulty.storage().queues()),
        renewer: scene.renewer.clone(),
        observers: Arc::new(observers),
    };
    let terms = LeaseTerms { visibility: TERM, max_run_time: 100 * TERM };
    Lease::start(Arc::new(queue), &message, Instant::now(), terms)
}

// A renewal that had waited for the deletion was reported as failed.
#[tokio::test(start_paused = true)]
async fn renewal_behind_a_deletion_has_not_failed() {
    let scene = Scene::quiet().await;
    let failures = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&failures);
    let listener = move |event: &Event| {
        count.fetch_add(u32::from(matches!(event, Event::NotRenewed { .. })), Ordering::Relaxed);
    };
    let lease = observed(&scene, listener).await;
    scene.faulty.plan_always(Operation::Update, Fault::Refuse(StoreErrorKind::Unauthorized));
    lease.renew().await;
    assert_eq!(failures.load(Ordering::Relaxed), 1, "the storage has refused it");
    scene.faulty.heal();
    scene.faulty.plan(Operation::Delete, 1, Fault::DelayBefore(SECOND));
    let (deleted, ()) = tokio::join!(lease.delete(), lease.renew());
    deleted.unwrap();
    assert_eq!(failures.load(Ordering::Relaxed), 1);
}

// The listener was called while the state was locked. Here it asks on a thread of its own, so that a locked
// state fails this test instead of hanging it.
#[tokio::test(start_paused = true)]
async fn listener_of_a_lost_lease_can_ask_it_for_its_loss() {
    let scene = Scene::quiet().await;
    let asked = Arc::new(OnceLock::<Weak<Lease>>::new());
    let (known, (asks, answers)) = (Arc::clone(&asked), mpsc::channel());
    let listener = move |event: &Event| {
        if let Event::LeaseLost { .. } = event
            && let Some(lease) = known.get().and_then(Weak::upgrade)
        {
            let (answer, answered) = mpsc::channel();
            std::thread::spawn(move || answer.send(lease.loss()));
            asks.send(answered.recv_timeout(10 * SECOND)).unwrap();
        }
    };
    let lease = observed(&scene, listener).await;
    asked.set(lease.weak()).unwrap();
    scene.inner.queues().clear(&scene.queue).await.unwrap();
    lease.renew().await;
    assert_eq!(answers.try_recv(), Ok(Ok(Some(Loss::Taken))));
}
