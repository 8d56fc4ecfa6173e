//! The plan of faults, the record of calls, and the effect of a fault on a call.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jobqueue::storage::{Operation, StoreError, StoreErrorKind};
use jobqueue_storage::sync::lock;
use tokio::time::Instant;

use super::azure_like::Doubt;
use super::still::StillClock;

/// The effect of a fault on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The call is performed, and its answer is replaced by an ambiguous error of this kind.
    DropAnswer(StoreErrorKind),
    /// The call is not performed; it returns an error of this kind that is not ambiguous.
    Refuse(StoreErrorKind),
    /// The call is not performed; it returns an ambiguous error of this kind, as when a request is lost.
    LoseRequest(StoreErrorKind),
    /// The storage asks the caller to slow down for this time. A wrapper that behaves like Azure may still
    /// perform a throttled change, without saying so ([`ThrottleInDoubt`](Self::ThrottleInDoubt)). A quiet
    /// wrapper never performs the call.
    Throttle(Duration),
    /// The storage asks the caller to slow down, without saying whether the call was performed.
    ThrottleInDoubt {
        /// The pause that the storage asks for.
        retry_after: Duration,
        /// True if the call is performed.
        applied: bool,
    },
    /// The call is performed after this time.
    DelayBefore(Duration),
    /// The call is performed, and answered after this time.
    DelayAfter(Duration),
    /// The call is not performed and never answered.
    Hang,
    /// The call is performed and never answered.
    HangAfter,
}

/// A call of an operation.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Call {
    /// The operation.
    pub operation: Operation,
    /// The queue, container or blob.
    pub subject: String,
    /// The time of the call, by tokio's clock.
    pub at: Instant,
    /// The number of this call among the calls of its operation, from 1.
    pub nth: u64,
}

pub(super) type Hook = Arc<Mutex<dyn FnMut(&Call) -> Option<Fault> + Send>>;
/// Returns the faults of a call for which nothing is planned.
pub(super) type Behaviour = Arc<dyn Fn(&Call) -> Vec<Fault> + Send + Sync>;

#[derive(Default)]
pub(super) struct Plan {
    script: Mutex<Script>,
    still: Option<Arc<StillClock>>,
    doubt: Option<Mutex<Doubt>>,
}

#[derive(Default)]
pub(super) struct Script {
    pub(super) calls: Vec<Call>,
    pub(super) counts: HashMap<Operation, u64>,
    pub(super) faults: HashMap<(Operation, u64), VecDeque<Fault>>,
    pub(super) always: HashMap<Operation, Fault>,
    pub(super) hooks: HashMap<Operation, Vec<Hook>>,
    pub(super) behaviour: Option<Behaviour>,
}

impl Plan {
    /// Returns a plan under which no virtual time passes during a call.
    pub(super) fn still(clock: Arc<StillClock>) -> Self {
        Self { still: Some(clock), ..Self::default() }
    }

    /// Returns a plan whose throttled changes are in doubt.
    pub(super) fn in_doubt(doubt: Doubt) -> Self {
        Self { doubt: Some(Mutex::new(doubt)), ..Self::default() }
    }

    async fn call<T>(&self, perform: impl Future<Output = T> + Send) -> T {
        match &self.still {
            Some(clock) => clock.answer(perform),
            None => perform.await,
        }
    }

    /// Records a call and returns the faults that apply to it.
    fn enter(&self, operation: Operation, subject: String) -> Vec<Fault> {
        let mut script = self.lock();
        let count = script.counts.entry(operation).or_default();
        *count += 1;
        let call = Call { operation, subject, at: Instant::now(), nth: *count };
        script.calls.push(call.clone());
        let hooks = script.hooks.get(&operation).cloned().unwrap_or_default();
        let behaviour = script.behaviour.clone();
        // A hook may use the plan, so the plan must not be locked while it runs.
        drop(script);
        let mut faults: Vec<_> = hooks.iter().filter_map(|hook| lock(hook)(&call)).collect();
        let mut script = self.lock();
        faults.extend(script.faults.remove(&(operation, call.nth)).unwrap_or_default());
        if faults.is_empty() {
            faults.extend(script.always.get(&operation));
        }
        drop(script);
        let mut applied = behaviour.map(|behaviour| behaviour(&call)).unwrap_or_default();
        if !faults.is_empty() {
            // Keeps the usual delay before the call, but not the delay after it.
            applied.retain(|fault| matches!(fault, Fault::DelayBefore(_)));
        }
        applied.extend(faults.into_iter().map(|fault| self.doubted(operation, fault)));
        applied
    }

    fn doubted(&self, operation: Operation, fault: Fault) -> Fault {
        self.doubt.as_ref().map_or(fault, |doubt| lock(doubt).of(operation, fault))
    }

    /// Performs a call with a single answer under the plan.
    pub(super) async fn run<T>(
        &self,
        operation: Operation,
        subject: &(dyn fmt::Display + Sync),
        perform: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let faults = self.enter(operation, subject.to_string());
        let error = |kind| StoreError::new(kind, operation.as_str(), subject).with_detail("planned fault");
        before(&faults, error).await?;
        let answer = self.call(perform).await;
        after(&faults, error).await?;
        answer
    }

    /// Performs a call with `count` answers under the plan. A fault applies to all answers.
    pub(super) async fn run_all<T>(
        &self,
        operation: Operation,
        subject: &(dyn fmt::Display + Sync),
        count: usize,
        perform: impl Future<Output = Vec<Result<T, StoreError>>> + Send,
    ) -> Vec<Result<T, StoreError>> {
        let faults = self.enter(operation, subject.to_string());
        let error = |kind| StoreError::new(kind, operation.as_str(), subject).with_detail("planned fault");
        let for_each = |error_of_all: StoreError| {
            let (kind, ambiguous) = (error_of_all.kind(), error_of_all.is_ambiguous());
            let wait = error_of_all.retry_after();
            (0..count).map(|_| Err(error(kind).with_ambiguous(ambiguous).with_retry_after(wait))).collect()
        };
        if let Err(refused) = before(&faults, error).await {
            return for_each(refused);
        }
        let answers = self.call(perform).await;
        match after(&faults, error).await {
            Ok(()) => answers,
            Err(lost) => for_each(lost),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Script> {
        lock(&self.script)
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let script = self.lock();
        f.debug_struct("Plan")
            .field("calls", &script.calls.len())
            .field("faults", &script.faults)
            .field("always", &script.always)
            .finish_non_exhaustive()
    }
}

/// Applies the faults that take effect before the call is performed.
async fn before(faults: &[Fault], error: impl Fn(StoreErrorKind) -> StoreError) -> Result<(), StoreError> {
    for fault in faults {
        match *fault {
            Fault::Refuse(kind) => return Err(error(kind)),
            Fault::Throttle(wait) => {
                return Err(error(StoreErrorKind::Throttled).with_retry_after(Some(wait)));
            }
            Fault::LoseRequest(kind) => return Err(error(kind).with_ambiguous(true)),
            Fault::ThrottleInDoubt { retry_after, applied: false } => {
                return Err(throttled_in_doubt(error, retry_after));
            }
            Fault::DelayBefore(wait) => tokio::time::sleep(wait).await,
            Fault::Hang => std::future::pending().await,
            Fault::DropAnswer(_)
            | Fault::ThrottleInDoubt { .. }
            | Fault::DelayAfter(_)
            | Fault::HangAfter => {}
        }
    }
    Ok(())
}

/// Applies the faults that take effect after the call was performed.
async fn after(faults: &[Fault], error: impl Fn(StoreErrorKind) -> StoreError) -> Result<(), StoreError> {
    for fault in faults {
        match *fault {
            Fault::DropAnswer(kind) => return Err(error(kind).with_ambiguous(true)),
            Fault::ThrottleInDoubt { retry_after, .. } => return Err(throttled_in_doubt(error, retry_after)),
            Fault::DelayAfter(wait) => tokio::time::sleep(wait).await,
            Fault::HangAfter => std::future::pending().await,
            Fault::Refuse(_)
            | Fault::Throttle(_)
            | Fault::LoseRequest(_)
            | Fault::DelayBefore(_)
            | Fault::Hang => {}
        }
    }
    Ok(())
}

fn throttled_in_doubt(error: impl Fn(StoreErrorKind) -> StoreError, retry_after: Duration) -> StoreError {
    error(StoreErrorKind::Throttled).with_ambiguous(true).with_retry_after(Some(retry_after))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use jobqueue::memory;

    use super::super::Faulty;
    use super::*;

    #[test]
    fn hook_applies_to_a_call_that_begins_while_it_handles_another() {
        let faulty = Faulty::quiet(&memory::open());
        let (asked, (go, wait)) = (Arc::new(AtomicU32::new(0)), mpsc::channel());
        let count = Arc::clone(&asked);
        faulty.on(Operation::Put, move |_| {
            if count.fetch_add(1, Ordering::SeqCst) == 0 {
                wait.recv().unwrap();
            }
            None
        });
        let enter = || drop(faulty.plan.enter(Operation::Put, "jobs".to_owned()));
        thread::scope(|threads| {
            threads.spawn(enter);
            while asked.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            threads.spawn(enter);
            while faulty.calls_of(Operation::Put) < 2 {
                thread::yield_now();
            }
            go.send(()).unwrap();
        });
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }
}
