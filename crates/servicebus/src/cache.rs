//! What is known or open for each queue, and is made anew when it is gone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::timeout;

use super::error::Fault;
use jobqueue_storage::sync::lock;

/// The longest time for one exchange with the service, and so for an attempt of another caller.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A thing that may come to its end at any time.
pub(super) trait Perishable: Clone {
    fn is_gone(&self) -> bool;
}

/// One thing for each queue. A queue for which one is being made holds up no other queue, and an attempt that fails does so for all who
/// waited when it began.
#[derive(Debug)]
pub(super) struct Cache<T> {
    entries: Mutex<HashMap<String, Arc<Entry<T>>>>,
}

#[derive(Debug)]
struct Entry<T> {
    present: Mutex<Option<T>>,
    /// The number of attempts to make one.
    begun: AtomicU64,
    /// Held by an attempt under way: the number and the fault of the last one that failed.
    making: tokio::sync::Mutex<Option<(u64, Fault)>>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { entries: Mutex::default() }
    }
}

impl<T> Default for Entry<T> {
    fn default() -> Self {
        Self { present: Mutex::default(), begun: AtomicU64::default(), making: Default::default() }
    }
}

impl<T: Perishable> Cache<T> {
    /// Returns what is there for a queue and not gone.
    pub(super) fn present(&self, queue: &str) -> Option<T> {
        let entry = Arc::clone(lock(&self.entries).get(queue)?);
        let present = lock(&entry.present).clone();
        present.filter(|present| !present.is_gone())
    }

    /// Returns what is there for a queue, or the result of `make`. Waits for the attempts of others for as long as a request takes.
    pub(super) async fn get(
        &self,
        queue: &str,
        make: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let entry = Arc::clone(lock(&self.entries).entry(queue.to_owned()).or_default());
        let asked = entry.begun.load(Ordering::Relaxed);
        let turn = timeout(REQUEST_TIMEOUT, entry.making.lock()).await;
        let mut failed = turn.map_err(|_| Fault::not_sent("no answer in time"))?;
        let present = lock(&entry.present).clone();
        if let Some(present) = present.filter(|present| !present.is_gone()) {
            return Ok(present);
        }
        if let Some((_, fault)) = failed.as_ref().filter(|(number, _)| *number > asked) {
            return Err(fault.clone());
        }
        let number = entry.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let made = make.await.inspect_err(|fault| *failed = Some((number, fault.clone())))?;
        *lock(&entry.present) = Some(made.clone());
        Ok(made)
    }

    pub(super) fn set(&self, queue: &str, value: Option<T>) {
        let entry = Arc::clone(lock(&self.entries).entry(queue.to_owned()).or_default());
        *lock(&entry.present) = value;
    }

    pub(super) fn all(&self) -> Vec<(String, T)> {
        let entries = lock(&self.entries);
        let made =
            |(queue, entry): (&String, &Arc<Entry<T>>)| Some((queue.clone(), lock(&entry.present).clone()?));
        entries.iter().filter_map(made).collect()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use tokio::time::{Instant, sleep};

    use super::*;

    #[derive(Debug, Clone)]
    struct Never;

    impl Perishable for Never {
        fn is_gone(&self) -> bool {
            false
        }
    }

    // Each waited for the attempts of all before it.
    #[tokio::test(start_paused = true)]
    async fn waiters_of_failing_attempts_wait_for_two_at_most() {
        let cache = Cache::<Never>::default();
        let failing = async || {
            sleep(REQUEST_TIMEOUT / 2).await;
            Err(Fault::Late)
        };
        let begun = Instant::now();
        let failed = join_all((0..64).map(|_| cache.get("work", failing()))).await;
        assert!(failed.iter().all(Result::is_err));
        assert_eq!(begun.elapsed(), REQUEST_TIMEOUT);
        // A later caller has an attempt of its own.
        cache.get("work", async { Ok(Never) }).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_does_not_end_is_awaited_for_the_time_of_a_request() {
        let cache = Cache::<Never>::default();
        let begun = Instant::now();
        tokio::select! {
            biased;
            _ = cache.get("work", std::future::pending()) => panic!("it has ended"),
            late = cache.get("work", std::future::pending()) => assert!(late.is_err()),
        }
        assert_eq!(begun.elapsed(), REQUEST_TIMEOUT);
    }
}
