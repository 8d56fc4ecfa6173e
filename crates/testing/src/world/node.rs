//! A simulated process: its tasks, its storage handles, its clock.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use jobqueue::clock::Clock;
use jobqueue::sharded::Sharded;
use jobqueue::storage::{Operation, Storage};
use jobqueue::{Error, Queue, QueueMessage, SendOptions, Sent};
use jobqueue_storage::sync::lock;
use tokio::task::JoinHandle;

use super::disturbance::Disturbance;
use super::ledger::{Fact, Verdict, subject};
use super::shared::{Shared, World};
use super::weather::{AccountView, BreakEffect, BreakPoint, PlannedBreak};
use super::witness::Witness;
use crate::simulation::Process;

/// A simulated process of a world. Cheap to clone; all clones are the same process.
#[derive(Debug, Clone)]
pub struct Node {
    name: Arc<str>,
    shared: Arc<Shared>,
    process: Process,
    storage: Storage,
    clock: Arc<SkewedClock>,
    breaks: PlannedBreak,
}

impl Node {
    pub(super) fn start(shared: &Arc<Shared>, name: Arc<str>) -> Self {
        let (process, breaks) = (Process::default(), PlannedBreak::default());
        shared.register(&process, &name, &breaks);
        let clock = Arc::new(SkewedClock { true_clock: Arc::clone(&shared.clock), ahead: AtomicI64::new(0) });
        let view = |(account, storage): (usize, &Storage)| {
            let breaks = Arc::clone(&breaks);
            let (own, node) = (Arc::clone(shared), Arc::clone(&name));
            let view = AccountView { shared: own, node, process: process.clone(), account, breaks };
            Witness::of(&view.of(storage), shared, &name, account)
        };
        let runtime = shared.runtime.clone().with_clock(Arc::clone(&clock) as Arc<dyn Clock>);
        let runtime = runtime.with_task_gate(Arc::new(process.clone()));
        let accounts = shared.accounts_for(&name, &process, &runtime);
        let accounts = accounts.into_iter().map(|storage| storage.with_runtime(runtime.clone()));
        let accounts: Vec<Storage> = accounts.collect::<Vec<_>>().iter().enumerate().map(view).collect();
        let storage = spread(accounts, shared.shards);
        Self { name, shared: Arc::clone(shared), process, storage, clock, breaks }
    }

    /// Returns the name of the process.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the world of the process.
    pub fn world(&self) -> World {
        World { shared: Arc::clone(&self.shared) }
    }

    /// Returns the handle to freeze or kill the process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Returns the storage as this process sees it, with latency and faults.
    pub fn storage(&self) -> Storage {
        self.storage.clone()
    }

    /// Sets the clock of the process `millis` ahead of the true time, or behind it if negative.
    pub fn skew(&self, millis: i64) {
        self.clock.ahead.store(millis, Ordering::Relaxed);
    }

    /// Kills the process at a storage call, after `calls` more calls. `applied` says whether the storage
    /// performs that call.
    pub fn kill_at_call(&self, calls: u64, applied: bool) {
        self.break_at(None, calls, applied, BreakEffect::Dies);
    }

    /// Kills the process at its next call of an operation. `applied` says whether the storage performs the
    /// call.
    pub fn kill_at(&self, operation: Operation, applied: bool) {
        self.break_at(Some(operation), 0, applied, BreakEffect::Dies);
    }

    /// Freezes the process for `time` right after its next call of an operation, whose answer is lost. If the
    /// call is a get, its answer arrives after the freeze. `applied` says whether the storage performs the
    /// call.
    pub fn freeze_at(&self, operation: Operation, time: Duration, applied: bool) {
        self.break_at(Some(operation), 0, applied, BreakEffect::Freezes(time));
    }

    /// Loses the answer to the next call of an operation. The process waits `wait` for it. `applied` says
    /// whether the storage performs the call.
    pub fn lose_answer(&self, operation: Operation, wait: Duration, applied: bool) {
        self.break_at(Some(operation), 0, applied, BreakEffect::Waits(wait));
    }

    fn break_at(&self, operation: Option<Operation>, calls: u64, applied: bool, effect: BreakEffect) {
        let former = lock(&self.breaks).replace(BreakPoint { operation, calls, applied, effect });
        if let Some(former) = former {
            self.shared.note_unreached_break(&self.name, former);
        }
    }

    /// Kills the process.
    pub fn kill(&self) {
        self.process.kill();
        self.shared.ledger.note(&self.name, Fact::Incident(Disturbance::Killed));
    }

    /// Freezes the process for `time`.
    pub fn freeze(&self, time: Duration) {
        self.process.stop();
        self.shared.ledger.note(&self.name, Fact::Incident(Disturbance::Frozen { time }));
        let node = self.clone();
        drop(tokio::spawn(async move {
            tokio::time::sleep(time).await;
            node.process.resume();
            node.shared.ledger.note(&node.name, Fact::Incident(Disturbance::Continues));
        }));
    }

    /// Spawns a task in this process.
    pub fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.storage.runtime().spawn(future)
    }

    /// Opens the queue of `M` like [`Storage::queue`], and retries for a minute while the storage fails.
    ///
    /// # Errors
    /// As for [`Storage::queue`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may have been created. Nothing else has changed.
    pub async fn queue<M: QueueMessage>(&self) -> Result<Queue<M>, Error> {
        let mut tries = 0;
        loop {
            match self.storage.queue().await {
                Err(_) if tries < 60 => tries += 1,
                opened => return opened,
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Sends a message under a random id and records the answer.
    ///
    /// # Errors
    /// As for [`Queue::send`].
    ///
    /// # Cancel safety
    /// As for [`Queue::send`].
    pub async fn send<M: QueueMessage>(&self, queue: &Queue<M>, message: &M) -> Result<Sent, Error> {
        let id = self.storage.runtime().uuid_v4().to_string();
        self.send_with(queue, message, &id, SendOptions::new()).await
    }

    /// Sends a message under `id`, with options, and records the answer. Use it to repeat a send whose
    /// outcome is unknown.
    ///
    /// # Errors
    /// As for [`Queue::send`].
    ///
    /// # Cancel safety
    /// As for [`Queue::send`].
    pub async fn send_with<M: QueueMessage>(
        &self,
        queue: &Queue<M>,
        message: &M,
        id: &str,
        options: SendOptions,
    ) -> Result<Sent, Error> {
        let job = options.sender().map_or_else(|| id.into(), |source| subject(source, id));
        let expires = options.time_to_live().map(|ttl| self.shared.ledger.now() + ttl);
        self.send_begins(&job, queue.name().as_str());
        let sent = queue.send(message).with(options).id(id).await;
        self.note_answer(&job, verdict(&sent), expires);
        sent
    }

    /// Records the start of a send that is not made by [`send`](Self::send).
    pub fn send_begins(&self, id: &str, queue: &str) {
        self.note(id, Fact::SendBegan { queue: queue.into() });
    }

    /// Records that a dead letter is redriven.
    pub fn redriven(&self, id: &str) {
        self.note(id, Fact::Redriven);
    }

    /// Records that a job is removed on purpose, so that it may be gone without having run. Call this before
    /// the removal: the process may die before it gets the answer.
    pub fn account_for(&self, id: &str, why: &'static str) {
        self.note(id, Fact::TakenAway { why });
    }

    /// Records that a removal that was [accounted for](Self::account_for) certainly did not happen.
    pub fn kept(&self, id: &str) {
        self.note(id, Fact::Kept);
    }

    /// Records that the number of attempts of a queue is being set, so that a job may end before the last
    /// attempt of its type. Call this before the request: its answer may be lost.
    pub fn sets_threshold(&self, queue: &str, attempts: u32) {
        self.shared.ledger.note(&self.name, Fact::Threshold { queue: queue.into(), attempts });
    }

    /// Records the answer that the sender of a message received.
    pub fn note_answer(&self, id: &str, verdict: Verdict, expires: Option<Duration>) {
        self.note(id, Fact::Sent { verdict, expires });
    }

    fn note(&self, job: &str, fact: Fact) {
        self.shared.ledger.note_of(&self.name, &job.into(), fact);
    }
}

pub(super) fn verdict<T>(answer: &Result<T, Error>) -> Verdict {
    match answer {
        Ok(_) => Verdict::Acknowledged,
        Err(error) if error.is_rejected() => Verdict::Refused,
        Err(error) if error.is_outcome_unknown() => Verdict::Unknown,
        // The send was invalid, too large or in conflict, so nothing is stored.
        Err(_) => Verdict::Refused,
    }
}

pub(super) fn spread(accounts: Vec<Storage>, shards: u32) -> Storage {
    let home = accounts.first().cloned();
    if accounts.len() == 1 && shards <= 1 {
        return home.unwrap_or_else(Storage::memory);
    }
    let builder = Sharded::builder().default_shards(shards.max(1));
    let named = accounts.into_iter().enumerate().map(|(n, storage)| (format!("account{n}"), storage));
    let built = named.fold(builder, |builder, (name, storage)| builder.account(name, storage)).build();
    match (built, home) {
        (Ok(sharded), _) => Storage::from(sharded.stores()),
        (Err(_), Some(home)) => home,
        (Err(_), None) => Storage::memory(),
    }
}

/// A wall clock that may be wrong.
#[derive(Debug)]
struct SkewedClock {
    true_clock: Arc<dyn Clock>,
    /// The milliseconds by which the clock is ahead.
    ahead: AtomicI64,
}

impl Clock for SkewedClock {
    fn now(&self) -> SystemTime {
        let ahead = self.ahead.load(Ordering::Relaxed);
        let by = Duration::from_millis(ahead.unsigned_abs());
        if ahead >= 0 { self.true_clock.now() + by } else { self.true_clock.now() - by }
    }
}
