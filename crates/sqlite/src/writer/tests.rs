use jobqueue_storage::runtime::Runtime;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Wake, Waker};

use futures_util::FutureExt;
use tempfile::TempDir;

use super::*;
use crate::error::{Applied, Failure};
use crate::options::Options;
use crate::store::Store;
use jobqueue_storage::clock::ManualClock;
use jobqueue_storage::{
    ExpiredReceipt, GetMessages, JournalQuery, JournalStore, MessageIndex, MessageRef, MessageState,
    Metadata, Operation, PutMessage, QueueName, QueueStore, StateCounter, StoreError,
};

async fn store(clock: &Arc<ManualClock>) -> (TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let options =
        Options::new(folder.path().join("jobs.db"))
            .runtime(Runtime::new().with_clock(Arc::<ManualClock>::clone(clock)));
    let store = Store::open(options).await.unwrap();
    (folder, store)
}

async fn write<T: Send + 'static>(
    store: &Store,
    mut work: impl FnMut(&mut Batch<'_>) -> Applied<T> + Send + 'static,
) -> Result<T, StoreError> {
    store.write(Operation::Update, &"", 1, move |batch, _| work(batch)).await
}

/// An operation that reports when it runs, and then waits until it may continue.
struct HeldOperation {
    running: Receiver<()>,
    go_on: Sender<()>,
}

impl HeldOperation {
    fn new<T>(
        mut work: impl FnMut(&mut Batch<'_>) -> Applied<T> + Send + 'static,
    ) -> (Self, impl FnMut(&mut Batch<'_>) -> Applied<T> + Send + 'static) {
        let ((runs, running), (go_on, may_go_on)) = (channel(), channel());
        let held = move |batch: &mut Batch<'_>| {
            runs.send(()).unwrap();
            may_go_on.recv().unwrap();
            work(batch)
        };
        (Self { running, go_on }, held)
    }
}

/// Leaves a mark that vanishes at the end of the transaction.
fn mark(batch: &mut Batch<'_>) -> Applied<i64> {
    batch.note_change();
    batch.connection().execute_batch("SAVEPOINT mark")?;
    Ok(batch.now())
}

/// Fails unless the mark was left in the same transaction.
fn find_mark(batch: &mut Batch<'_>) -> Applied<i64> {
    batch.note_change();
    batch.connection().execute_batch("RELEASE mark")?;
    Ok(batch.now())
}

#[tokio::test]
async fn operations_join_the_running_transaction_at_current_time() {
    let clock = Arc::new(ManualClock::new());
    let (_folder, store) = store(&clock).await;
    let (held, first) = HeldOperation::new(mark);
    let mut first = pin!(write(&store, first));
    assert!(first.as_mut().now_or_never().is_none());
    held.running.recv().unwrap();
    clock.advance(Duration::from_secs(5));
    let mut second = pin!(write(&store, find_mark));
    assert!(second.as_mut().now_or_never().is_none());
    held.go_on.send(()).unwrap();
    // A lease that begins later must not end before its owner expects it.
    assert_eq!(second.await.unwrap(), first.await.unwrap() + 5_000);
}

#[tokio::test]
async fn write_that_is_retried_alone_stays_alone() {
    let (_folder, store) = store(&Arc::new(ManualClock::new())).await;
    let (held, first) = HeldOperation::new(mark);
    let mut first = pin!(write(&store, first));
    assert!(first.as_mut().now_or_never().is_none());
    held.running.recv().unwrap();
    let full = |_: &mut Batch<'_>| -> Applied<()> {
        Err(Failure::Sql(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None)))
    };
    let mut second = pin!(write(&store, full));
    assert!(second.as_mut().now_or_never().is_none());
    held.go_on.send(()).unwrap();
    // The transaction of both has failed; the first task runs again alone.
    held.running.recv().unwrap();
    let mut third = pin!(write(&store, find_mark));
    assert!(third.as_mut().now_or_never().is_none());
    held.go_on.send(()).unwrap();
    assert!(first.await.is_ok());
    assert_eq!(second.await.unwrap_err().kind(), StoreErrorKind::Full);
    assert!(third.await.is_err());
}

/// Renewals and ends of leases do not wait behind large payloads, and large payloads do not wait forever.
#[tokio::test]
async fn light_operations_overtake_heavy_ones() {
    let (_folder, store) = store(&Arc::new(ManualClock::new())).await;
    let (held, first) = HeldOperation::new(mark);
    let mut first = pin!(write(&store, first));
    assert!(first.as_mut().now_or_never().is_none());
    held.running.recv().unwrap();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let request = |name: &'static str, weight| {
        let order = Arc::clone(&order);
        store.write(Operation::PutBlob, &"", weight, move |_, _| {
            order.lock().unwrap().push(name);
            Ok(())
        })
    };
    let mut heavy = pin!(request("heavy", 40 << 20));
    assert!(heavy.as_mut().now_or_never().is_none());
    let mut light = pin!(request("light", 100));
    assert!(light.as_mut().now_or_never().is_none());
    held.go_on.send(()).unwrap();
    let (first, heavy, light) = tokio::join!(first, heavy, light);
    first.and(heavy).and(light).unwrap();
    assert_eq!(*order.lock().unwrap(), ["light", "heavy"]);
}

/// An operation that waits for the lock until it may stop; it stands for many successive operations.
#[derive(Default)]
struct WaitingOperation {
    weight: usize,
    was_free: Arc<AtomicBool>,
    tries: u32,
    may_stop: Arc<AtomicBool>,
    has_failed: Arc<AtomicBool>,
}

impl Work for WaitingOperation {
    fn apply(&mut self, _: &mut Batch<'_>) -> rusqlite::Result<()> {
        Ok(())
    }

    fn is_unmet(&self) -> bool {
        false
    }

    fn adds(&self) -> bool {
        false
    }

    fn answer(self: Box<Self>) {}

    fn fail(self: Box<Self>, _: &Cause) {
        self.has_failed.store(true, Ordering::SeqCst);
    }

    fn kept_waiting(&mut self, _: Instant) -> Duration {
        self.tries += 1;
        let stops = self.tries > 1_000 || self.may_stop.load(Ordering::SeqCst);
        if stops { Duration::MAX } else { Duration::ZERO }
    }

    fn lock_was_free(&mut self) {
        self.was_free.store(true, Ordering::SeqCst);
    }

    fn weight(&self) -> usize {
        self.weight
    }

    fn is_abandoned(&self) -> bool {
        false
    }
}

/// A large payload waits for the lock no longer than other operations, although some of these are always
/// before it.
#[tokio::test]
async fn heavy_operation_fails_in_time_while_light_ones_wait_for_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jobs.db");
    let busy_timeout = Duration::from_millis(1);
    let store = Store::open(Options::new(&file).busy_timeout(busy_timeout)).await.unwrap();
    let other = Connection::open(&file).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (may_stop, has_failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let light = WaitingOperation {
        may_stop: Arc::clone(&may_stop),
        has_failed: Arc::clone(&has_failed),
        ..WaitingOperation::default()
    };
    assert!(store.request(Box::new(light)));
    let heavy = store.write(Operation::PutBlob, &"", 40 << 20, |_, _| Ok(())).await;
    let refused = heavy.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Timeout);
    assert!(refused.to_string().contains("by `in_sqlite`"), "{refused}");
    assert!(!has_failed.load(Ordering::SeqCst), "the light one was first");
    may_stop.store(true, Ordering::SeqCst);
}

/// A large payload that missed the lock once, and again later, did not miss it in between.
#[tokio::test]
async fn heavy_operation_begins_to_wait_anew_after_a_transaction() {
    let (_folder, store) = store(&Arc::new(ManualClock::new())).await;
    let (held, first) = HeldOperation::new(mark);
    let mut first = pin!(write(&store, first));
    assert!(first.as_mut().now_or_never().is_none());
    held.running.recv().unwrap();
    let was_free = Arc::new(AtomicBool::new(false));
    let heavy =
        WaitingOperation { weight: 40 << 20, was_free: Arc::clone(&was_free), ..WaitingOperation::default() };
    assert!(store.request(Box::new(heavy)));
    held.go_on.send(()).unwrap();
    first.await.unwrap();
    assert!(was_free.load(Ordering::SeqCst));
}

/// A put, or the end of a job that blocked its group, serves a get that found nothing in the same
/// transaction.
#[tokio::test]
async fn empty_get_is_served_by_its_own_transaction() {
    let (_folder, store) = store(&Arc::new(ManualClock::new())).await;
    let queue: QueueName = "steps".parse().unwrap();
    store.create_queue(&queue, &Metadata::new()).await.unwrap();
    let of_group = |text: &str| PutMessage::new(text).with_group("a".to_owned());
    let get = || store.get(&queue, GetMessages::new(1, Duration::from_secs(30)));
    let mut served = Vec::new();
    for next in ["1", "2"] {
        let (held, first) = HeldOperation::new(mark);
        let mut first = pin!(write(&store, first));
        assert!(first.as_mut().now_or_never().is_none());
        held.running.recv().unwrap();
        let mut empty = get();
        assert!(empty.as_mut().now_or_never().is_none());
        let last: Option<MessageRef> = served.pop();
        let change = async {
            let Some(last) = last else { return store.put(&queue, of_group(next)).await.map(drop) };
            store.delete(&queue, &last, ExpiredReceipt::Refuse).await
        };
        let mut change = pin!(change);
        assert!(change.as_mut().now_or_never().is_none());
        held.go_on.send(()).unwrap();
        change.await.unwrap();
        let leased = empty.await.unwrap().messages.pop().unwrap_or_else(|| panic!("{next} was not leased"));
        assert_eq!(leased.text.as_deref(), Ok(next));
        served.push(leased.message);
        if next == "1" {
            store.put(&queue, of_group("2")).await.unwrap();
        }
        first.await.unwrap();
    }
}

/// Runs an action on the thread that wakes, before that thread continues.
struct OnWake(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Wake for OnWake {
    fn wake(self: Arc<Self>) {
        if let Some(action) = self.0.lock().unwrap().take() {
            action();
        }
    }
}

/// A waiting subscription is woken while the transaction of the message is open, so that one commit serves
/// the send and the get.
#[tokio::test]
async fn request_of_a_woken_waiter_joins_the_transaction_of_the_message() {
    let (_folder, store) = store(&Arc::new(ManualClock::new())).await;
    let store = Arc::new(store);
    let queue: QueueName = "orders".parse().unwrap();
    store.create_queue(&queue, &Metadata::new()).await.unwrap();
    let mut subscription = store.subscription(&queue);
    let (requests, requested) = channel();
    let of_waiter = Arc::clone(&store);
    let request = move || {
        let mut joined = Box::pin(async move { write(&of_waiter, find_mark).await });
        assert!(joined.as_mut().now_or_never().is_none());
        requests.send(joined).unwrap();
    };
    let waker = Waker::from(Arc::new(OnWake(Mutex::new(Some(Box::new(request))))));
    let mut wait = pin!(subscription.wait());
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let name = queue.clone();
    let arrival = write(&store, move |batch| {
        let now = mark(batch)?;
        batch.arrive(&name, now)?;
        Ok(())
    });
    arrival.await.unwrap();
    let joined = requested.try_recv().expect("the waiter is woken before the commit");
    joined.await.unwrap();
}

/// A count of a long queue and a read of a payload do not wait for each other.
#[tokio::test]
async fn counts_and_pages_have_a_reader_of_their_own() {
    let (_folder, store) = store(&Arc::new(ManualClock::new())).await;
    let queue: QueueName = "orders".parse().unwrap();
    store.create_queue(&queue, &Metadata::new()).await.unwrap();
    let ((runs, running), (go_on, may_go_on)) = (channel(), channel::<()>());
    let held = store.read(Operation::GetBlob, &"", move |_, _| {
        runs.send(()).unwrap();
        may_go_on.recv().unwrap();
        Ok(())
    });
    let mut held = pin!(held);
    assert!(held.as_mut().now_or_never().is_none());
    running.recv().unwrap();
    let reads = async {
        store.counts_by_state(&queue).await.unwrap();
        store.queue_properties(&queue).await.unwrap();
        store.messages(&queue, MessageState::Delayed, None, 10).await.unwrap();
        store.search(&JournalQuery::default()).await.unwrap();
    };
    let done = tokio::time::timeout(Duration::from_secs(20), reads).await;
    go_on.send(()).unwrap();
    held.await.unwrap();
    done.expect("a count waited for a blob");
}
