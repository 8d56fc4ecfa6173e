//! Combines operations of a kind that are requested at about the same time into a statement, so that they
//! share a round trip and a commit.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::database::Call;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::sync::lock;
use jobqueue_storage::{StoreError, StoreErrorKind};

/// The number of statements of a lane that run at once: the second is sent while the first waits for the
/// disk.
const CONCURRENT_STATEMENTS: usize = 2;
/// The maximum number of operations in a statement, and of their bytes.
const MAX_OPERATIONS: usize = 500;
const MAX_STATEMENT_BYTES: usize = 1 << 20;

/// The waiting operations of a kind, in lanes. The operations of a lane share statements.
pub(crate) struct Combiner<K, T, A> {
    runtime: Runtime,
    /// The approximate number of bytes that an operation sends.
    weigh: fn(&T) -> usize,
    lanes: Mutex<HashMap<K, Lane<T, A>>>,
    /// The number of the next operation of any lane. It is not kept in a lane, because lanes are removed and
    /// created again, and a number must not be used twice.
    next: AtomicU64,
}

struct Lane<T, A> {
    waiting: VecDeque<WaitingOperation<T, A>>,
    running: usize,
}

struct WaitingOperation<T, A> {
    number: u64,
    item: T,
    bytes: usize,
    reply: oneshot::Sender<Result<A, StoreError>>,
}

impl<K, T, A> Combiner<K, T, A>
where
    K: Clone + Eq + Hash + Send + 'static,
    T: Send + 'static,
    A: Send + 'static,
{
    pub(crate) fn new(runtime: Runtime, weigh: fn(&T) -> usize) -> Arc<Self> {
        Arc::new(Self { runtime, weigh, lanes: Mutex::default(), next: AtomicU64::default() })
    }

    /// Runs an operation together with others. `run` returns the answers to a list of operations, in their
    /// order. It continues if this future is dropped, because it also runs the operations of other callers.
    /// An operation that still waits for its statement is not run if its future is dropped, nor after `end`.
    /// With `permits`, each statement of the lane needs a permit, and the statements run one after the other.
    #[allow(clippy::too_many_arguments, reason = "the operation, its limits, and how it is run")]
    pub(crate) async fn submit<F>(
        self: &Arc<Self>,
        call: Call<'_>,
        name: &K,
        item: T,
        end: Instant,
        permits: Option<Arc<Semaphore>>,
        run: impl Fn(Vec<T>) -> F + Send + 'static,
    ) -> Result<A, StoreError>
    where
        F: Future<Output = Vec<Result<A, StoreError>>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let at_once = if permits.is_some() { 1 } else { CONCURRENT_STATEMENTS };
        let (number, starts) = self.add(name, item, reply, at_once);
        if starts {
            let mut running = LaneTask { combiner: Arc::clone(self), lane: name.clone(), has_ended: false };
            self.runtime.spawn(async move {
                loop {
                    // Operations are taken only after the wait, so that an operation given up during it is
                    // not run.
                    let _permit = match &permits {
                        Some(permits) => permits.acquire().await.ok(),
                        None => None,
                    };
                    let Some((items, replies)) = running.next() else { return };
                    let answers = run(items).await;
                    for (reply, answer) in replies.into_iter().zip(answers) {
                        // Ignores an error: the caller may have given up.
                        let _ = reply.send(answer);
                    }
                }
            });
        }
        let mut answer = answer;
        let answer = match timeout_at(end, &mut answer).await {
            Err(_) if self.cancel(name, number) => {
                let detail =
                    "operations before it, or an open transaction that holds up its group, took all the time";
                return Err(call.refuse(StoreErrorKind::Timeout).with_detail(detail));
            }
            // Its statement is running, and has its own time limit.
            Err(_) => answer.await,
            Ok(answer) => answer,
        };
        answer.unwrap_or_else(|_| Err(runtime_ended(call)))
    }

    /// Adds an operation to its lane. Returns its number, and whether the caller must start a task for the
    /// lane.
    fn add(
        &self,
        name: &K,
        item: T,
        reply: oneshot::Sender<Result<A, StoreError>>,
        at_once: usize,
    ) -> (u64, bool) {
        let (number, bytes) = (self.next.fetch_add(1, Ordering::Relaxed), (self.weigh)(&item));
        let mut lanes = lock(&self.lanes);
        let lane = lanes.entry(name.clone());
        let lane = lane.or_insert_with(|| Lane { waiting: VecDeque::new(), running: 0 });
        lane.waiting.push_back(WaitingOperation { number, item, bytes, reply });
        let starts = lane.running < at_once;
        lane.running += usize::from(starts);
        (number, starts)
    }

    /// Removes a waiting operation. Returns false if it no longer waits.
    fn cancel(&self, name: &K, number: u64) -> bool {
        let mut lanes = lock(&self.lanes);
        let Some(lane) = lanes.get_mut(name) else { return false };
        let place = lane.waiting.iter().position(|waiting| waiting.number == number);
        place.is_some_and(|place| lane.waiting.remove(place).is_some())
    }
}

/// Returns the error of a change whose task ended with its runtime.
pub(crate) fn runtime_ended(call: Call<'_>) -> StoreError {
    call.refuse(StoreErrorKind::Stopped).with_detail("the runtime has ended").with_ambiguous(true)
}

jobqueue_storage::debug_fields! {
    Combiner<K, T, A> {}
}

/// A task that runs the operations of a lane. If it ends early, with its runtime, the callers get an error.
struct LaneTask<K: Eq + Hash, T, A> {
    combiner: Arc<Combiner<K, T, A>>,
    lane: K,
    has_ended: bool,
}

/// The operations of a statement, and the channels to their callers.
type Batch<T, A> = (Vec<T>, Vec<oneshot::Sender<Result<A, StoreError>>>);

impl<K: Eq + Hash, T, A> LaneTask<K, T, A> {
    /// Takes the operations of the next statement. Returns `None` if there are none. Then the task ends, and
    /// a later operation starts a new one.
    fn next(&mut self) -> Option<Batch<T, A>> {
        let mut lanes = lock(&self.combiner.lanes);
        let waiting = &mut lanes.get_mut(&self.lane)?.waiting;
        // Drops operations whose callers have given up.
        waiting.retain(|one| !one.reply.is_closed());
        let mut sum = 0;
        let fits = |next: &&WaitingOperation<T, A>| {
            sum += next.bytes;
            sum <= MAX_STATEMENT_BYTES
        };
        let count = waiting.iter().take(MAX_OPERATIONS).take_while(fits).count().max(1).min(waiting.len());
        if count == 0 {
            self.has_ended = true;
            end(&mut lanes, &self.lane);
            return None;
        }
        Some(waiting.drain(..count).map(|one| (one.item, one.reply)).unzip())
    }
}

impl<K: Eq + Hash, T, A> Drop for LaneTask<K, T, A> {
    fn drop(&mut self) {
        if !self.has_ended {
            end(&mut lock(&self.combiner.lanes), &self.lane);
        }
    }
}

/// Counts the end of a task. With the last task of a lane, the operations that still wait get an error,
/// because their runtime has ended.
fn end<K: Eq + Hash, T, A>(lanes: &mut HashMap<K, Lane<T, A>>, name: &K) {
    let Some(lane) = lanes.get_mut(name) else { return };
    lane.running = lane.running.saturating_sub(1);
    if lane.running == 0 {
        lanes.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobqueue_storage::Operation;
    use std::time::Duration;
    use tokio::sync::Notify;

    const LIMIT: Duration = Duration::from_secs(30);

    /// The statements that a combiner has started. Each waits until it may pass.
    #[derive(Default)]
    struct Statements {
        run: Mutex<Vec<Vec<u32>>>,
        pass: Notify,
        permits: Option<Arc<Semaphore>>,
    }

    /// Submits an operation, whose statement runs until it may pass.
    fn submit(
        combiner: &Arc<Combiner<(), u32, u32>>,
        statements: &Arc<Statements>,
        item: u32,
    ) -> tokio::task::JoinHandle<Result<u32, StoreError>> {
        let (combiner, statements) = (Arc::clone(combiner), Arc::clone(statements));
        tokio::spawn(async move {
            let (end, permits) = (Instant::now() + LIMIT, statements.permits.clone());
            let run = move |items: Vec<u32>| {
                let statements = Arc::clone(&statements);
                async move {
                    lock(&statements.run).push(items.clone());
                    statements.pass.notified().await;
                    items.into_iter().map(Ok).collect()
                }
            };
            combiner.submit(Call::new(Operation::Put, &"jobs"), &(), item, end, permits, run).await
        })
    }

    async fn settle() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn operation_without_a_caller_is_not_run() {
        let (combiner, statements) = (Combiner::new(Runtime::new(), |_| 1), Arc::default());
        let mut requested = Vec::new();
        for item in 1..=4 {
            requested.push(submit(&combiner, &statements, item));
            settle().await;
        }
        requested.remove(2).abort();
        settle().await;
        statements.pass.notify_one();
        settle().await;
        assert_eq!(*lock(&statements.run), [vec![1], vec![2], vec![4]]);
    }

    #[tokio::test(start_paused = true)]
    async fn operation_that_waits_too_long_is_certainly_not_run() {
        let (combiner, statements) = (Combiner::new(Runtime::new(), |_| 1), Arc::default());
        let mut under_way = Vec::new();
        for item in 1..=2 {
            under_way.push(submit(&combiner, &statements, item));
            settle().await;
        }
        let error = submit(&combiner, &statements, 3).await.expect("no panic").expect_err("a limit");
        assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Timeout, false), "{error}");
        statements.pass.notify_one();
        settle().await;
        assert_eq!(*lock(&statements.run), [vec![1], vec![2]]);
    }

    /// The answer may come just when the time is over. Then the lane has ended.
    #[tokio::test]
    async fn operation_that_is_over_takes_no_later_one_out() {
        let combiner = Combiner::<(), u32, u32>::new(Runtime::new(), |_| 1);
        let (reply, _answer) = oneshot::channel();
        let (number, _) = combiner.add(&(), 1, reply, 1);
        let mut running = LaneTask { combiner: Arc::clone(&combiner), lane: (), has_ended: false };
        assert_eq!(running.next().expect("an operation").0, [1]);
        assert!(running.next().is_none());
        let (reply, _answer) = oneshot::channel();
        combiner.add(&(), 2, reply, 1);
        assert!(!combiner.cancel(&(), number));
        let mut running = LaneTask { combiner, lane: (), has_ended: false };
        assert_eq!(running.next().expect("the later operation").0, [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn operation_that_is_given_up_before_there_is_a_permit_is_not_run() {
        let permits = Arc::new(Semaphore::new(0));
        let statements =
            Arc::new(Statements { permits: Some(Arc::clone(&permits)), ..Statements::default() });
        let combiner = Combiner::new(Runtime::new(), |_| 1);
        let dropped = submit(&combiner, &statements, 1);
        settle().await;
        dropped.abort();
        let error = submit(&combiner, &statements, 2).await.expect("no panic").expect_err("a limit");
        assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Timeout, false), "{error}");
        let last = submit(&combiner, &statements, 3);
        settle().await;
        permits.add_permits(1);
        statements.pass.notify_one();
        assert_eq!(last.await.expect("no panic").expect("a permit"), 3);
        assert_eq!(*lock(&statements.run), [vec![3]]);
    }
}
