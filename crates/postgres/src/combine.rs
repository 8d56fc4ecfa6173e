//! Joins operations of one kind that are requested at about the same time into one statement, so that they share a round trip and a commit.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::database::Call;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::sync::lock;
use jobqueue_storage::{QueueName, StoreError, StoreErrorKind};

/// The number of statements of one kind and queue that run at once: the second is on its way while the first waits for the disk.
const AT_ONCE: usize = 2;
/// The greatest number of operations in a statement, and of their bytes.
const MOST: usize = 500;
const MOST_BYTES: usize = 1 << 20;

/// The operations of one kind that wait, by queue.
pub(crate) struct Combiner<T, A> {
    runtime: Runtime,
    /// Returns the approximate number of bytes that an operation sends.
    weigh: fn(&T) -> usize,
    lanes: Mutex<HashMap<QueueName, Lane<T, A>>>,
}

struct Lane<T, A> {
    waiting: VecDeque<Waiting<T, A>>,
    running: usize,
}

struct Waiting<T, A> {
    item: T,
    bytes: usize,
    reply: oneshot::Sender<Result<A, StoreError>>,
}

impl<T: Send + 'static, A: Send + 'static> Combiner<T, A> {
    pub(crate) fn new(runtime: Runtime, weigh: fn(&T) -> usize) -> Arc<Self> {
        Arc::new(Self { runtime, weigh, lanes: Mutex::default() })
    }

    /// Runs an operation together with others. `run` returns an answer for each of a list, in their order; it goes on if this future is
    /// dropped, since it has the operations of others too.
    pub(crate) async fn submit<F>(
        self: &Arc<Self>,
        call: Call<'_>,
        queue: &QueueName,
        item: T,
        run: impl Fn(QueueName, Vec<T>) -> F + Send + 'static,
    ) -> Result<A, StoreError>
    where
        F: Future<Output = Vec<Result<A, StoreError>>> + Send + 'static,
    {
        let (bytes, (reply, answer)) = ((self.weigh)(&item), oneshot::channel());
        let starts = self.add(queue, Waiting { item, bytes, reply });
        if starts {
            let (combiner, queue) = (Arc::clone(self), queue.clone());
            let mut running = Running { combiner, queue, has_ended: false };
            self.runtime.spawn(async move {
                while let Some((items, replies)) = running.next() {
                    let answers = run(running.queue.clone(), items).await;
                    for (reply, answer) in replies.into_iter().zip(answers) {
                        // The caller may have given up.
                        let _ = reply.send(answer);
                    }
                }
            });
        }
        answer.await.unwrap_or_else(|_| {
            Err(call
                .refuse(StoreErrorKind::Stopped)
                .with_detail("the runtime has ended")
                .with_ambiguous(true))
        })
    }

    /// Adds an operation to those that wait. Returns whether the caller starts a task for them.
    fn add(&self, queue: &QueueName, waiting: Waiting<T, A>) -> bool {
        let mut lanes = lock(&self.lanes);
        let lane = lanes.entry(queue.clone());
        let lane = lane.or_insert_with(|| Lane { waiting: VecDeque::new(), running: 0 });
        lane.waiting.push_back(waiting);
        let starts = lane.running < AT_ONCE;
        lane.running += usize::from(starts);
        starts
    }
}

impl<T, A> fmt::Debug for Combiner<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Combiner")
    }
}

/// A task that runs the operations of a queue. If it ends early, with its runtime, the callers get an error.
struct Running<T, A> {
    combiner: Arc<Combiner<T, A>>,
    queue: QueueName,
    has_ended: bool,
}

/// The operations of a statement, and the ways to their callers.
type Batch<T, A> = (Vec<T>, Vec<oneshot::Sender<Result<A, StoreError>>>);

impl<T, A> Running<T, A> {
    /// Takes the operations of the next statement; `None` if there are none, and then the task has ended: later ones start another.
    fn next(&mut self) -> Option<Batch<T, A>> {
        let mut lanes = lock(&self.combiner.lanes);
        let waiting = &mut lanes.get_mut(&self.queue)?.waiting;
        let mut sum = 0;
        let fits = |next: &&Waiting<T, A>| {
            sum += next.bytes;
            sum <= MOST_BYTES
        };
        let count = waiting.iter().take(MOST).take_while(fits).count().max(1).min(waiting.len());
        if count == 0 {
            self.has_ended = true;
            end(&mut lanes, &self.queue);
            return None;
        }
        Some(waiting.drain(..count).map(|one| (one.item, one.reply)).unzip())
    }
}

impl<T, A> Drop for Running<T, A> {
    fn drop(&mut self) {
        if !self.has_ended {
            end(&mut lock(&self.combiner.lanes), &self.queue);
        }
    }
}

/// Counts a task that has ended. With the last one, the operations that still wait get an error: their runtime has ended.
fn end<T, A>(lanes: &mut HashMap<QueueName, Lane<T, A>>, queue: &QueueName) {
    let Some(lane) = lanes.get_mut(queue) else { return };
    lane.running = lane.running.saturating_sub(1);
    if lane.running == 0 {
        lanes.remove(queue);
    }
}
