//! A per-queue single-flight cache of links and facts. Knows neither of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};

use super::error::Fault;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::sync::lock;

/// The time limit of an exchange with the service.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A value that may become invalid at any time.
pub(super) trait Expiring: Clone {
    fn is_gone(&self) -> bool;

    /// Returns whether the value may still be returned while its successor is made, although it is gone.
    fn serves_while_stale(&self) -> bool {
        false
    }
}

/// A value for each queue. The first caller without a valid value starts an attempt to make one, for which
/// later callers of the queue wait together. Queues do not wait for each other. An attempt is a task, and
/// continues if all its callers stop waiting.
#[derive(Debug)]
pub(super) struct SingleFlightCache<T> {
    slots: Mutex<BTreeMap<String, Arc<Mutex<Slot<T>>>>>,
}

type Attempt<T> = Shared<BoxFuture<'static, Result<T, Fault>>>;

#[derive(Debug)]
struct Slot<T> {
    present: Option<T>,
    attempt: Option<Attempt<T>>,
}

impl<T> Default for SingleFlightCache<T> {
    fn default() -> Self {
        Self { slots: Mutex::default() }
    }
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { present: None, attempt: None }
    }
}

impl<T: Expiring + Send + Sync + 'static> SingleFlightCache<T> {
    /// Returns the value of a queue if it is valid.
    pub(super) fn present(&self, queue: &str) -> Option<T> {
        let slot = Arc::clone(lock(&self.slots).get(queue)?);
        let slot = lock(&slot);
        slot.present()
    }

    /// Returns the value of a queue, or the result of an attempt to make it, which `make` starts unless one
    /// is in progress. An attempt that began before the call may fail for a reason that has passed, so after
    /// such a failure the result of the next attempt counts. A value that is gone but
    /// [serves](Expiring::serves_while_stale) is returned at once.
    pub(super) async fn get<A: Future<Output = Result<T, Fault>> + Send + 'static>(
        &self,
        runtime: &Runtime,
        queue: &str,
        make: impl FnOnce() -> A,
    ) -> Result<T, Fault> {
        let slot = self.slot(queue);
        let earlier = {
            let mut now = lock(&slot);
            if let Some(present) = now.present() {
                return Ok(present);
            }
            let earlier = now.attempt();
            if let Some(former) = now.present.clone().filter(Expiring::serves_while_stale) {
                let attempt = earlier.unwrap_or_else(|| begin(runtime, &slot, make()));
                now.attempt = Some(attempt);
                return Ok(former);
            }
            earlier
        };
        if let Some(earlier) = earlier
            && let Ok(made) = earlier.await
            && !made.is_gone()
        {
            return Ok(made);
        }
        let attempt = {
            let mut now = lock(&slot);
            if let Some(present) = now.present() {
                return Ok(present);
            }
            let attempt = now.attempt().unwrap_or_else(|| begin(runtime, &slot, make()));
            now.attempt.insert(attempt).clone()
        };
        attempt.await
    }

    pub(super) fn set(&self, queue: &str, value: T) {
        lock(&self.slot(queue)).present = Some(value);
    }

    /// Forgets the value of a queue that was deleted or changed, and the result of an attempt in progress.
    pub(super) fn forget(&self, queue: &str) {
        lock(&self.slots).remove(queue);
    }

    /// Forgets the value of a queue, which may be outdated. Keeps an attempt in progress: it began later than
    /// the value, unless [`set`](Self::set) stored one during the attempt.
    pub(super) fn invalidate(&self, queue: &str) {
        let slot = lock(&self.slots).get(queue).cloned();
        if let Some(slot) = slot {
            lock(&slot).present = None;
        }
    }

    pub(super) fn all(&self) -> Vec<(String, T)> {
        let slots = lock(&self.slots);
        let made = |(queue, slot): (&String, &Arc<Mutex<Slot<T>>>)| {
            Some((queue.clone(), lock(slot).present.clone()?))
        };
        slots.iter().filter_map(made).collect()
    }

    fn slot(&self, queue: &str) -> Arc<Mutex<Slot<T>>> {
        Arc::clone(lock(&self.slots).entry(queue.to_owned()).or_default())
    }
}

impl<T: Expiring + Send + Sync + 'static> Slot<T> {
    fn present(&self) -> Option<T> {
        self.present.clone().filter(|present| !present.is_gone())
    }

    fn attempt(&self) -> Option<Attempt<T>> {
        // If its runtime has ended, the task could not remove the attempt. It is polled, because an attempt
        // beside a stale value has no waiters.
        self.attempt.clone().filter(|attempt| attempt.clone().now_or_never().is_none())
    }
}

/// Starts an attempt. Its result is stored in the slot.
fn begin<T: Expiring + Send + Sync + 'static>(
    runtime: &Runtime,
    slot: &Arc<Mutex<Slot<T>>>,
    making: impl Future<Output = Result<T, Fault>> + Send + 'static,
) -> Attempt<T> {
    let slot = Arc::clone(slot);
    let task = runtime.spawn(async move {
        let made = making.await;
        let mut slot = lock(&slot);
        slot.attempt = None;
        if let Ok(made) = &made {
            slot.present = Some(made.clone());
        }
        made
    });
    let ended = async move { task.await.unwrap_or_else(|_| Err(Fault::not_sent("the runtime ends"))) };
    ended.boxed().shared()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures_util::future::join_all;
    use tokio::time::{Instant, sleep, timeout};

    use super::*;

    #[derive(Debug, Clone)]
    struct Lasting;

    impl Expiring for Lasting {
        fn is_gone(&self) -> bool {
            false
        }
    }

    #[derive(Debug, Clone, PartialEq)]
    struct Stale(u8);

    impl Expiring for Stale {
        fn is_gone(&self) -> bool {
            self.0 == 0
        }

        fn serves_while_stale(&self) -> bool {
            true
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stale_value_serves_while_its_successor_is_made() {
        let (cache, runtime) = (SingleFlightCache::<Stale>::default(), Runtime::new());
        cache.set("work", Stale(0));
        let making = || async {
            sleep(REQUEST_TIMEOUT).await;
            Ok(Stale(1))
        };
        for _ in 0..2 {
            let begun = Instant::now();
            assert_eq!(cache.get(&runtime, "work", making).await.unwrap(), Stale(0));
            assert_eq!(begun.elapsed(), Duration::ZERO);
        }
        sleep(REQUEST_TIMEOUT * 2).await;
        assert_eq!(cache.present("work"), Some(Stale(1)), "one attempt was made");
        // A value that was forgotten does not serve.
        cache.set("work", Stale(0));
        cache.invalidate("work");
        assert_eq!(cache.get(&runtime, "work", making).await.unwrap(), Stale(1));
    }

    // Before, such an attempt counted as under way for ever.
    #[test]
    fn attempt_whose_runtime_has_ended_is_repeated() {
        let cache = SingleFlightCache::<Stale>::default();
        cache.set("work", Stale(0));
        let new = || tokio::runtime::Builder::new_current_thread().build().unwrap();
        new().block_on(async {
            cache.get(&Runtime::new(), "work", std::future::pending).await.unwrap();
        });
        new().block_on(async {
            let making = || async { Ok(Stale(1)) };
            assert_eq!(cache.get(&Runtime::new(), "work", making).await.unwrap(), Stale(0));
            tokio::task::yield_now().await;
        });
        assert_eq!(cache.present("work"), Some(Stale(1)));
    }

    // Before, each put over a cold link discarded the attempt of the previous put.
    #[tokio::test(start_paused = true)]
    async fn invalidation_keeps_the_attempt_in_progress() {
        let (cache, runtime) = (SingleFlightCache::<Lasting>::default(), Runtime::new());
        let begun = AtomicU64::new(0);
        let get = |_| async {
            cache.invalidate("work");
            let making = || {
                begun.fetch_add(1, Ordering::Relaxed);
                async {
                    sleep(REQUEST_TIMEOUT).await;
                    Ok(Lasting)
                }
            };
            cache.get(&runtime, "work", making).await
        };
        assert!(join_all((0..8).map(get)).await.iter().all(Result::is_ok));
        assert_eq!(begun.load(Ordering::Relaxed), 1);
    }

    // Before, each caller waited for the attempts of all earlier callers.
    #[tokio::test(start_paused = true)]
    async fn waiters_of_failing_attempts_wait_for_two_at_most() {
        let (cache, runtime) = (SingleFlightCache::<Lasting>::default(), Runtime::new());
        let failing = || async {
            sleep(REQUEST_TIMEOUT / 2).await;
            Err(Fault::Late)
        };
        let begun = Instant::now();
        let failed = join_all((0..64).map(|_| cache.get(&runtime, "work", failing))).await;
        assert!(failed.iter().all(Result::is_err));
        assert_eq!(begun.elapsed(), REQUEST_TIMEOUT);
        // A later caller starts its own attempt.
        cache.get(&runtime, "work", || async { Ok(Lasting) }).await.unwrap();
    }

    // Before, each of three callers with less time than an attempt takes started another attempt, and none
    // finished.
    #[tokio::test(start_paused = true)]
    async fn attempt_continues_without_its_callers() {
        let (cache, runtime) = (SingleFlightCache::<Lasting>::default(), Runtime::new());
        let making = || async {
            sleep(REQUEST_TIMEOUT).await;
            Ok(Lasting)
        };
        let begun = Instant::now();
        for _ in 0..3 {
            let late = timeout(REQUEST_TIMEOUT / 4, cache.get(&runtime, "work", making)).await;
            assert!(late.is_err());
        }
        let other = || async { panic!("a second attempt was started") };
        cache.get(&runtime, "work", other).await.unwrap();
        assert_eq!(begun.elapsed(), REQUEST_TIMEOUT);
        assert!(cache.present("work").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn failure_of_an_attempt_that_began_before_the_call_is_not_its_own() {
        let (cache, runtime) = (SingleFlightCache::<Lasting>::default(), Runtime::new());
        let failing = || async {
            sleep(REQUEST_TIMEOUT).await;
            Err(Fault::missing_queue())
        };
        let (first, second) = tokio::join!(
            cache.get(&runtime, "work", failing),
            cache.get(&runtime, "work", || async { Ok(Lasting) })
        );
        assert!(first.is_err_and(|fault| fault.is_missing_entity()));
        second.unwrap();
    }
}
